"""What waits for a session actor. Nothing here touches the store, and only `gather` waits.

The mailbox is a cache of the open inbox rows in the store. If it is full, a message is only noted
as `behind`, and the actor fetches it from the store later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import trio

from hermes.actors.kernel.mailbox import Mailbox, Request
from hermes.errors import ActorStopped, Overloaded
from hermes.messages import InboxRow

CAPACITY = 64
MAX_LINGER = 3.0
SUSPECT = 2
"""After this many crashes a message runs alone: it may be what crashes the process."""
Work: TypeAlias = InboxRow | Request[Any]
"""A message, or a request of the host."""
Item: TypeAlias = Work | None
"""What arrives in the mailbox: work, or a wake-up."""


class SessionInbox:
    """The queue of one actor: messages in inbox order, requests in the order of their arrival."""

    __slots__ = (
        "_attempts", "_known", "_merge", "_readers", "behind", "mailbox", "queue", "urgent",
    )  # fmt: skip

    def __init__(self, *, merge: bool = True) -> None:
        self._merge = merge
        self.mailbox: Mailbox[Item] = Mailbox(CAPACITY)
        self.queue: list[Work] = []  # an empty deque takes ten times as much memory
        self._known: set[int] | None = None  # created on first use: most actors are idle
        self._attempts: dict[int, int] | None = None  # of rows that were fetched from the store
        self.behind: bool = False
        """Whether the store has messages for this actor that are not in memory."""
        self._readers: tuple[set[int], ...] = ()  # those who read open rows from the store now
        self.urgent: InboxRow | None = None
        """A command that cancels everything queued before it."""

    # Arrival

    def put(self, item: Item) -> None:
        """Put an item into the mailbox and wake the actor.

        A message that finds no room there is fetched from the store later.
        """
        try:
            self.mailbox.send_nowait(item)
        except (Overloaded, MemoryError):
            if not isinstance(item, InboxRow):
                raise
            self.release([item.inbox_id])
            self.behind = True

    def wake(self, *, behind: bool) -> None:
        """Wake the actor; `behind` says that the store has messages for it."""
        self.behind = self.behind or behind
        with contextlib.suppress(ActorStopped, Overloaded):
            self.mailbox.send_nowait(None)

    def put_urgent(self, command: InboxRow) -> None:
        """Note a command that cancels what is queued; of two, the later cancels the earlier."""
        other = self.urgent or command
        first, last = sorted([command, other], key=_inbox_id)
        if first is not last:
            self.put_back([first])  # the queue is in inbox order
        self.urgent = last

    # Rows that are in memory, or being worked on

    def add(self, inbox_ids: Sequence[int]) -> None:
        """Remember that these rows are known."""
        self._known = {*(self._known or ()), *inbox_ids}

    def note_attempts(self, rows: Sequence[InboxRow]) -> None:
        """Remember how often the turns of these rows were started before."""
        known = {key: count for key, count in (self._attempts or {}).items() if self.knows(key)}
        self._attempts = known | {row.inbox_id: row.attempts for row in rows}

    def knows(self, inbox_id: int) -> bool:
        """Whether a row is known."""
        return self._known is not None and inbox_id in self._known

    def misses(self, number: int, last: int) -> bool:
        """Whether any of the `number` open rows is unknown; `last` is the id of the newest."""
        return not self.knows(last) or number > len(self._known or ())

    def release(self, inbox_ids: Sequence[int]) -> None:
        """Forget rows that are finished, or that will be fetched again."""
        self._known = (self._known or set()).difference(inbox_ids) or None
        for released in self._readers:
            released.update(inbox_ids)

    @contextlib.contextmanager
    def reading(self) -> Iterator[set[int]]:
        """Collect the rows that are released during the block.

        What the block has read from the store about these rows may be outdated.
        """
        released: set[int] = set()
        self._readers = (*self._readers, released)
        try:
            yield released
        finally:
            self._readers = tuple(each for each in self._readers if each is not released)

    # Work

    def collect(self, taken: Iterable[Item] = ()) -> None:
        """Move what was taken and what has arrived to the queue, without wake-ups."""
        arrived = (*taken, *self.mailbox.take_nowait())
        self.queue.extend([item for item in arrived if item is not None])

    def take_urgent(self) -> tuple[InboxRow, list[InboxRow]]:
        """Take the urgent command and the messages it cancels: all that came before it."""
        assert self.urgent is not None
        command, self.urgent = self.urgent, None
        cancelled = [row for row in self.queue if _is_before(row, command)]
        self.queue = [item for item in self.queue if not _is_before(item, command)]
        return command, [row for row in cancelled if isinstance(row, InboxRow)]

    def take_turn(self) -> list[InboxRow]:
        """Take the messages of the next turn."""
        rows = self.next_turn()
        del self.queue[: len(rows)]
        return rows

    def next_turn(self) -> list[InboxRow]:
        """Return the messages that the next turn will take."""
        self.collect()
        return self.first_turn(self.queue)

    def first_turn(self, items: Iterable[Work]) -> list[InboxRow]:
        """Return the messages of the first turn: those up to the next command or request.

        If messages are not merged, it is the first one, with the parts that it waits for. Messages
        whose turns have crashed twice run singly, so that one of them does not stop the others.
        """
        rows: list[InboxRow] = []
        for item in items:
            if not isinstance(item, InboxRow) or item.inbound.command:
                break
            if rows and not self._merges(rows[-1], item):
                break
            rows.append(item)
        return rows

    def _merges(self, row: InboxRow, later: InboxRow) -> bool:
        """Whether two messages share a turn; not if turns with one of them keep crashing.

        The request of an API client has a turn of its own.
        """
        requested = row.inbound.request is not None or later.inbound.request is not None
        together = not requested and (self._merge or row.inbound.linger > 0)
        return together and max(row.attempts, later.attempts) < SUSPECT

    def remove(self, inbox_id: int) -> InboxRow | None:
        """Remove a message that waits; None if it does not. Any task may call this."""
        for item in (*self.queue, *self.mailbox):
            if isinstance(item, InboxRow) and item.inbox_id == inbox_id:
                if item in self.queue:
                    self.queue.remove(item)
                else:
                    self.mailbox.remove(item, None)
                return item
        return None

    def put_back(self, rows: Sequence[InboxRow]) -> None:
        """Queue messages again, each right behind all that came before it."""
        later: list[Work] = []
        for row in reversed(rows):
            while self.queue and not _is_before(self.queue[-1], row):
                later.append(self.queue.pop())
            later.append(row)
        self.queue.extend(reversed(later))

    def restore_order(self, inbox_id: int) -> None:
        """Move a message that waits behind later ones to its place in inbox order."""
        if any(row.inbox_id > inbox_id for row in self.rows):
            row = self.remove(inbox_id)
            if row is not None:
                self.collect()
                self.put_back([row])
                self.wake(behind=False)  # the reader may be on its way to the mailbox

    # State

    @property
    def known(self) -> frozenset[int]:
        """The rows that are in memory or being worked on."""
        return frozenset(self._known or ())

    @property
    def earlier_attempts(self) -> dict[int, int]:
        """The attempts of each row, without those of this actor; may include closed rows."""
        return dict.fromkeys(self._known or (), 0) | (self._attempts or {})

    @property
    def idle(self) -> bool:
        """Whether nothing waits and the actor has read everything."""
        return self.mailbox.parked and not self._known and not self.behind

    @property
    def waiting(self) -> int:
        """How many messages in memory wait for their turn."""
        return sum(isinstance(item, InboxRow) for item in (*self.queue, *self.mailbox))

    @property
    def rows(self) -> list[InboxRow]:
        """The messages in memory that wait for their turn."""
        return [item for item in (*self.queue, *self.mailbox) if isinstance(item, InboxRow)]


async def gather(inbox: SessionInbox, row: InboxRow) -> bool:
    """Wait for messages that belong to this one; False if something else comes first.

    All of them are on disk: after a crash they are found together.
    """
    started = trio.current_time()
    until = started + row.inbound.linger
    while trio.current_time() < until:
        fresh: list[Item] = []
        with trio.move_on_at(until):
            fresh = await inbox.mailbox.take()
            if not fresh:
                break  # closed: nothing more will arrive
        inbox.collect(fresh)
        if inbox.urgent is not None or inbox.behind:
            return False
        last = next((item for item in reversed(fresh) if item is not None), row)
        if not isinstance(last, InboxRow) or last.inbound.command:
            break
        if fresh:
            until = min(started + MAX_LINGER, trio.current_time() + last.inbound.linger)
    return inbox.queue[:1] == [row]  # unless it was withdrawn


def _is_before(item: Item, row: InboxRow) -> bool:
    return isinstance(item, InboxRow) and item.inbox_id < row.inbox_id


def _inbox_id(row: InboxRow) -> int:
    return row.inbox_id
