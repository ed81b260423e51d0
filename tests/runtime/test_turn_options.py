"""What an API client wants of a turn reaches its agent and the model, and nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from hermes import TurnOptions
from hermes.agents import blocking_agent, tool
from hermes.agents.providers.options import SAMPLING
from hermes.errors import RequestRefused
from hermes.messages import ApprovalDecision, ToolCall, ToolOutput
from hermes.testing import DeterministicCompressor, ModelAnswer, open_model
from tests.support.api_requests import KEY, a_request, respond, runtime_with

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "The weather", "parameters": SCHEMA, "strict": True}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
VALUES = {
    "temperature": 0.5,
    "top_p": 0.9,
    "stop": "END",
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "seed": 7,
    "reasoning_effort": "low",
    "verbosity": "high",
    "response_format": FORMAT,
}


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return a + b


@pytest.fixture
def runtime_of(start):
    return lambda model, **options: runtime_with(start, model, **options)


# Turn.options


async def test_a_turn_has_the_options_of_its_request(start):
    seen = []

    async def agent(turn):
        seen.append(turn.options)
        return "ok"

    async with start(agent=agent) as runtime:
        options = TurnOptions(instructions="Be brief.", sampling={"temperature": 0})
        await respond(runtime, "hi", options=options)
        await respond(runtime, "hi")
        await runtime.ask("other", "hi")
    assert seen == [options, TurnOptions(), TurnOptions()]


async def test_agents_in_other_threads_have_them(start, bridge):
    async def answer(turn):
        return turn.options.instructions

    agents = [blocking_agent(lambda turn: turn.options.instructions), bridge(answer)]
    for number, agent in enumerate(agents):
        async with start(build_agent=agent) as runtime:
            options = TurnOptions(instructions="Be brief.")
            reply = await respond(runtime, "hi", key=f"{KEY}{number}", options=options)
            assert reply.text == "Be brief."


# The model


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
async def test_a_request_without_options_sends_the_same_bytes_as_a_message(runtime_of, protocol):
    endpoint = {"max_tokens": 100, "parameters": (("temperature", 0.2),)}
    async with open_model() as model:
        async with runtime_of(
            model, protocol=protocol, tools=[add], system="Be nice.", endpoint=endpoint
        ) as runtime:
            await respond(runtime, "hi")
            await runtime.ask("other", "hi")
    assert model.requests[0].body == model.requests[1].body


async def test_sampling_is_passed_on(runtime_of):
    options = TurnOptions(
        sampling=VALUES, max_output_tokens=50, tools=(WEATHER,), parallel_tool_calls=False,
        tool_choice={"name": "weather"},
    )  # fmt: skip
    async with open_model() as model, runtime_of(model, endpoint={"max_tokens": 100}) as runtime:
        await respond(runtime, "hi", options=options)
    body = model.requests[0].json
    assert {name: body[name] for name in VALUES} == VALUES
    assert body["max_tokens"] == 50
    assert body["parallel_tool_calls"] is False
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert body["tools"] == [{"type": "function", "function": WEATHER}]


async def test_anthropic_gets_what_it_knows(runtime_of):
    sampling = {name: value for name, value in VALUES.items() if SAMPLING[name][1] != "refused"}
    options = TurnOptions(
        sampling=sampling, max_output_tokens=50, tools=(WEATHER,), tool_choice="required",
        parallel_tool_calls=False,
    )  # fmt: skip
    async with open_model() as model, runtime_of(model, protocol="anthropic") as runtime:
        await respond(runtime, "hi", options=options)
    body = model.requests[0].json
    assert set(body) == {
        "model", "stream", "max_tokens", "temperature", "top_p", "stop_sequences", "tools",
        "tool_choice", "messages",
    }  # fmt: skip
    assert (body["max_tokens"], body["stop_sequences"]) == (50, ["END"])
    assert body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": True}
    assert body["tools"][0]["input_schema"] == SCHEMA


async def test_what_changes_the_answer_and_cannot_be_done_is_refused(runtime_of):
    options = TurnOptions(sampling={"response_format": FORMAT})
    async with open_model() as model, runtime_of(model, protocol="anthropic") as runtime:
        reply = await respond(runtime, "hi", options=options)
        assert (reply.status, reply.error_kind) == ("failed", "OptionRefused")
        assert reply.error == "the model does not support response_format"
    assert not model.requests


def test_the_documentation_lists_what_becomes_of_each_setting():
    text = (Path(__file__).parents[2] / "docs/http.md").read_text()
    rows = [f"| `{name}` | {ours} | {theirs} |" for name, (ours, theirs) in SAMPLING.items()]
    assert "\n".join(rows) in text


async def test_a_client_cannot_exceed_the_limit_of_the_endpoint(runtime_of):
    async with open_model() as model, runtime_of(model, endpoint={"max_tokens": 100}) as runtime:
        await respond(runtime, "hi", options=TurnOptions(max_output_tokens=500))
    assert model.requests[0].json["max_tokens"] == 100


async def test_the_limit_has_the_name_that_the_endpoint_uses(runtime_of):
    endpoint = {"parameters": (("max_completion_tokens", 100),)}
    async with open_model() as model, runtime_of(model, endpoint=endpoint) as runtime:
        await respond(runtime, "hi", options=TurnOptions(max_output_tokens=50))
    body = model.requests[0].json
    assert body["max_completion_tokens"] == 50
    assert "max_tokens" not in body


async def test_a_tool_that_must_be_called_is_called_once(runtime_of):
    call = ToolCall("c", "add", '{"a":1,"b":2}')
    script = [ModelAnswer(calls=[call]), "3"]
    async with open_model(script) as model, runtime_of(model, tools=[add]) as runtime:
        options = TurnOptions(tool_choice="required")
        assert (await respond(runtime, "add", options=options)).text == "3"
    choices = [request.json.get("tool_choice") for request in model.requests]
    assert choices == ["required", None]


async def test_a_choice_of_an_unknown_tool_is_refused(runtime_of):
    async with open_model() as model, runtime_of(model, tools=[add]) as runtime:
        reply = await respond(runtime, "hi", options=TurnOptions(tool_choice={"name": "sub"}))
        assert (reply.status, "'sub'" in reply.error) == ("failed", True)
    assert not model.requests


@pytest.mark.parametrize(
    ("protocol", "endpoint", "last"),
    [
        ("openai", {}, {"role": "system", "content": "Be brief."}),
        ("openai", {"alternate_roles": True}, None),
        ("anthropic", {}, None),
    ],
)
async def test_instructions_come_last_and_are_not_stored(runtime_of, protocol, endpoint, last):
    options = TurnOptions(instructions="Be brief.")
    async with open_model(["a", "b", "c"]) as model:
        async with runtime_of(model, protocol=protocol, endpoint=endpoint) as runtime:
            await respond(runtime, "hi")
            await respond(runtime, "hello", options=options)
            await respond(runtime, "bye")
            rows = await runtime.conversation(KEY).history()
    assert "brief" not in repr(rows)
    bodies = [json.dumps(request.json["messages"]) for request in model.requests]
    assert ["brief" in body for body in bodies] == [False, True, False]
    final = model.requests[1].json["messages"][-1]
    assert final == last if last else (final["role"] == "user" and "brief" in str(final))


async def test_instructions_do_not_invalidate_the_prompt_cache(runtime_of):
    async with open_model() as model, runtime_of(model, system="Be nice.") as runtime:
        await respond(runtime, "hello " * 1000)
        await respond(runtime, "one", options=TurnOptions(instructions="In English."))
        await respond(runtime, "two", options=TurnOptions(instructions="In Latin."))
    for earlier, later in zip(model.requests, [*model.requests][1:], strict=False):
        without = earlier.json["messages"]
        without = without[:-1] if without[-1]["role"] == "system" else without
        assert later.json["messages"][: len(without)] == without
        assert later.cached_tokens > 1000


async def test_an_answer_that_reaches_the_limit_is_partial(runtime_of):
    async with open_model([ModelAnswer("It is", finish="length")]) as model:
        async with runtime_of(model) as runtime:
            reply = await respond(runtime, "hi", options=TurnOptions(max_output_tokens=2))
            assert (reply.status, reply.text) == ("partial", "It is")


async def test_usage_counts_cached_tokens(runtime_of):
    async with open_model() as model, runtime_of(model) as runtime:
        await respond(runtime, "hello " * 1000)
        reply = await respond(runtime, "again", options=TurnOptions(instructions="Be brief."))
    [usage] = reply.usage
    request = model.requests[1]
    assert usage.cache_read_tokens == request.cached_tokens > 0
    assert usage.input_tokens + usage.cache_read_tokens == request.prompt_tokens


# Approvals


class Shell:
    """An agent with a tool that needs an approval."""

    def __init__(self):
        self.ran = []

        @tool(approval=True)
        async def run(command: str) -> str:
            """Run a command."""
            await trio.lowlevel.checkpoint()
            self.ran.append(command)
            return f"ran {command}"

        self.tools = [run]


ASKS = ModelAnswer(calls=[ToolCall("c", "run", '{"command":"ls"}')])


async def test_an_approval_is_asked_and_answered_by_the_client(runtime_of, sql):
    shell = Shell()
    async with open_model([ASKS, "May I?", "Here are your files."]) as model:
        async with runtime_of(model, tools=shell.tools) as runtime:
            first = await respond(runtime, "list my files")
            assert first.text == "May I?"
            [approval] = first.approvals
            assert (approval.tool, approval.arguments) == ("run", '{"command":"ls"}')
            assert sql("SELECT count(*) FROM outbox") == [[0]]
        async with runtime_of(model, tools=shell.tools) as runtime:
            decision = ApprovalDecision(approval.approval_id, approve=True, reason="go ahead")
            second = await respond(runtime, decisions=(decision,))
            assert (second.text, second.approvals) == ("Here are your files.", ())
            rows = await runtime.conversation(KEY).history()
    assert shell.ran == ["ls"]
    assert [row.role for row in rows[4:]] == ["user", "user", "assistant", "tool", "assistant"]
    assert rows[4].content.startswith("[The user has approved one call of run")
    assert rows[5].content == "go ahead"
    assert rows[7].content == "ran ls"
    assert "/approve" not in json.dumps(model.requests[1].json)
    assert sql("SELECT count(*) FROM responses") == [[2]]


async def test_a_refusal_reaches_the_agent(runtime_of):
    shell = Shell()
    async with open_model([ASKS, "May I?", "Then not."]) as model:
        async with runtime_of(model, tools=shell.tools) as runtime:
            [approval] = (await respond(runtime, "list")).approvals
            decision = ApprovalDecision(approval.approval_id, approve=False)
            reply = await respond(runtime, "never do that", decisions=(decision,))
            assert reply.text == "Then not."
            rows = await runtime.conversation(KEY).history()
    assert shell.ran == []
    assert [row.content for row in rows[-2:]] == ["never do that", "Then not."]


@pytest.mark.parametrize("number", [1, 99])
async def test_a_decision_counts_once_and_in_its_conversation(runtime_of, sql, number):
    shell = Shell()
    async with open_model([ASKS, "May I?", "Done."]) as model:
        async with runtime_of(model, tools=shell.tools) as runtime:
            await respond(runtime, "list")
            decision = ApprovalDecision(number, approve=True)
            with pytest.raises(RequestRefused, match=f"there is no approval request {number}"):
                await runtime.submit(a_request(key=f"{KEY}x", decisions=(decision,)))
            assert sql("SELECT state FROM approvals") == [["pending"]]
            if number == 1:
                await respond(runtime, decisions=(decision,))
                with pytest.raises(RequestRefused, match="was approved before"):
                    await runtime.submit(a_request(decisions=(decision,)))
            with pytest.raises(RequestRefused):
                await runtime.submit(a_request("hi", decisions=(decision,)))
            assert sql("SELECT count(*) FROM inbox WHERE state = 'open'") == [[0]]
    assert len(shell.ran) == (number == 1)


async def test_if_one_decision_is_refused_none_counts(runtime_of, sql):
    async with open_model([ASKS, "May I?"]) as model:
        async with runtime_of(model, tools=Shell().tools) as runtime:
            await respond(runtime, "list")
            decisions = (ApprovalDecision(1, approve=True), ApprovalDecision(2, approve=True))
            with pytest.raises(RequestRefused):
                await runtime.submit(a_request(decisions=decisions))
    assert sql("SELECT state FROM approvals") == [["pending"]]


async def test_an_expired_approval_is_refused(runtime_of, world):
    async with open_model([ASKS, "May I?"]) as model:
        async with runtime_of(model, tools=Shell().tools) as runtime:
            await respond(runtime, "list")
            world.now += 3601
            with pytest.raises(RequestRefused, match="has expired"):
                await runtime.submit(a_request(decisions=(ApprovalDecision(1, approve=True),)))


async def test_a_conversation_with_waiting_calls_can_be_compressed(runtime_of):
    call = ToolCall("call_rome", "weather", "{}")
    script = ["one", "two", "three", ModelAnswer(calls=[call]), "sunny"]
    compressor = DeterministicCompressor()
    async with open_model(script) as model, runtime_of(model, compressor=compressor) as runtime:
        for text in ("a " * 300, "b " * 300, "c " * 300):
            await respond(runtime, text)
        await respond(runtime, "weather?", options=TurnOptions(tools=(WEATHER,)))
        assert (await runtime.conversation(KEY).compress(keep_exchanges=1)).changed
        assert await runtime.api.waiting_calls(KEY) == [call]
        assert (await respond(runtime, outputs=(ToolOutput("call_rome", "sun"),))).text == "sunny"
