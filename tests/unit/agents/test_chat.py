"""Attempts that break off: what is emitted, and what is kept of them."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.agents.calls.deltas import DeltaRelay
from hermes.events import (
    AssistantMessage,
    ReasoningDelta,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import Message, ToolCall
from hermes.texts import ENGLISH
from hermes.transcript.rows import rows_from_events
from tests.support.examples import examples
from tests.support.turns import running_turn

TOOL_EVENTS = [
    ToolStarted(ToolCall("c1", "look", "{}")),
    ToolFinished("c1", "seen"),
]
texts = st.text("ab", max_size=6)
attempts = st.lists(st.lists(texts, max_size=4), min_size=1, max_size=5)


def final_text(attempts):
    """The text after the last restart, or all of it if the attempts agree."""
    final = ""
    for attempt in map("".join, attempts):
        if not final.startswith(attempt):
            final = attempt
    return final


@examples(300)
@given(attempts, st.booleans(), st.booleans())
def test_what_is_kept_is_what_was_shown_last_in_one_piece(attempts, after_a_tool, reasoning):
    turn = running_turn()
    if after_a_tool:
        turn.emit(TextDelta("before"))
        for event in TOOL_EVENTS:
            turn.emit(event)
    relay = DeltaRelay(turn)
    for deltas in attempts:
        relay.start_attempt()
        if reasoning:
            relay.feed(ReasoningDelta("hm"))
        for delta in deltas:
            relay.feed(TextDelta(delta))
    kept = [row.content for row in rows_from_events(turn.events, None) if row.role == "assistant"]
    final = final_text(attempts)
    assert kept == ["before"] * after_a_tool + [final] * bool(final)
    assert turn.published_text.endswith(final), "the user has seen it"
    assert ENGLISH.retrying not in "".join(kept)


def test_a_restart_keeps_steered_messages_and_the_complete_message():
    """Only the text of the message that is being assembled starts again."""
    question = Message("user", "and?")
    answer = Message("assistant", "good", tool_calls=(ToolCall("c1", "look", "{}"),))
    events = [
        TextDelta("ba"),
        Steered(question),
        TextDelta("bad"),
        TextDelta(ENGLISH.retrying, restart=True),
        TextDelta("good"),
        AssistantMessage(answer),
        *TOOL_EVENTS,
    ]
    first, second, third, result = rows_from_events(events, None)
    assert (first.content, second, third, result.content) == ("ba", question, answer, "seen")
