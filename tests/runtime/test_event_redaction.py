"""Events of a running turn contain no secrets: deltas, reasoning, tool calls, the answer so far."""

from __future__ import annotations

import pytest
import trio

from hermes import Inbound, TurnResult
from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Approval, Message, RunningTurnInfo, ToolCall
from hermes.redaction import REDACTED, ValueRedactor
from hermes.testing import ScriptedAgent, forever
from tests.support.runtime import SECONDS, with_threads

SECRET = "hush-hush-7"


REDACT = ValueRedactor([SECRET])


HALVES = [TextDelta("it is hush-"), TextDelta("hush-7!")]


INTERLEAVED = [
    TextDelta("it is hush-"),
    ReasoningDelta("say hush-hush"),
    TextDelta("hush-7!"),
    ReasoningDelta("-7?"),
]


CALL = ToolCall("c1", "look", f'{{"key": "{SECRET}"}}')


async def events_of(start, steps, redact=REDACT):
    """Return the events of a turn between its start and its end."""
    with trio.fail_after(SECONDS):
        async with start(agent=ScriptedAgent([steps]), redact=redact) as runtime:
            async with runtime.stream("k", "one") as stream:
                events = [event async for event in stream]
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], TurnEnded)
    return events[1:-1]


def joined(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))


async def test_a_secret_in_two_deltas_is_redacted(start):
    events = await events_of(start, [*HALVES, "done"])
    assert events == [TextDelta("it is "), TextDelta(f"{REDACTED}!")]


async def test_reasoning_and_text_are_two_interleaved_texts(start):
    events = await events_of(start, [*INTERLEAVED, "done"])
    assert joined(events, TextDelta) == f"it is {REDACTED}!"
    assert joined(events, ReasoningDelta) == f"say {REDACTED}?"


async def test_withheld_text_is_published_before_the_turn_ends(start):
    events = await events_of(start, [TextDelta("hush"), ReasoningDelta("hush-"), "done"])
    assert joined(events, TextDelta) == "hush"
    assert joined(events, ReasoningDelta) == "hush-"


async def test_withheld_text_is_published_when_the_agent_fails(start):
    events = await events_of(start, [TextDelta("hush"), RuntimeError("broken")])
    assert events == [TextDelta("hush")]


async def test_withheld_text_is_published_before_the_answer_restarts(start):
    restart = TextDelta(f" Once more, {SECRET}: ", restart=True)
    events = await events_of(start, [TextDelta("hush-"), restart, TextDelta("hush-7"), "done"])
    assert events == [
        TextDelta("hush-"),
        TextDelta(f" Once more, {REDACTED}: ", restart=True),
        TextDelta("hush-7"),
    ]


async def test_withheld_text_is_published_before_the_tool_call_that_ends_it(start):
    steps = [TextDelta("hush"), ToolStarted(ToolCall("c1", "look", "{}"))]
    events = await events_of(start, [*steps, ToolFinished("c1", "x"), TextDelta("h"), "done"])
    assert events == [*steps, ToolFinished("c1", "x"), TextDelta("h")]


async def test_tool_calls_and_results_are_redacted(start):
    asked = Approval(1, "k", "k", "look", CALL.arguments, "asked", 0.0, 9.0)
    said = Message("assistant", f"I look for {SECRET}", tool_calls=(CALL,), reasoning=SECRET)
    steps = [
        AssistantMessage(said),
        ToolStarted(CALL),
        ApprovalAsked(asked),
        Retrying(1.0, f"{SECRET} again"),
        ToolFinished("c1", f"={SECRET}"),
    ]
    events = await events_of(start, [*steps, "done"])
    assert [type(event) for event in events] == [type(event) for event in steps]
    assert SECRET not in repr(events)
    assert repr(events).count(REDACTED) == 7
    assert events[-1] == ToolFinished("c1", f"={REDACTED}")


async def test_the_questions_of_a_reply_are_redacted(start):
    asked = Approval(1, "k", "k", "look", CALL.arguments, "pending", 0.0, 9.0)
    agent = ScriptedAgent([[ApprovalAsked(asked), "done"]])
    async with start(agent=agent, redact=REDACT) as runtime:
        reply = await runtime.ask("k", "one")
    assert reply.text.startswith("May `look` run with this?")
    assert [call.arguments for call in reply.approvals] == [
        CALL.arguments.replace(SECRET, REDACTED)
    ]
    assert SECRET not in reply.text


async def test_without_a_redactor_events_are_published_unchanged(start):
    steps = [*HALVES, ToolStarted(CALL)]
    events = await events_of(start, [*steps, "done"], redact=None)
    assert all(a is b for a, b in zip(events, steps, strict=True))


async def test_with_a_plain_function_deltas_are_published_when_the_text_ends(start):
    events = await events_of(start, [*HALVES, "done"], lambda text: text.replace(SECRET, "…"))
    assert events == [TextDelta("it is …!")]


async def test_a_failing_redactor_fails_the_turn_and_nothing_else(start, caplog):
    def redact(text):
        if "!" in text:
            raise ValueError("not that")
        return text

    with trio.fail_after(SECONDS):
        async with start(agent=ScriptedAgent([[*HALVES, "done"]]), redact=redact) as runtime:
            async with runtime.stream("k", "one") as stream:
                events = [event async for event in stream]
            assert (await runtime.ask("k", "two")).text == "echo: two"
    assert joined(events[:-1], TextDelta) == ""
    assert "the end of a text was not published" in caplog.text


@with_threads
async def test_the_answer_so_far_is_what_was_published(start):
    """A late subscriber gets the rest: nothing twice, and nothing missing."""
    steps = [*HALVES, TextDelta(" And hu"), forever()]
    with trio.fail_after(SECONDS):
        async with start(agent=ScriptedAgent([steps]), redact=REDACT) as runtime:
            with runtime.subscribe() as events:
                receipt = await runtime.submit(Inbound("k", "e", "one"))
                published = ""
                async for envelope in events:
                    if isinstance(envelope.event, TextDelta):
                        published += envelope.event.text
                    if published.endswith("And "):
                        break
                so_far = RunningTurnInfo(receipt.inbox_id, f"it is {REDACTED}! And ")
                assert runtime.admin.running_turns() == {"k": so_far}
                await runtime.conversation("k").interrupt()
                async for envelope in events:
                    if isinstance(envelope.event, TextDelta):
                        published += envelope.event.text
                    if isinstance(envelope.event, TurnEnded):
                        break
    assert published == f"it is {REDACTED}! And hu"


@pytest.mark.parametrize(("first", "second"), [(1, 2), (4, 9), (5, 10), (10, 11), (0, 0)])
async def test_the_published_text_is_the_stored_text_however_it_is_split(start, first, second):
    pieces = [SECRET[:first], SECRET[first:second], SECRET[second:]]
    steps = [*(TextDelta(f"{piece}") for piece in pieces), RuntimeError("broken")]
    with trio.fail_after(SECONDS):
        async with start(agent=ScriptedAgent([steps]), redact=REDACT) as runtime:
            async with runtime.stream("k", "one") as stream:
                events = [event async for event in stream]
            kept = [
                row.content
                for row in await runtime.conversation("k").history()
                if row.role == "assistant"
            ]
    assert kept == [joined(events[1:-1], TextDelta)] == [REDACTED]


async def test_the_structured_result_contains_no_secrets(start):
    async def agent(turn):
        return TurnResult(text="ok", data={"a": [SECRET, 1], SECRET: None})

    async with start(agent=agent, redact=REDACT) as runtime:
        reply = await runtime.ask("k", "one")
    assert reply.data == {"a": [REDACTED, 1], REDACTED: None}
