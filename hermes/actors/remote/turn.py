"""A turn that runs on another node, as far as its events have arrived."""

from __future__ import annotations

from hermes.actors.remote.frames import Ended, Item
from hermes.actors.remote.items import Items, size_of
from hermes.events import RuntimeEvent, Steered, TurnStarted
from hermes.messages import TurnProgress
from hermes.transcript.progress import progress_of, said_so_far, text_so_far

MAX_SIZE = 4 * 1024 * 1024
"""About how many bytes of its events are kept, for listeners that join later."""


class RemoteTurn:
    """What was published of a running turn on this node."""

    def __init__(self, first: Item, started: TurnStarted, started_at: float) -> None:
        self.started = started
        self.started_at = started_at
        self.inbox_ids: tuple[int, ...] = started.inbox_ids
        """The messages that it answers."""
        self._items = Items([first])
        self._size = 0

    @property
    def turn_id(self) -> int:
        """The id of the turn."""
        return self.started.turn_id

    @property
    def items(self) -> list[Item] | None:
        """What was published since the start, in its shortest form; None if that is too much."""
        return [*self._items.take()] if self._size <= MAX_SIZE else None

    def add(self, item: Item) -> None:
        """Note an event that was published."""
        if isinstance(item.event, Steered):
            self.inbox_ids += item.event.inbox_ids
        self._size += size_of(item)
        if self._size <= MAX_SIZE:
            self._items.add(item)
        else:
            self._items.clear()

    @property
    def published_events(self) -> list[RuntimeEvent]:
        """The events after the start, in order; none if they were too many."""
        return [item.event for item in (self.items or ())[1:] if not isinstance(item.event, Ended)]

    @property
    def published_text(self) -> str:
        """The text of the answer, as far as it is known."""
        return text_so_far(self.published_events)

    @property
    def said(self) -> list[RuntimeEvent]:
        """What a new listener has to know."""
        return said_so_far(self.started, self.published_events)

    @property
    def progress(self) -> TurnProgress:
        """What was published so far."""
        return progress_of(self.started, self.started_at, self.inbox_ids, self.published_events)
