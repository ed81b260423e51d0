"""What a follower learns when it joins: the open messages, and the running answer so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress

from hermes.actors.event_bus import EventBus, Subscription
from hermes.actors.session.inbox import SessionInbox
from hermes.actors.session.running_turn import RunningTurn
from hermes.errors import ActorStopped, StoreFailed
from hermes.events import (
    Envelope,
    MessageAccepted,
    MessageWaiting,
    RuntimeEvent,
    TurnEnded,
)
from hermes.messages import InboxRow
from hermes.protocols import Store

PAGE = 100
"""How many open messages a follower reads from the store at once."""


class Follower(Subscription):
    """The events of one conversation, beginning with all of its open messages.

    An actor does not have all of them in memory, so the follower reads the others from the store,
    page by page, while it is being read. Each message is announced once.
    """

    def __init__(
        self, bus: EventBus, session_key: str, store: Store, waiting: Iterable[InboxRow]
    ) -> None:
        super().__init__(bus, session_key, announced=MessageWaiting)
        self._store = store
        self._session_key = session_key
        self._seq = bus.seq
        self._waiting = {row.inbox_id: announcement(row) for row in waiting}
        """Messages that the actor had in memory, and that are not in `_beginning` yet."""
        self._announced = set(self._waiting)
        """Open messages that are announced, or will be."""
        self._beginning: deque[Envelope] = deque()
        """The announcements that have been read from the store; they come before all events."""
        self._read_to: int | None = 0
        """The last open message that has been read from the store; None after the last page."""
        self._ended: set[int] | None = None
        """Messages that were answered while a page is being read."""

    def offer(self, envelope: Envelope) -> None:
        """Take an event of this conversation, unless it announces a message again."""
        if envelope.session_key != self._session_key:
            return
        match envelope.event:
            case MessageWaiting(_, inbox_id):
                if inbox_id in self._announced:
                    return
                self._announced.add(inbox_id)
            case TurnEnded(_, inbox_ids):
                self._announced.difference_update(inbox_ids)
                if self._ended is not None:
                    self._ended.update(inbox_ids)
        super().offer(envelope)

    async def __anext__(self) -> Envelope:
        while not self._beginning and self._read_to is not None:
            await self._read_page(self._read_to)
        return self._beginning.popleft() if self._beginning else await super().__anext__()

    def take_ready(self, *, before: tuple[type[RuntimeEvent], ...] = ()) -> list[Envelope]:
        """Return the events that have arrived, without waiting; only those before these types."""
        ready = list(self._beginning)
        self._beginning.clear()
        return ready if self._read_to is not None else ready + super().take_ready(before=before)

    async def _read_page(self, after: int) -> None:
        """Announce the next open messages; after `close`, only those that were in memory."""
        rows: list[InboxRow] = []
        self._ended = set()
        try:
            with suppress(ActorStopped, StoreFailed):  # then the subscription ends as well
                if not self._closed:
                    rows = await self._store.open_inbox(self._session_key, after=after, limit=PAGE)
        finally:
            known, self._ended = self._announced | self._ended, None
        fresh = [row for row in rows if row.inbox_id not in known and not row.inbound.command]
        self._waiting |= {row.inbox_id: announcement(row) for row in fresh}
        self._announced.update([row.inbox_id for row in fresh])
        self._read_to = rows[-1].inbox_id if len(rows) == PAGE else None
        for inbox_id in sorted(self._waiting):
            if self._read_to is None or inbox_id <= self._read_to:
                event = self._waiting.pop(inbox_id)
                self._beginning.append(Envelope(self._seq, self._session_key, None, event))


def open_rows(inbox: SessionInbox, turn: RunningTurn | None) -> list[InboxRow]:
    """Return the messages in memory that have no answer, without commands.

    A follower must be added in the same step, without a checkpoint after this call.
    """
    rows = [*inbox.rows, *([] if turn is None else turn.open_rows)]
    return [row for row in rows if inbox.knows(row.inbox_id) and not row.inbound.command]


def announce(bus: EventBus, session_key: str, row: InboxRow) -> None:
    """Tell subscribers of a message or command; a follower ignores what it knows already."""
    for event in announcements(row):
        bus.announce(session_key, event)


def announcements(row: InboxRow) -> Iterator[MessageWaiting | MessageAccepted]:
    """Yield the events that tell subscribers of a message or command."""
    inbound = row.inbound
    if not inbound.command:
        yield announcement(row)
    text = inbound.text if inbound.decided_call is None else ""
    yield MessageAccepted(
        text, row.inbox_id, inbound.event_id, inbound.source.platform, inbound.decided_call,
        inbound.parts or (),
    )  # fmt: skip


def announcement(row: InboxRow) -> MessageWaiting:
    """Return the event that tells followers of a message."""
    return MessageWaiting(row.message, row.inbox_id)


async def count_waiting(store: Store, session_key: str, inbox: SessionInbox) -> int:
    """Return how many messages wait for their turn, in memory or only in the store."""
    unknown: set[int] = set()
    after: int | None = 0
    while after is not None:
        known = inbox.known  # a message may be answered while the page is being read
        page = await store.open_inbox(session_key, after=after, limit=PAGE)
        unknown.update([row.inbox_id for row in page if row.inbox_id not in known])
        after = page[-1].inbox_id if len(page) == PAGE else None
    return inbox.waiting + sum(not inbox.knows(inbox_id) for inbox_id in unknown)
