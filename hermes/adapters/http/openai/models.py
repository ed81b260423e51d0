"""Models: the configured agents. A request names one as its `model`."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from hermes.adapters.http.endpoints import Call, Endpoint, json_response
from hermes.adapters.http.errors import ApiError
from hermes.messages import JsonObject

DEFAULT = "hermes"
"""The agent that the conversation has, or the one that Hermes chooses."""
PATH = "/v1/models"


def agents_of(call: Call) -> Mapping[str, str | None]:
    """Return the agents that the caller may choose, by model; None is the default one."""
    choices = call.runtime.api.list_agents(call.caller.source("models"))
    return {DEFAULT: None, **{f"{DEFAULT}/{each.name}": each.name for each in choices}}


def agent_of(call: Call, model: str | None) -> str | None:
    """Return the agent that a request names; None if it leaves the choice to Hermes.

    Raises `ApiError` if there is no such agent.
    """
    if model is None or model == DEFAULT:
        return None
    agents = agents_of(call)
    if model not in agents:
        text = f"There is no model {model[:100]!r}; the models are {', '.join(agents)}."
        raise ApiError(404, text, code="model_not_found", param="model")
    return agents[model]


async def list_models(call: Call) -> Response:
    """List the agents as models."""
    return json_response({"object": "list", "data": [_model(name) for name in agents_of(call)]})


async def get_model(call: Call) -> Response:
    """Return one agent as a model."""
    model = call.path["model_id"]
    agent_of(call, model)
    return json_response(_model(model))


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": DEFAULT}


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(method="GET", path=PATH, handle=list_models, summary="List the agents."),
    Endpoint(
        method="GET",
        path=f"{PATH}/{{model_id:path}}",
        handle=get_model,
        summary="Return an agent.",
    ),
)
