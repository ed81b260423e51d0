"""An HTTP server whose agent asks a scripted model, and a tool of a client."""

from __future__ import annotations

from contextlib import asynccontextmanager

from hermes.agents import Endpoint, Secret, chat_agents
from hermes.messages import ToolCall
from hermes.testing import open_model
from tests.support.http import http_server

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function", "name": "get_weather", "description": "The weather", "parameters": SCHEMA,
}  # fmt: skip
CALL = ToolCall("call_1", "get_weather", '{"city":"Rome"}')


@asynccontextmanager
async def server_with(path, answers, **options):
    """A server whose agent asks a model that gives these answers."""
    async with open_model(answers) as model:
        endpoint = Endpoint(
            base_url=model.openai_url, model="m", key=Secret("k"), attachments=("image", "file")
        )
        async with (
            chat_agents(endpoint, protocol="openai", **options) as agents,
            http_server(
                path, None, build_agent=agents.build, agent_spec=agents.agent_spec
            ) as server,
        ):
            yield server, model
