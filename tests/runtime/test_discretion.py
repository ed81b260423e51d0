"""What is told while a turn runs has no secrets in it: pieces, thoughts, calls, what was said."""

from __future__ import annotations

import pytest
import trio

from hermes import Inbound
from hermes.actors.session.running_turn import Mail, RunningTurn
from hermes.context import TurnContext
from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    ReasoningDelta,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Approval, Message, RunningTurnInfo, ToolCall
from hermes.redaction.values import HIDDEN, Redactor
from hermes.testing import ScriptedAgent, forever
from tests.runtime.test_recovery import SECONDS, inline_only

SECRET = "hush-hush-7"
KNOWN = Redactor([SECRET]).known
HALVES = [TextDelta("it is hush-"), TextDelta("hush-7!")]
OFF_AND_ON = [
    TextDelta("it is hush-"),
    ReasoningDelta("say hush-hush"),
    TextDelta("hush-7!"),
    ReasoningDelta("-7?"),
]
CALL = ToolCall("c1", "look", f'{{"key": "{SECRET}"}}')


def agents(*script):
    agent = ScriptedAgent(script)
    return lambda _: agent


async def told(start, steps, redact=KNOWN):
    """What is told of a turn between its beginning and its end."""
    with trio.fail_after(SECONDS):
        async with start(agent=agents(steps), redact=redact) as runtime:
            events = [event async for event in runtime.stream("k", "one")]
    assert isinstance(events[0], TurnStarted)
    assert isinstance(events[-1], TurnEnded)
    return events[1:-1]


def joined(events, kind):
    return "".join(event.text for event in events if isinstance(event, kind))


async def test_a_secret_in_two_pieces_is_not_told(start):
    events = await told(start, [*HALVES, "done"])
    assert events == [TextDelta("it is "), TextDelta(f"{HIDDEN}!")]


async def test_thoughts_and_text_are_two_texts_that_come_together(start):
    events = await told(start, [*OFF_AND_ON, "done"])
    assert joined(events, TextDelta) == f"it is {HIDDEN}!"
    assert joined(events, ReasoningDelta) == f"say {HIDDEN}?"


async def test_what_was_held_back_is_told_before_the_turn_ends(start):
    events = await told(start, [TextDelta("hush"), ReasoningDelta("hush-"), "done"])
    assert joined(events, TextDelta) == "hush"
    assert joined(events, ReasoningDelta) == "hush-"


async def test_what_was_held_back_is_told_when_the_agent_fails(start):
    events = await told(start, [TextDelta("hush"), RuntimeError("broken")])
    assert events == [TextDelta("hush")]


async def test_what_was_held_back_is_told_before_the_answer_begins_anew(start):
    restart = TextDelta(f" Once more, {SECRET}: ", restart=True)
    events = await told(start, [TextDelta("hush-"), restart, TextDelta("hush-7"), "done"])
    assert events == [
        TextDelta("hush-"),
        TextDelta(f" Once more, {HIDDEN}: ", restart=True),
        TextDelta("hush-7"),
    ]


async def test_what_was_held_back_comes_before_the_tool_that_ends_the_text(start):
    steps = [TextDelta("hush"), ToolStarted(ToolCall("c1", "look", "{}"))]
    events = await told(start, [*steps, ToolFinished("c1", "x"), TextDelta("h"), "done"])
    assert events == [*steps, ToolFinished("c1", "x"), TextDelta("h")]


async def test_calls_and_their_results_are_told_without_secrets(start):
    asked = Approval(1, "k", "k", "look", CALL.arguments, "asked", 0.0, 9.0)
    said = Message("assistant", f"I look for {SECRET}", tool_calls=(CALL,), reasoning=SECRET)
    steps = [
        AssistantMessage(said),
        ToolStarted(CALL),
        ApprovalAsked(asked),
        ToolFinished("c1", f"={SECRET}"),
    ]
    events = await told(start, [*steps, "done"])
    assert [type(event) for event in events] == [type(event) for event in steps]
    assert SECRET not in repr(events)
    assert repr(events).count(HIDDEN) == 6
    assert events[-1] == ToolFinished("c1", f"={HIDDEN}")


def test_what_was_held_back_comes_before_what_the_user_says_into_it():
    turn = running(KNOWN, heard := [])
    turn.emit(TextDelta("hush"))
    turn.steer(Mail(8, Inbound("k", "f", f"say {SECRET}")))
    [said] = turn.steered()
    assert heard == [TextDelta("hush"), Steered(said, (8,))]
    assert said.content == f"say {SECRET}", "what users say is not ours to change"


async def test_without_anything_to_hide_events_are_told_as_they_are(start):
    steps = [*HALVES, ToolStarted(CALL)]
    events = await told(start, [*steps, "done"], redact=None)
    assert all(a is b for a, b in zip(events, steps, strict=True))


async def test_with_a_plain_function_pieces_come_together_when_the_text_is_over(start):
    events = await told(start, [*HALVES, "done"], lambda text: text.replace(SECRET, "…"))
    assert events == [TextDelta("it is …!")]


async def test_a_function_that_fails_ends_the_turn_and_nothing_else(start, caplog):
    def redact(text):
        if "!" in text:
            raise ValueError("not that")
        return text

    with trio.fail_after(SECONDS):
        async with start(agent=agents([*HALVES, "done"]), redact=redact) as runtime:
            events = [event async for event in runtime.stream("k", "one")]
            assert (await runtime.ask("k", "two")).text == "echo: two"
    assert joined(events[:-1], TextDelta) == ""
    assert "the end of a text was not told" in caplog.text


def test_a_function_that_fails_keeps_no_turn_from_beginning_anew(caplog):
    def redact(text):
        raise ValueError("nothing")

    turn = running(redact, heard := [])
    turn.close()
    turn.restart()
    assert (heard, caplog.text) == ([], ""), "there was nothing to hide"
    turn = running(redact, heard)
    turn.emit(TextDelta("x"))
    turn.restart()
    assert heard == []
    assert "the end of a text was not told" in caplog.text


async def test_what_a_running_turn_has_said_is_what_was_told_of_it(start):
    """Whoever joins hears the rest: nothing twice, and nothing missing."""
    steps = [*HALVES, TextDelta(" And hu"), forever()]
    with trio.fail_after(SECONDS):
        async with start(agent=agents(steps), redact=KNOWN) as runtime:
            with runtime.events() as events:
                receipt = await runtime.submit(Inbound("k", "e", "one"))
                heard = ""
                async for envelope in events:
                    if isinstance(envelope.event, TextDelta):
                        heard += envelope.event.text
                    if heard.endswith("And "):
                        break
                so_far = RunningTurnInfo(receipt.inbox_id, f"it is {HIDDEN}! And ")
                assert runtime.running_turns() == {"k": so_far}
                await runtime.interrupt("k")
                async for envelope in events:
                    if isinstance(envelope.event, TextDelta):
                        heard += envelope.event.text
                    if isinstance(envelope.event, TurnEnded):
                        break
    assert heard == f"it is {HIDDEN}! And hu"


@inline_only
@pytest.mark.parametrize(("first", "second"), [(1, 2), (4, 9), (5, 10), (10, 11), (0, 0)])
async def test_however_it_is_cut_what_is_told_is_what_is_kept(start, first, second):
    pieces = [SECRET[:first], SECRET[first:second], SECRET[second:]]
    steps = [*(TextDelta(f"{piece}") for piece in pieces), RuntimeError("broken")]
    with trio.fail_after(SECONDS):
        async with start(agent=agents(steps), redact=KNOWN) as runtime:
            events = [event async for event in runtime.stream("k", "one")]
            kept = [row.content for row in await runtime.history("k") if row.role == "assistant"]
    assert kept == [joined(events[1:-1], TextDelta)] == [HIDDEN]


def running(redact, heard):
    mail = Mail(7, Inbound("k", "e", "one"))
    return RunningTurn(
        TurnContext("k", "s", 7), [mail], [mail.message], heard.append, redact=redact
    )


def test_after_a_restart_the_text_begins_once_more():
    """An overflow runs the agent again; what was held back belongs to the first run."""
    turn = running(KNOWN, heard := [])
    turn.emit(TextDelta("hush-"))
    turn.restart()
    assert turn.said == ""
    turn.emit(TextDelta("hush-7 "))
    turn.close()
    assert heard == [TextDelta("hush-"), TextDelta("hush-7 ")]
    assert turn.said == "hush-7 "
