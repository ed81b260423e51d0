"""Events and replies as JSON: what is written is read back as the same object."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from hermes import Message, Reply, ToolCall, Usage
from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    Envelope,
    MessageAccepted,
    MessagePosted,
    MessageWaiting,
    Notice,
    ReasoningDelta,
    Retrying,
    RuntimeEvent,
    SessionMoved,
    Steered,
    TextDelta,
    TitleChanged,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Approval, StoredMessage

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
REPLY = Reply(
    text="yes",
    session_id="s",
    turn_id=7,
    usage=(Usage(model="m"),),
    data={"a": [1, None, "x"]},
    metadata={"tenant": "acme"},
)
EVENTS = {
    "text_delta": TextDelta("a", restart=True),
    "reasoning_delta": ReasoningDelta("b"),
    "assistant_message": AssistantMessage(Message("assistant", tool_calls=(ToolCall("1", "t"),))),
    "tool_started": ToolStarted(ToolCall("1", "t", '{"a": 1}')),
    "tool_finished": ToolFinished("1", "done"),
    "approval_asked": ApprovalAsked(Approval(1, "k", "k", "t", "{}", "pending", 0.0, 1.0)),
    "turn_started": TurnStarted(7, "s", "cold", (7, 8), 0.5, {"trace": 1}),
    "retrying": Retrying(2.0, "soon"),
    "steered": Steered(Message("user", "d"), (9,)),
    "notice": Notice("e"),
    "session_moved": SessionMoved(None, "s", "session_reset"),
    "title_changed": TitleChanged("s", "f"),
    "message_waiting": MessageWaiting(Message("user", "h"), 9),
    "message_accepted": MessageAccepted("h", 9, "e", "console"),
    "message_posted": MessagePosted("s", StoredMessage(1, "assistant", "g", 2.0)),
    "turn_ended": TurnEnded(REPLY, (7,)),
}  # fmt: skip


def test_every_kind_of_event_is_here():
    assert {type(event) for event in EVENTS.values()} == set(get_args(RuntimeEvent))


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_has_a_type_and_is_read_back(name):
    envelope = Envelope(1, "k", 7, EVENTS[name])
    line = msgspec.json.encode(envelope)
    assert msgspec.json.decode(line)["event"]["type"] == name
    assert msgspec.json.decode(line, type=Envelope) == envelope


@given(TEXT)
def test_a_reply_is_read_back(text):
    reply = msgspec.structs.replace(REPLY, text=text)
    line = msgspec.json.encode(reply)
    assert msgspec.json.decode(line)["type"] == "reply"
    assert msgspec.json.decode(line, type=Reply) == reply
