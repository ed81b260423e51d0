"""Turns outside of a runtime."""

from __future__ import annotations

from hermes import Inbound, Source, ToolCall
from hermes.actors.session.running_turn import RunningTurn
from hermes.context import TurnContext
from hermes.events import ToolStarted
from hermes.messages import InboxRow


def running_turn(*messages, platform="embedded", session="s", turn_id=7):
    """A turn without a store, whose input are these messages."""
    mail = InboxRow(turn_id, Inbound("k", "e", "hi", Source(platform)), 0, 0.0)
    context = TurnContext("k", session, turn_id)
    return RunningTurn(context, [mail], messages or [mail.message], lambda event: None)


def steer(turn, *texts):
    """Send messages into a running turn."""
    for number, text in enumerate(texts):
        turn.steer(InboxRow(100 + number, Inbound("k", f"s{number}", text), 0, 0.0))


def tool_starts(*ids):
    """The events of tool calls that start, by call id."""
    return [ToolStarted(ToolCall(id_, f"tool-{id_}")) for id_ in ids]
