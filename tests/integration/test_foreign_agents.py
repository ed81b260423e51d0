"""Agents of other frameworks that need asyncio, with `asyncio_agent`; no network."""

from __future__ import annotations

import asyncio
import threading

import agents
import trio
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.usage import Usage as AgentsUsage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse as PydanticResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from hermes import TurnResult, Usage, current_session_id
from hermes.agents.bridges import BridgeStatistics
from hermes.events import TextDelta
from hermes.testing import texts_of

# pydantic-ai


def converted(history):
    """The history as messages of pydantic-ai."""
    for row in history:
        if row.role == "user":
            yield ModelRequest([UserPromptPart(row.content)])
        elif row.role == "assistant":
            yield PydanticResponse([TextPart(row.content)])


async def test_an_agent_of_pydantic_ai_streams_calls_tools_and_gets_the_history(start, bridge):
    sessions = []
    model = TestModel(custom_output_text="the tool was called")
    clerk = Agent(model, system_prompt="Be brief.")

    @clerk.tool_plain
    async def look_up(word: str) -> str:
        await asyncio.sleep(0)
        sessions.append(current_session_id())
        return f"{word} is a bird"

    async def reply(turn):
        history = list(converted(turn.history))
        async with clerk.run_stream(turn.text, message_history=history) as run:
            async for piece in run.stream_text(delta=True, debounce_by=None):
                turn.emit(TextDelta(piece))
            usage = run.usage
            text = await run.get_output()
        counted = Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        return TurnResult(text=text, usage=[counted])

    async with start(build_agent=bridge(reply)) as runtime:
        async with runtime.stream("k", "what is a heron?") as stream:
            heard = [event.text async for event in stream if isinstance(event, TextDelta)]
        assert (len(heard) > 1, "".join(heard)) == (True, "the tool was called")
        reply_after = await runtime.ask("k", "and again")
        assert (reply_after.text, reply_after.build_reason) == ("the tool was called", None)
        assert reply_after.usage[0].input_tokens > 0
        assert set(sessions) == {reply_after.session_id}
        assert texts_of(await runtime.conversation("k").history())[0] == (
            "user",
            "what is a heron?",
        )


async def test_an_agent_of_pydantic_ai_is_given_the_history_and_can_be_stopped(start, bridge):
    begun, ended, seen = threading.Event(), [], []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> PydanticResponse:
        seen.append([part.content for message in messages for part in message.parts])
        if seen[-1][-1] == "wait":
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("cancelled")
        return PydanticResponse([TextPart("well")])

    clerk = Agent(FunctionModel(answer))

    async def reply(turn):
        done = await clerk.run(turn.text, message_history=list(converted(turn.history)))
        return done.output

    agent = bridge(reply, grace_period=60)
    async with start(build_agent=agent) as runtime:
        assert (await runtime.ask("k", "hello")).text == "well"
        async with trio.open_nursery() as nursery:
            replies = []

            async def ask():
                replies.append(await runtime.ask("k", "wait"))

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(begun.wait)
            assert await runtime.conversation("k").interrupt()
        assert ([each.status for each in replies], ended) == (["interrupted"], ["cancelled"])
        assert (await runtime.ask("k", "more")).text == "well"
    assert seen[1] == ["hello", "well", "wait"]
    assert agent.statistics() == BridgeStatistics(0, 0)


async def test_an_error_of_pydantic_ai_fails_the_turn(start, bridge):
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> PydanticResponse:
        raise RuntimeError("the provider is down")

    clerk = Agent(FunctionModel(answer))

    async def reply(turn):
        return (await clerk.run(turn.text)).output

    async with start(build_agent=bridge(reply)) as runtime:
        reply_to = await runtime.ask("k", "hello")
        assert (reply_to.status, reply_to.error_kind) == ("failed", "RuntimeError")


# openai-agents


class InProcess(Model):
    """A model without a network: calls its tool once, then answers."""

    def __init__(self):
        self.inputs = []
        self.begun = threading.Event()

    async def get_response(self, **asked):
        items = list(asked["input"])
        self.inputs.append(items)
        await asyncio.sleep(0)
        last = items[-1]
        if isinstance(last, dict) and last.get("content") == "wait":
            self.begun.set()
            await asyncio.sleep(3600)
        if isinstance(last, dict) and last.get("type") == "function_call_output":
            return answer(said(f"It says: {last['output']}"))
        call = ResponseFunctionToolCall(
            arguments='{"word": "heron"}',
            call_id="c1",
            name=asked["tools"][0].name,
            type="function_call",
        )
        return answer(call)

    def stream_response(self, *args, **named):
        raise NotImplementedError


def said(text):
    part = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(
        id="m1", content=[part], role="assistant", status="completed", type="message"
    )


def answer(item):
    usage = AgentsUsage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
    return ModelResponse(output=[item], usage=usage, response_id=None)


async def test_an_agent_of_openai_agents_calls_tools_knows_the_history_and_can_be_stopped(
    start, bridge
):
    agents.set_tracing_disabled(disabled=True)
    sessions, model = [], InProcess()

    @agents.function_tool
    async def look_up(word: str) -> str:
        """Look a word up."""
        await asyncio.sleep(0)
        sessions.append(current_session_id())
        return f"{word} is a bird"

    clerk = agents.Agent(name="clerk", model=model, tools=[look_up])

    async def reply(turn):
        history = [{"role": m.role, "content": m.content} for m in turn.messages()]
        done = await agents.Runner.run(clerk, history)
        usage = done.context_wrapper.usage
        counted = Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        return TurnResult(text=done.final_output, usage=[counted], api_calls=usage.requests)

    agent = bridge(reply, grace_period=60)
    async with start(build_agent=agent) as runtime:
        first = await runtime.ask("k", "what is a heron?")
        assert (first.text, first.status) == ("It says: heron is a bird", "complete")
        assert first.usage == (Usage(input_tokens=20, output_tokens=10),)
        assert sessions == [first.session_id]
        async with trio.open_nursery() as nursery:
            replies = []

            async def ask():
                replies.append(await runtime.ask("k", "wait"))

            nursery.start_soon(ask)
            await trio.to_thread.run_sync(model.begun.wait)
            assert await runtime.conversation("k").interrupt()
        assert [each.status for each in replies] == ["interrupted"]
        assert (await runtime.ask("k", "and again")).build_reason is None
    told = [item["content"] for item in model.inputs[2]]
    assert told == ["what is a heron?", "It says: heron is a bird", "wait"]
    assert agent.statistics() == BridgeStatistics(0, 0)
