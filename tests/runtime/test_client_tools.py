"""Tools that a client runs: the turn ends with their calls, and the next one has the results."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import trio

from hermes import AgentChoice, ConversationSettings, Inbound, ToolInfo, TurnResult
from hermes.agents import tool
from hermes.errors import RequestRefused
from hermes.events import ToolFinished, ToolStarted
from hermes.messages import Attachment, Message, StoredFile, ToolCall, ToolOutput, TurnOptions
from hermes.testing import ModelAnswer, open_model
from hermes.transcript.calls import open_calls
from tests.support.api_requests import KEY, a_request, respond, runtime_with

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "The weather", "parameters": SCHEMA}
OPTIONS = TurnOptions(tools=(WEATHER,))
CALL = ToolCall("call_rome", "weather", '{"city":"Rome"}')
OTHER = ToolCall("call_oslo", "weather", '{"city":"Oslo"}')
CALLS = ModelAnswer("Let me see.", calls=[CALL])
BOTH = ModelAnswer(calls=[CALL, OTHER])
BREAKPOINT = rb',"cache_control":\{"type":"ephemeral"\}'


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


def sent(request):
    """The roles and texts that a model got."""
    return [(each["role"], each["content"]) for each in request.json["messages"]]


@pytest.fixture
def runtime_of(start):
    return lambda model, **options: runtime_with(start, model, **options)


async def test_a_call_ends_the_turn_and_its_output_continues_it(runtime_of):
    async with open_model([CALLS, "It is sunny."]) as model, runtime_of(model) as runtime:
        first = await respond(runtime, "weather in Rome?", options=OPTIONS)
        assert (first.text, first.status, first.calls) == ("Let me see.", "complete", (CALL,))
        assert await runtime.api.waiting_calls(KEY) == [CALL]
        second = await respond(
            runtime, outputs=(ToolOutput("call_rome", "sunny"),), options=OPTIONS
        )
        assert (second.text, second.calls) == ("It is sunny.", ())
        assert await runtime.api.waiting_calls(KEY) == []
        rows = await runtime.conversation(KEY).history()
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert (rows[2].tool_call_id, rows[2].tool_name, rows[2].content) == (
        "call_rome",
        "weather",
        "sunny",
    )
    function = {"type": "function", "function": WEATHER}
    assert [request.json["tools"] for request in model.requests] == [[function], [function]]
    assert sent(model.requests[1])[1:] == [("assistant", "Let me see."), ("tool", "sunny")]


async def test_no_tool_events_are_published_for_a_clients_call(runtime_of):
    mixed = ModelAnswer(calls=[CALL, ToolCall("call_oslo", "add", '{"a":1,"b":2}')])
    async with open_model([mixed, "done"]) as model, runtime_of(model, tools=[add]) as runtime:
        seen = []
        with runtime.subscribe(KEY, callback=lambda envelope: seen.append(envelope.event)):
            reply = await respond(runtime, "go", options=OPTIONS)
        tools = [each for each in seen if isinstance(each, ToolStarted | ToolFinished)]
        assert [type(each) for each in tools] == [ToolStarted, ToolFinished]
        assert tools[0].call.name == "add"
        assert reply.calls == (CALL,)
        rows = await runtime.conversation(KEY).history()
        assert [(row.role, row.content) for row in rows[1:]] == [("assistant", None), ("tool", "3")]
        await respond(runtime, outputs=(ToolOutput("call_rome", "sunny"),))
    assert sent(model.requests[1])[2:] == [("tool", "sunny"), ("tool", "3")]


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_the_cached_prefix_stays_valid(runtime_of, protocol):
    script = ["hello", CALLS, "It is sunny.", "bye"]
    async with open_model(script) as model, runtime_of(model, protocol=protocol) as runtime:
        await respond(runtime, "hi", options=OPTIONS)
        await respond(runtime, "weather?", options=OPTIONS)
        await respond(runtime, outputs=(ToolOutput("call_rome", "sunny"),), options=OPTIONS)
        await respond(runtime, "thanks", options=OPTIONS)
    prompts = [re.sub(BREAKPOINT, b"", request.body) for request in model.requests]
    for earlier, later in pairwise(prompts):
        assert later.startswith(earlier.removesuffix(b"]}"))


async def test_the_wait_survives_a_restart(runtime_of):
    async with open_model([BOTH, "Both are sunny."]) as model:
        async with runtime_of(model) as runtime:
            reply = await respond(runtime, "weather?", options=OPTIONS)
            assert (reply.text, reply.calls) == ("", (CALL, OTHER))
        async with runtime_of(model) as runtime:
            outputs = (ToolOutput("call_oslo", "snow"), ToolOutput("call_rome", "sun"))
            reply = await respond(runtime, "compare", outputs=outputs, options=OPTIONS)
            assert reply.text == "Both are sunny."
    assert sent(model.requests[1])[2:] == [("tool", "sun"), ("tool", "snow"), ("user", "compare")]


async def test_some_outputs_are_enough(runtime_of):
    async with open_model([BOTH, "It is sunny in Rome."]) as model, runtime_of(model) as runtime:
        await respond(runtime, "weather?", options=OPTIONS)
        await respond(runtime, outputs=(ToolOutput("call_rome", "sun"),), options=OPTIONS)
        assert await runtime.api.waiting_calls(KEY) == []
        with pytest.raises(RequestRefused, match="call_oslo"):
            await respond(runtime, outputs=(ToolOutput("call_oslo", "snow"),))
    interrupted = "The call was interrupted and has no result."
    assert sent(model.requests[1])[2:] == [("tool", "sun"), ("tool", interrupted)]


async def test_another_message_goes_on_without_the_outputs(runtime_of):
    async with open_model([CALLS, "Never mind."]) as model, runtime_of(model) as runtime:
        await respond(runtime, "weather?", options=OPTIONS)
        assert (await respond(runtime, "forget it")).text == "Never mind."
        with pytest.raises(RequestRefused):
            await respond(runtime, outputs=(ToolOutput("call_rome", "sun"),))
        assert (await respond(runtime, "still there?")).text == "echo: still there?"
    interrupted = "The call was interrupted and has no result."
    assert sent(model.requests[1])[2:] == [("tool", interrupted), ("user", "forget it")]


@pytest.mark.parametrize(
    "outputs",
    [
        (ToolOutput("call_9", "sun"),),
        (ToolOutput("call_rome", "sun"), ToolOutput("call_9", "sun")),
        (ToolOutput("call_rome", "sun"), ToolOutput("call_rome", "rain")),
    ],
)
async def test_outputs_that_nothing_waits_for_are_refused_and_not_stored(runtime_of, sql, outputs):
    async with open_model([CALLS, "ok"]) as model, runtime_of(model) as runtime:
        await respond(runtime, "weather?", options=OPTIONS)
        with pytest.raises(RequestRefused):
            await runtime.submit(a_request(outputs=outputs))
        assert sql("SELECT count(*) FROM inbox") == [[1]]
        assert sql("SELECT count(*) FROM responses") == [[1]]
        assert await runtime.api.waiting_calls(KEY) == [CALL]
        assert (await respond(runtime, outputs=(ToolOutput("call_rome", "sun"),))).text == "ok"


async def test_of_two_requests_with_the_same_output_one_counts(runtime_of):
    async with open_model([CALLS, "ok"]) as model, runtime_of(model) as runtime:
        await respond(runtime, "weather?", options=OPTIONS)
        refused = []

        async def answer():
            try:
                await respond(runtime, outputs=(ToolOutput("call_rome", "sun"),))
            except RequestRefused as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            nursery.start_soon(answer)
        assert len(refused) == 1
    assert len(model.requests) == 2


async def test_a_repeated_request_gets_its_receipt(runtime_of):
    async with open_model([CALLS, "ok"]) as model, runtime_of(model) as runtime:
        await respond(runtime, "weather?", options=OPTIONS)
        again = a_request(outputs=(ToolOutput("call_rome", "sun"),))
        receipt = await runtime.submit(again)
        await runtime.wait(receipt)
        assert await runtime.submit(again) == receipt
    assert len(model.requests) == 2


async def test_a_tool_of_the_agent_cannot_be_replaced(runtime_of, sql):
    same = TurnOptions(tools=({**WEATHER, "name": "add"},))
    async with open_model() as model, runtime_of(model, tools=[add]) as runtime:
        with pytest.raises(RequestRefused, match="'add'"):
            await runtime.submit(a_request("hi", options=same))
        assert sql("SELECT count(*) FROM inbox") == [[0]]
    assert not model.requests


class Catalog:
    """Two agents: "adder" has a tool, the default one has none."""

    def choices(self, source):
        return [self.current(ConversationSettings(agent=name), source) for name in ("adder", None)]

    def current(self, settings, source):
        tools = (ToolInfo(name="add", summary=""),) if settings.agent == "adder" else ()
        return AgentChoice(name=settings.agent or "default", model="m", tools=tools)

    def servers(self):
        return []


async def test_the_tools_are_those_of_the_chosen_agent(start):
    same = TurnOptions(tools=({**WEATHER, "name": "add"},))
    async with start(agent=plain_agent, catalog=Catalog()) as runtime:
        assert (await respond(runtime, "hi", options=same)).text == "ok"
        await runtime.conversation(KEY).configure(agent="adder")
        with pytest.raises(RequestRefused, match="'add'"):
            await runtime.submit(a_request("hi", options=same))


async def plain_agent(turn):
    """Answer without a model."""
    return "ok"


async def test_a_call_that_was_cut_off_does_not_reach_the_client(runtime_of):
    cut = ModelAnswer(calls=[CALL, OTHER], finish="length")
    async with open_model([cut, "ok"]) as model, runtime_of(model) as runtime:
        reply = await respond(runtime, "weather?", options=OPTIONS)
        assert reply.calls == (CALL,)
        rows = await runtime.conversation(KEY).history()
    assert rows[-1].tool_call_id == "call_oslo"
    assert "token limit" in rows[-1].content


async def test_ids_that_a_model_uses_again_are_replaced(runtime_of):
    own = ModelAnswer(calls=[ToolCall("call_0", "add", '{"a":1,"b":2}')])
    numbered = ModelAnswer(calls=[ToolCall("call_0", "weather"), ToolCall("call_0", "weather")])
    async with (
        open_model([own, numbered, "ok"]) as model,
        runtime_of(model, tools=[add]) as runtime,
    ):
        reply = await respond(runtime, "weather?", options=OPTIONS)
        ids = [call.id for call in reply.calls]
        assert len({*ids, "call_0"}) == 3
        assert [call.id for call in await runtime.api.waiting_calls(KEY)] == ids
        assert (await respond(runtime, outputs=(ToolOutput(ids[0], "sun"),))).text == "ok"


async def test_a_steered_message_does_not_come_between_a_call_and_its_output(runtime_of):
    @tool
    async def slow() -> str:
        """Take a while."""
        receipts.append(await runtime.submit(Inbound(KEY, "s", "hurry", when_busy="steer")))
        return "done"

    receipts = []
    mixed = ModelAnswer(calls=[CALL, ToolCall("call_slow", "slow")])
    async with open_model([mixed, "sorry"]) as model, runtime_of(model, tools=[slow]) as runtime:
        first = await respond(runtime, "go", options=OPTIONS)
        assert first.calls == (CALL,)
        assert (await runtime.wait(receipts[0])).text == "sorry"
        rows = await runtime.conversation(KEY).history()
    roles = ["user", "assistant", "tool", "user", "assistant"]
    assert [row.role for row in rows] == roles


async def test_an_output_with_an_image_reaches_the_model(runtime_of):
    png = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63"
        "6060606000000005000157a2f2d50000000049454e44ae426082"
    )
    async with open_model([CALLS, "a pixel"]) as model, runtime_of(model) as runtime:
        await respond(runtime, "weather?", options=OPTIONS)
        stored = await runtime.conversation(KEY).put_file(Attachment(data=png))
        output = ToolOutput("call_rome", "see", (stored.part,))
        assert (await respond(runtime, outputs=(output,))).text == "a pixel"
        rows = await runtime.conversation(KEY).history()
        assert rows[2].parts[0]["file"] == stored.id
    assert [file.media_type for file in model.requests[1].files] == ["image/png"]


async def test_files_of_a_turn_that_waits_do_not_hide_its_calls(start):
    async def agent(turn):
        file = Attachment(data=b"hello", name="a.txt")
        if turn.input[0].role == "tool":
            return TurnResult(text="done", files=[file])
        rows = [Message("assistant", None, tool_calls=(CALL,))]
        return TurnResult(rows=rows, calls=[CALL], files=[file])

    async with start(agent=agent) as runtime:
        first = await respond(runtime, "go", options=OPTIONS)
        assert (first.text, first.calls) == ("", (CALL,))
        assert [type(file) for file in first.files] == [StoredFile]
        assert await runtime.api.waiting_calls(KEY) == [CALL]
        second = await respond(runtime, outputs=(ToolOutput("call_rome", "x"),))
        assert (second.text, len(second.files)) == ("done", 1)


@pytest.mark.parametrize("calls", ["call_rome", [("call_rome", "weather")], [ToolCall("a", 1)]])
async def test_calls_of_an_agent_are_checked(start, calls):
    async def agent(turn):
        return TurnResult(text="x", calls=calls)

    async with start(agent=agent) as runtime:
        reply = await respond(runtime, "go")
        assert (reply.status, reply.error_kind) == ("failed", "TypeError")


def test_open_calls():
    asked = Message("assistant", None, tool_calls=(CALL, OTHER))
    result = Message("tool", "x", tool_call_id="call_rome")
    assert open_calls([]) == []
    assert open_calls([Message("user", "hi")]) == []
    assert open_calls([asked]) == [CALL, OTHER]
    assert open_calls([asked, result]) == [OTHER]
    assert open_calls([asked, result, Message("user", "hi")]) == []
    same = Message("assistant", None, tool_calls=(CALL, CALL))
    assert open_calls([same, result]) == [CALL]
