"""Requests of API clients, without HTTP."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager

from hermes import Inbound, Source
from hermes.agents import Endpoint, Secret, chat_agents
from hermes.messages import ApiRequest

KEY = "agent:main:http:dm:ann:conv_1"
SOURCE = Source("http", "tok_1", "ann", thread_id="conv_1", user_id="tok_1")
_numbers = itertools.count(1)


def a_request(text="", *, key=KEY, request_id=None, parts=None, **fields):
    """A message with a request that returns or asks for these things."""
    request_id = request_id or f"resp_{next(_numbers):032x}"
    request = ApiRequest(
        id=request_id, credential="tok_1", path="/v1/responses", digest="d", **fields
    )
    return Inbound(key, request_id, text, SOURCE, parts=parts, when_busy="queue", request=request)


async def respond(runtime, text="", **fields):
    """Send a request, and return its reply."""
    receipt = await runtime.submit(a_request(text, **fields))
    return await runtime.wait(receipt)


@asynccontextmanager
async def runtime_with(start, model, *, protocol="openai", endpoint=None, **options):
    """Open a runtime whose agents ask the loopback model; `options` are those of `chat_agents`."""
    runtime_options = {
        name: options.pop(name) for name in ("adapters", "config", "compressor") if name in options
    }
    url = model.openai_url if protocol == "openai" else model.anthropic_url
    endpoint = Endpoint(base_url=url, model="m", key=Secret("k"), **(endpoint or {}))
    async with (
        chat_agents(endpoint, protocol=protocol, **options) as agents,
        start(build_agent=agents.build, agent_spec=agents.agent_spec, **runtime_options) as runtime,
    ):
        yield runtime
