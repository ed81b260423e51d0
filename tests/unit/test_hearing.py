"""Tries of a model that break off: what is told of them, and what is kept."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from hermes import Inbound
from hermes.actors.session.running_turn import Mail, RunningTurn, rows_of
from hermes.agents.chat import ONCE_MORE, _Hearing
from hermes.agents.providers.base import Reasoning, Text
from hermes.context import TurnContext
from hermes.events import AssistantMessage, Steered, TextDelta, ToolFinished, ToolStarted
from hermes.messages import Message, ToolCall

BEGUN = [
    ToolStarted(ToolCall("c1", "look", "{}")),
    ToolFinished("c1", "seen"),
]
texts = st.text("ab", max_size=6)
tries = st.lists(st.lists(texts, max_size=4), min_size=1, max_size=5)


def running():
    mail = Mail(7, Inbound("k", "e", "one"))
    return RunningTurn(TurnContext("k", "s", 7), [mail], [mail.message], lambda event: None)


def last_shown(tries):
    """What stands there at last, in one piece."""
    shown = ""
    for each in map("".join, tries):
        if not shown.startswith(each):
            shown = each
    return shown


@settings(max_examples=300)
@given(tries, st.booleans(), st.booleans())
def test_what_is_kept_is_what_was_shown_last_in_one_piece(tries, after_a_tool, thinks):
    turn = running()
    if after_a_tool:
        turn.emit(TextDelta("before"))
        for event in BEGUN:
            turn.emit(event)
    hearing = _Hearing(turn)
    for pieces in tries:
        hearing.start()
        if thinks:
            hearing.hear(Reasoning("hm"))
        for piece in pieces:
            hearing.hear(Text(piece))
    kept = [row.content for row in rows_of(turn.log, None) if row.role == "assistant"]
    wanted = last_shown(tries)
    assert kept == ["before"] * after_a_tool + [wanted] * bool(wanted)
    assert turn.said.endswith(wanted), "and people have seen it"
    assert ONCE_MORE not in "".join(kept)


def test_what_was_asked_meanwhile_and_the_message_itself_stay():
    """Only the text of the message that is put together begins anew."""
    asked = Message("user", "and?")
    said = Message("assistant", "good", tool_calls=(ToolCall("c1", "look", "{}"),))
    log = [
        TextDelta("ba"),
        Steered(asked),
        TextDelta("bad"),
        TextDelta(ONCE_MORE, restart=True),
        TextDelta("good"),
        AssistantMessage(said),
        *BEGUN,
    ]
    first, second, third, result = rows_of(log, None)
    assert (first.content, second, third, result.content) == ("ba", asked, said, "seen")
