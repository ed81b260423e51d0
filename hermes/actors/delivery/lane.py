"""Sends the replies of one chat, one after the other, part by part.

The outcome of each attempt is stored before the next one. What the platform accepted is not sent
again; what it may have accepted is sent again and marked as recovered; what it did not accept is
simply sent again. A reply that waits for the platform to be ready does not count as in flight.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import attrs
import trio
from msgspec.structs import replace

from hermes.actors.delivery.split import split
from hermes.errors import HermesError, MessageRefused, RetryAfter, StoreFailed, Unsendable
from hermes.messages import OutboxRow
from hermes.protocols import Adapter, HasLimit, OutboxStore, SupportsReady
from hermes.retry import Backoff
from hermes.sanitize import scrub
from hermes.user_code import contained, leaf, loggable

log: logging.Logger = logging.getLogger(__name__)

MAX_ROWS = 100
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
MAX_RETRY_AFTER = 3600.0
"""However long a platform asks us to wait, it is tried again after this."""
MAX_REFUSALS = 10
"""With the delays between them, a message is refused for four minutes before it is given up."""
MAX_NOTE = 500

T = TypeVar("T")


class Lane:
    """Holds a bounded number of rows; others stay in the store until these are sent."""

    def __init__(
        self,
        name: str,
        adapter: Adapter,
        store: OutboxStore,
        on_sent: Callable[[int], None],
        redact: Callable[[str], str] = str,
    ) -> None:
        self._name = name
        self._adapter = adapter
        self._ready = adapter.ready if isinstance(adapter, SupportsReady) else None
        self._limit = adapter.limit if isinstance(adapter, HasLimit) else None
        self._store = store
        self._on_sent = on_sent
        self._redact = redact
        self._rows: deque[OutboxRow] = deque()
        self._newest = 0
        self._behind = False
        """Whether the store has rows of this lane that are not in memory."""
        self.paused_until: float = -math.inf
        self.changed: trio.Event = trio.Event()
        """Set when the lane pauses or ends."""

    def offer(self, row: OutboxRow) -> None:
        """Append a row. Never waits."""
        if row.outbox_id <= self._newest:
            return
        if self._behind or len(self._rows) >= MAX_ROWS:
            self._behind = True
        else:
            self._append(row)

    def _append(self, row: OutboxRow) -> None:
        self._rows.append(row)
        self._newest = row.outbox_id

    async def run(self) -> None:
        """Send everything. There is no checkpoint between the last look and the return."""
        while True:
            while self._rows:
                await self._deliver(self._rows.popleft())
            if not self._behind:
                return
            self._behind = False  # before the read: rows that arrive during it set it again
            for row in await until_stored(self._fetch):
                self._append(row)
            self._behind = self._behind or len(self._rows) >= MAX_ROWS

    def _fetch(self) -> Awaitable[list[OutboxRow]]:
        return self._store.pending_outbox(self._name, after=self._newest, limit=MAX_ROWS)

    async def _deliver(self, row: OutboxRow) -> None:
        """Send a row until the platform has all of it, or it is given up."""
        attempt = _DeliveryAttempt(row, self._split(row))
        while not attempt.complete:
            error = await self._try(attempt)
            if error is None:
                await self._accepted(attempt)
            elif isinstance(error, Unsendable):
                await self._close(attempt, error)
                return
            elif isinstance(error, MessageRefused) and attempt.is_last_refusal():
                await self._give_up(attempt, error)
                return
            else:
                await self._retry_later(attempt, error)
        self._on_sent(row.outbox_id)

    def _split(self, row: OutboxRow) -> Sequence[str]:
        text = row.body.get("text")
        return split(text, self._limit) if self._limit and isinstance(text, str) else ()

    async def _try(self, attempt: _DeliveryAttempt) -> BaseException | None:
        """Send one part. While it is in flight, its outcome is stored as unknown."""
        if attempt.row.state == "pending":
            early = None if self._ready is None else await _failure(self._ready, attempt)
            if early is not None:
                return early
            await until_stored(lambda: self._store.mark_sending([attempt.row.outbox_id]))
            attempt.started()
        return await _failure(self._adapter.send, attempt)

    async def _accepted(self, attempt: _DeliveryAttempt) -> None:
        attempt.accepted()
        if not attempt.complete:
            row = attempt.row
            await until_stored(lambda: self._store.mark_part(row.outbox_id, row.part))
            if self._ready is not None:  # it may take long, and the next part is not in flight
                await until_stored(lambda: self._store.mark_unsent([row.outbox_id]))
                attempt.not_accepted()

    async def _retry_later(self, attempt: _DeliveryAttempt, error: BaseException) -> None:
        """Store what is known about a failed attempt, and wait."""
        ids = [attempt.row.outbox_id]
        if attempt.row.state == "pending":
            pass  # it was not in flight, and that is what is stored
        elif isinstance(error, RetryAfter | MessageRefused):
            await until_stored(lambda: self._store.mark_unsent(ids))
            attempt.not_accepted()
        else:
            await until_stored(lambda: self._store.mark_unknown(ids))
            attempt.unknown()
        if isinstance(error, RetryAfter):
            delay = min(max(FIRST_DELAY, error.seconds), MAX_RETRY_AFTER)
        else:
            delay = attempt.backoff.next()
        expected = isinstance(error, HermesError)  # else it may be a bug in the adapter
        log.warning(
            "reply %d is sent again after %g s: %s", ids[0], delay, loggable(error),
            exc_info=None if expected else error,
        )  # fmt: skip
        await self._pause(delay)

    async def _give_up(self, attempt: _DeliveryAttempt, error: BaseException) -> None:
        note = attempt.note(self._redact(str(error)))
        log.error("reply %d is given up: %s", attempt.row.outbox_id, loggable(error))
        await until_stored(lambda: self._store.mark_dead([attempt.row.outbox_id], note))

    async def _pause(self, seconds: float) -> None:
        self.paused_until = trio.current_time() + seconds
        self.notify()
        await trio.sleep_until(self.paused_until)
        self.paused_until = -math.inf

    def notify(self) -> None:
        """Wake whoever waits for this lane."""
        self.changed.set()
        self.changed = trio.Event()

    async def _close(self, attempt: _DeliveryAttempt, gone: Unsendable) -> None:
        """The chat is gone: give up everything that waits; later replies are tried again."""
        first, note = attempt.row.outbox_id, attempt.note(self._redact(str(gone)))
        # From this row on: earlier rows were sent, even if that is not stored yet.
        dead = await until_stored(lambda: self._store.mark_lane_dead(self._name, note, since=first))
        log.warning("%d replies cannot be sent, from %d on", len(dead), first)
        given_up = set(dead)
        self._rows = deque(row for row in self._rows if row.outbox_id not in given_up)


@attrs.define
class _DeliveryAttempt:
    """A row being sent: how much of it the platform has, and how the attempts went."""

    row: OutboxRow
    texts: Sequence[str]
    """Its parts; empty if it is sent as it is."""
    backoff: Backoff = attrs.Factory(lambda: Backoff(FIRST_DELAY, LONGEST_DELAY))
    _refusals: int = 0

    @property
    def parts(self) -> int:
        return len(self.texts) or 1

    @property
    def complete(self) -> bool:
        """Whether the platform has all of it."""
        return self.row.part >= self.parts

    def message(self) -> OutboxRow:
        """Return what the adapter receives."""
        row = self.row
        if not self.texts:
            return row
        body = {**row.body, "text": self.texts[row.part]}
        return replace(row, body=body, parts=self.parts)

    def started(self) -> None:
        self.row = replace(self.row, state="sending", attempts=self.row.attempts + 1)

    def accepted(self) -> None:
        """Go on with the next part, which is a message of its own: attempts start over."""
        self.row = replace(self.row, part=self.row.part + 1, recovered=False)
        self.backoff.reset()
        self._refusals = 0

    def not_accepted(self) -> None:
        self.row = replace(self.row, state="pending")

    def unknown(self) -> None:
        self.row = replace(self.row, state="pending", recovered=True)

    def is_last_refusal(self) -> bool:
        """Count a refusal, and return whether there were enough."""
        self._refusals += 1
        return self._refusals >= MAX_REFUSALS

    def note(self, reason: str) -> str:
        """Return why it is given up, as the store keeps it."""
        text = scrub(reason[:MAX_NOTE])
        return text if self.parts == 1 else f"part {self.row.part + 1} of {self.parts}: {text}"


async def _failure(
    send: Callable[[OutboxRow], Awaitable[None]], attempt: _DeliveryAttempt
) -> BaseException | None:
    """Return what an adapter raises, if it does."""
    with contained() as caught:
        await send(attempt.message())
    return None if caught.error is None else leaf(caught.error)


async def until_stored(verb: Callable[[], Awaitable[T]]) -> T:
    """Call a store verb until it succeeds. Raises `StoreFailed` only."""
    while True:
        try:
            return await verb()
        except StoreFailed:
            raise
        except HermesError as error:
            log.warning("the outbox is delayed: %s", error)
            await trio.sleep(FIRST_DELAY)
