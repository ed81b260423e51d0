"""One chat: its replies, one after the other, part after part, until the platform has them.

What becomes of a try is written down before the next: what the platform took is not sent again,
what it may have taken is sent again as recovered, what it surely did not take is simply sent again.
A reply that still waits for the platform to be ready counts as not begun.
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

from hermes import user_code
from hermes.actors.delivery.split import split
from hermes.errors import HermesError, MessageRefused, RetryAfter, StoreFailed, Unsendable
from hermes.messages import OutboxRow
from hermes.protocols import Adapter, Ready, Store

log = logging.getLogger(__name__)

LANE_ROWS = 100
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
LONGEST_WAIT = 3600.0
"""However long a platform wants to be left alone, it is asked again after this."""
REFUSALS = 10
"""With the pauses between them, a message is refused for four minutes before it is given up."""

NOTE_CHARACTERS = 500

T = TypeVar("T")


class Lane:
    """Holds a bounded number of rows; the others stay in the store until these are sent."""

    def __init__(
        self,
        name: str,
        adapter: Adapter,
        store: Store,
        sent: Callable[[int], None],
        redact: Callable[[str], str] = str,
    ) -> None:
        self._name = name
        self._adapter = adapter
        self._ready: Ready | None = getattr(adapter, "ready", None)  # optional by contract
        self._store = store
        self._sent = sent
        self._redact = redact
        self._rows: deque[OutboxRow] = deque()
        self._newest = 0
        self._behind = False
        """Whether the store has rows for this lane that are not in memory."""
        self.rests_until = -math.inf
        self.stirred = trio.Event()
        """Set when the lane begins to rest, or has ended."""

    def offer(self, row: OutboxRow) -> None:
        """Take a row after those that came before; never waits."""
        if row.outbox_id <= self._newest:
            return
        if self._behind or len(self._rows) >= LANE_ROWS:
            self._behind = True
        else:
            self._add(row)

    def _add(self, row: OutboxRow) -> None:
        self._rows.append(row)
        self._newest = row.outbox_id

    async def run(self) -> None:
        """Send all there is; there is no checkpoint between the last look and the end."""
        while True:
            while self._rows:
                await self._deliver(self._rows.popleft())
            if not self._behind:
                return
            self._behind = False  # before the read: rows that come during it set it again
            for row in await until_stored(self._fetch):
                self._add(row)
            self._behind = self._behind or len(self._rows) >= LANE_ROWS

    def _fetch(self) -> Awaitable[list[OutboxRow]]:
        return self._store.pending_outbox(self._name, after=self._newest, limit=LANE_ROWS)

    async def _deliver(self, row: OutboxRow) -> None:
        """Send a row until the platform has all of it, or it is given up."""
        passage = _DeliveryAttempt(row, _texts(row, self._adapter))
        while not passage.whole:
            error = await self._try(passage)
            if error is None:
                await self._taken(passage)
            elif isinstance(error, Unsendable):
                await self._close(passage, error)
                return
            elif isinstance(error, MessageRefused) and passage.is_last_refusal():
                await self._give_up(passage, error)
                return
            else:
                await self._again_later(passage, error)
        self._sent(row.outbox_id)

    async def _try(self, passage: _DeliveryAttempt) -> BaseException | None:
        """Send a part; from before it until it is known, its outcome is unknown on disk."""
        if passage.row.state == "pending":
            early = None if self._ready is None else await _failure(self._ready, passage)
            if early is not None:
                return early
            await until_stored(lambda: self._store.mark_sending([passage.row.outbox_id]))
            passage.begun()
        return await _failure(self._adapter.send, passage)

    async def _taken(self, passage: _DeliveryAttempt) -> None:
        passage.taken()
        if not passage.whole:
            row = passage.row
            await until_stored(lambda: self._store.mark_part(row.outbox_id, row.part))
            if self._ready is not None:  # which may take long; the next part is not begun
                await until_stored(lambda: self._store.mark_unsent([row.outbox_id]))
                passage.not_taken()

    async def _again_later(self, passage: _DeliveryAttempt, error: BaseException) -> None:
        """Write down what is known of a try that failed, and leave the platform alone a while."""
        ids = [passage.row.outbox_id]
        if passage.row.state == "pending":
            pass  # it was not begun, and that is what is written
        elif isinstance(error, RetryAfter | MessageRefused):
            await until_stored(lambda: self._store.mark_unsent(ids))
            passage.not_taken()
        else:
            await until_stored(lambda: self._store.mark_unknown(ids))
            passage.in_doubt()
        if isinstance(error, RetryAfter):
            pause = min(max(FIRST_PAUSE, error.seconds), LONGEST_WAIT)
        else:
            pause = passage.next_pause()
        named = isinstance(error, HermesError)  # else it may be a mistake in the adapter
        log.warning(
            "reply %d is tried again after %g s: %s", ids[0], pause, user_code.loggable(error),
            exc_info=None if named else error,
        )  # fmt: skip
        await self._rest(pause)

    async def _give_up(self, passage: _DeliveryAttempt, error: BaseException) -> None:
        note = passage.note(self._redact(str(error)))
        log.error("reply %d is given up: %s", passage.row.outbox_id, user_code.loggable(error))
        await until_stored(lambda: self._store.mark_dead([passage.row.outbox_id], note))

    async def _rest(self, seconds: float) -> None:
        self.rests_until = trio.current_time() + seconds
        self.stir()
        await trio.sleep_until(self.rests_until)
        self.rests_until = -math.inf

    def stir(self) -> None:
        """Wake who waits for this lane."""
        self.stirred.set()
        self.stirred = trio.Event()

    async def _close(self, passage: _DeliveryAttempt, gone: Unsendable) -> None:
        """Nobody is there: nothing of what waits is tried, only what comes later."""
        first, note = passage.row.outbox_id, passage.note(self._redact(str(gone)))
        # From this row on: the rows before were sent, even where that is not on disk yet.
        dead = await until_stored(lambda: self._store.mark_lane_dead(self._name, note, since=first))
        log.warning("%d replies cannot be sent, from %d on", len(dead), first)
        given_up = set(dead)
        self._rows = deque(row for row in self._rows if row.outbox_id not in given_up)


@attrs.define
class _DeliveryAttempt:
    """A row on its way: what of it the platform has, and how the tries went."""

    row: OutboxRow
    texts: Sequence[str]
    """Its parts; none where it is sent as it is."""
    _pause: float = FIRST_PAUSE
    _refusals: int = 0

    @property
    def parts(self) -> int:
        return len(self.texts) or 1

    @property
    def whole(self) -> bool:
        """Whether the platform has all of it."""
        return self.row.part >= self.parts

    def message(self) -> OutboxRow:
        """What an adapter is given."""
        row = self.row
        if not self.texts:
            return row
        body = {**row.body, "text": self.texts[row.part]}
        return replace(row, body=body, parts=self.parts)

    def begun(self) -> None:
        self.row = replace(self.row, state="sending", attempts=self.row.attempts + 1)

    def taken(self) -> None:
        """The next part is another message: what is known of this one does not concern it."""
        self.row = replace(self.row, part=self.row.part + 1, recovered=False)
        self._pause, self._refusals = FIRST_PAUSE, 0

    def not_taken(self) -> None:
        self.row = replace(self.row, state="pending")

    def in_doubt(self) -> None:
        self.row = replace(self.row, state="pending", recovered=True)

    def is_last_refusal(self) -> bool:
        """Count a refusal, and say whether it is enough."""
        self._refusals += 1
        return self._refusals >= REFUSALS

    def next_pause(self) -> float:
        """How long to wait before the next try: longer each time."""
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause

    def note(self, why: str) -> str:
        """Why it is given up, as the store can hold it."""
        text = why[:NOTE_CHARACTERS].encode(errors="replace").decode()
        return text if self.parts == 1 else f"part {self.row.part + 1} of {self.parts}: {text}"


def _texts(row: OutboxRow, adapter: Adapter) -> Sequence[str]:
    limit: int | None = getattr(adapter, "limit", None)  # optional by contract
    text = row.body.get("text")
    return split(text, limit) if limit is not None and isinstance(text, str) else ()


async def _failure(
    verb: Callable[[OutboxRow], Awaitable[None]], passage: _DeliveryAttempt
) -> BaseException | None:
    """What an adapter raises, if it does."""
    try:
        await verb(passage.message())
    except BaseException as error:  # noqa: BLE001 - foreign code: the caller tells them apart
        if (through := user_code.passing(error)) is not None:
            raise through from None
        return user_code.leaf(error)
    return None


async def until_stored(verb: Callable[[], Awaitable[T]]) -> T:
    """What the store answers, as soon as it can."""
    while True:
        try:
            return await verb()
        except StoreFailed:
            raise
        except HermesError as error:
            log.warning("the outbox is delayed: %s", error)
            await trio.sleep(FIRST_PAUSE)
