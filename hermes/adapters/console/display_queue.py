"""Queue of events and outbox rows to show: a slow screen delays neither events nor the runtime."""

from __future__ import annotations

from collections import deque
from typing import TypeGuard

import attrs
import trio
from msgspec.structs import replace

from hermes.background import set_event
from hermes.events import ApprovalAsked, Envelope, TextDelta
from hermes.messages import OutboxRow

MAX_MERGED = 4096
"""A waiting delta longer than this is not extended, so that long texts are not copied often."""


@attrs.frozen
class Gap:
    """Deltas of the running answer are missing from here on."""


@attrs.define(eq=False)
class QueuedRow:
    """An outbox row whose sender waits for `done`; not `shown` if the chat ended before."""

    row: OutboxRow
    done: trio.Event = attrs.Factory(trio.Event)
    shown: bool = False

    def finish(self, *, shown: bool) -> None:
        """Wake the sender."""
        self.shown = shown
        set_event(self.done)


Item = Envelope | Gap | QueuedRow


class DisplayQueue:
    """Unbounded queue; adjacent deltas of one turn are merged while they wait."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._arrived = trio.Event()
        self._lost = 0
        self._closed = False

    def put_event(self, envelope: Envelope, lost: int) -> None:
        """Add an event; `lost` is how many events the subscription has dropped so far.

        The dropped events may have been before or after this one, so a gap goes on both sides.
        """
        gaps = [Gap()] if lost != self._lost else []
        self._lost = lost
        self._items += gaps
        last = self._items[-1] if self._items else None
        if isinstance(last, Envelope) and (merged := _merged(last, envelope)) is not None:
            self._items[-1] = merged
        else:
            self._items.append(envelope)
        self._items += gaps  # again, because this event may be the first one of the answer
        set_event(self._arrived)

    def put_row(self, row: OutboxRow) -> QueuedRow:
        """Add a row behind everything that is in the queue."""
        queued = QueuedRow(row)
        self._items.append(queued)
        set_event(self._arrived)
        return queued

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be shown."""
        return not self._items

    async def get(self) -> Item | None:
        """Return the next item; None if the queue is closed and empty."""
        while not self._items:
            if self._closed:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._items.popleft()

    async def get_question(self) -> QueuedRow | None:
        """Return the next row that asks for an approval, before the items in front of it.

        Returns None if the queue is closed.
        """
        while not (rows := [item for item in self._items if _is_question(item)]):
            if self._closed:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        self._items.remove(rows[0])
        return rows[0]

    def take_asked(self, number: object) -> Envelope | None:
        """Return the event that asks for this approval, if it is in the queue, and remove it."""
        events = [item for item in self._items if isinstance(item, Envelope)]
        for each in events:
            if isinstance(each.event, ApprovalAsked) and each.event.approval.approval_id == number:
                self._items.remove(each)
                return each
        return None

    def close(self) -> None:
        """No more events will come; rows are accepted until the last item is taken."""
        self._closed = True
        set_event(self._arrived)

    def abandon(self) -> None:
        """Drop all items, and notify the senders of rows that theirs were not shown."""
        for item in self._items:
            if isinstance(item, QueuedRow):
                item.finish(shown=False)
        self._items.clear()


def _is_question(item: Item) -> TypeGuard[QueuedRow]:
    return isinstance(item, QueuedRow) and item.row.body.get("approval") is not None


def _merged(first: Envelope, second: Envelope) -> Envelope | None:
    """Return two deltas of one turn as one; None if they cannot be merged."""
    one, two = first.event, second.event
    if not (isinstance(one, TextDelta) and isinstance(two, TextDelta)):
        return None
    if first.turn_id != second.turn_id or len(one.text) > MAX_MERGED:
        return None
    return replace(first, event=TextDelta(one.text + two.text))
