"""What waits to be shown, in order: a slow screen holds up neither events nor the runtime."""

from __future__ import annotations

from collections import deque

import attrs
import trio
from msgspec.structs import replace

from hermes.events import Envelope, TextDelta
from hermes.messages import OutboxRow

JOINED = 4096
"""Characters that are put together at most, so that much text is not copied again and again."""


@attrs.frozen
class Hole:
    """Pieces of the running answer are missing from here on."""


@attrs.define(eq=False)
class WaitingRow:
    """A row, and who waits until it was shown; `shown` is False where the chat ended before."""

    row: OutboxRow
    over: trio.Event = attrs.Factory(trio.Event)
    shown: bool = False

    def end(self, *, shown: bool) -> None:
        """Wake who waits."""
        self.shown = shown
        self.over.set()


Item = Envelope | Hole | WaitingRow


class Queue:
    """Filled without a wait; pieces of an answer that wait are put together."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._news = trio.Event()
        self._lost = 0
        self._closed = False

    def add(self, envelope: Envelope, lost: int) -> None:
        """An event; `lost` counts those that were not heard: some before it, some after it."""
        holes = [Hole()] if lost != self._lost else []
        self._lost = lost
        self._items += holes
        last = self._items[-1] if self._items else None
        if isinstance(last, Envelope) and (joined := _joined(last, envelope)) is not None:
            self._items[-1] = joined
        else:
            self._items.append(envelope)
        self._items += holes  # again: it may be the one that begins the answer
        self._news.set()

    def add_row(self, row: OutboxRow) -> WaitingRow:
        """A row, which comes after all events that were added."""
        waiting = WaitingRow(row)
        self._items.append(waiting)
        self._news.set()
        return waiting

    async def take(self) -> Item | None:
        """The next one; None where there will be no more."""
        while not self._items:
            if self._closed:
                return None
            self._news = trio.Event()
            await self._news.wait()
        return self._items.popleft()

    def close(self) -> None:
        """Nothing more will be added but rows, until the last is taken."""
        self._closed = True
        self._news.set()

    def give_up(self) -> None:
        """Nobody takes any more: rows go back to who waits for them."""
        for item in self._items:
            if isinstance(item, WaitingRow):
                item.end(shown=False)
        self._items.clear()


def _joined(first: Envelope, second: Envelope) -> Envelope | None:
    one, two = first.event, second.event
    if not (isinstance(one, TextDelta) and isinstance(two, TextDelta)):
        return None
    if first.turn_id != second.turn_id or len(one.text) > JOINED:
        return None
    return replace(first, event=TextDelta(one.text + two.text))
