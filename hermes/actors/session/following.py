"""What a follower learns when it joins: the open messages, and the running answer so far."""

from __future__ import annotations

from typing import TypeAlias

from hermes.actors.session.inbox import SessionInbox
from hermes.actors.session.running_turn import RunningTurn
from hermes.events import MessageWaiting, RuntimeEvent, Steered
from hermes.messages import InboxRow

Moment: TypeAlias = tuple[int | None, RuntimeEvent]
"""A turn, or None, and an event."""


def so_far(inbox: SessionInbox, turn: RunningTurn | None) -> list[Moment]:
    """Return what a follower would have received that was here from the start.

    These are the messages without an answer, and the start and the text of the running turn. Must
    be called in the same step as the follower's subscription, without a checkpoint between them.
    """
    rows = [*inbox.rows, *([] if turn is None else turn.open_rows)]
    waiting = {row.inbox_id: row for row in rows if inbox.knows(row.inbox_id)}
    found: list[Moment] = [
        (None, announcement(waiting[inbox_id]))
        for inbox_id in sorted(waiting)
        if not waiting[inbox_id].inbound.command
    ]
    if turn is not None and turn.started is not None and turn.reply is None and not turn.discarded:
        steered = [event for event in turn.events if isinstance(event, Steered)]
        said: list[RuntimeEvent] = [turn.started, *steered, *turn.published_deltas]
        found += [(turn.turn_id, event) for event in said]
    return found


def announcement(row: InboxRow) -> MessageWaiting:
    """Return the event that tells followers of a message."""
    return MessageWaiting(row.message, row.inbox_id)
