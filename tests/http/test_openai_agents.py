"""openai-agents as a client: it runs function calls itself, and decides about approvals."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import agents
import openai
import pytest
import trio
from agents.items import ToolCallItem

from hermes import ToolCall
from hermes.agents import Endpoint, Secret, chat_agents, tool
from hermes.testing import ModelAnswer, open_model
from tests.support.http import http_server

ORDERED = []


@tool
async def price(bird: str) -> str:
    """Return the price of a bird."""
    return f"{bird}: 12.50"


@tool(approval=True)
async def order(bird: str) -> str:
    """Order a bird."""
    ORDERED.append(bird)
    return f"ordered {bird}"


@agents.function_tool
def look(bird: str) -> str:
    """Look at a bird."""
    return f"seen {bird}"


OWN = agents.HostedMCPTool(
    tool_config={"type": "mcp", "server_label": "hermes", "server_url": "http://hermes"},
    on_approval_request=lambda request: {"approve": request.data.name == "order"},
)


def calls(*names):
    made = [ToolCall(f"call_{name}", name, '{"bird": "heron"}') for name in names]
    return ModelAnswer("Let me see.", calls=made)


@asynccontextmanager
async def server_of(path, model):
    endpoint = Endpoint(base_url=model.openai_url, model="m", key=Secret("k"))
    async with (
        chat_agents(endpoint, tools=[price, order]) as built,
        http_server(path, None, build_agent=built.build, agent_spec=built.agent_spec) as server,
    ):
        yield server


async def run(server, *, stream, tools, store=None, **options):
    """Ask with openai-agents, which needs asyncio. Returns the answer and the items of calls."""

    async def ask():
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=server.secret, max_retries=0
        ) as client:
            agent = agents.Agent(
                name="birds",
                model=agents.OpenAIResponsesModel(model="hermes", openai_client=client),
                tools=tools,
                model_settings=agents.ModelSettings(store=store),
            )
            off = agents.RunConfig(tracing_disabled=True)
            if stream:
                done = agents.Runner.run_streamed(agent, "?", run_config=off, **options)
                async for _ in done.stream_events():
                    pass
            else:
                done = await agents.Runner.run(agent, "?", run_config=off, **options)
            called = [item.raw_item for item in done.new_items if isinstance(item, ToolCallItem)]
            return done.final_output, [(item.type, item.name) for item in called]

    return await trio.to_thread.run_sync(lambda: asyncio.run(ask()))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("store", [True, False])
async def test_the_agent_s_tools_and_those_of_the_client(path, stream, store):
    script = [calls("price", "look"), "It costs 12.50."]
    async with open_model(script) as model, server_of(path, model) as server:
        text, called = await run(server, stream=stream, tools=[look], store=store)
    assert (text, called) == (
        "It costs 12.50.", [("mcp_call", "price"), ("function_call", "look")],
    )  # fmt: skip
    said = {each["tool_call_id"]: each["content"] for each in model.requests[-1].json["messages"]
            if each["role"] == "tool"}  # fmt: skip
    assert sorted(said.values()) == ["heron: 12.50", "seen heron"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_without_tools_sees_the_agent_s(path, stream):
    script = [calls("price"), "It costs 12.50."]
    async with open_model(script) as model, server_of(path, model) as server:
        answer = await run(server, stream=stream, tools=[])
    assert answer == ("It costs 12.50.", [("mcp_call", "price")])


@pytest.mark.parametrize("stream", [True, False])
async def test_an_approval_is_decided_by_the_client(path, stream):
    ORDERED.clear()
    script = [calls("order"), "May I?", "Done."]
    async with open_model(script) as model, server_of(path, model) as server:
        text, _ = await run(server, stream=stream, tools=[OWN], auto_previous_response_id=True)
    assert (text, ORDERED) == ("Done.", ["heron"])
