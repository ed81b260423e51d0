"""Sends the replies of one chat, one after the other, part by part.

The outcome of each attempt is stored before the next one. What the platform accepted is not sent
again; what it may have accepted is sent again and marked as recovered; what it did not accept is
simply sent again. A reply that waits for the platform to be ready does not count as in flight.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias, TypeVar

import attrs
import trio
from msgspec.structs import replace

from hermes.actors.delivery.split import split
from hermes.background import set_event
from hermes.errors import (
    ActorStopped,
    HermesError,
    MessageRefused,
    NotOwner,
    RetryAfter,
    StoreFailed,
    UnknownFile,
    Unsendable,
)
from hermes.messages import JsonObject, OutboxRow
from hermes.protocols import (
    Adapter,
    FileReader,
    HasLimit,
    OutboxStore,
    SupportsFiles,
    SupportsReady,
)
from hermes.retry import Backoff
from hermes.sanitize import scrub
from hermes.transcript.attachments import describe
from hermes.user_code import contained, leaf, loggable

log: logging.Logger = logging.getLogger(__name__)

MAX_ROWS = 100
SPLIT_INLINE = 50_000
"""A text with more characters than this is split in a thread: it takes tens of milliseconds."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
MAX_RETRY_AFTER = 3600.0
"""However long a platform asks us to wait, it is tried again after this."""
MAX_REFUSALS = 10
"""With the delays between them, a message is refused for four minutes before it is given up."""
MAX_NOTE = 500
NOT_SENT = "it could not be sent"

T = TypeVar("T")
Send: TypeAlias = Callable[[OutboxRow], Awaitable[None]]
SendFile: TypeAlias = Callable[[OutboxRow, FileReader], Awaitable[None]]


@attrs.frozen(eq=False)
class Endpoint:
    """An adapter, and what it supports."""

    adapter: Adapter
    limit: int | None
    """The maximum length of a text; None for no limit."""
    ready: Send | None
    """Waits for the platform; None if the adapter cannot."""
    send_file: SendFile | None
    """Sends a file; None if the adapter cannot."""

    @classmethod
    def of(cls, adapter: Adapter) -> Endpoint:
        """Determine what an adapter supports."""
        return cls(
            adapter,
            limit=adapter.limit if isinstance(adapter, HasLimit) else None,
            ready=adapter.ready if isinstance(adapter, SupportsReady) else None,
            send_file=adapter.send_file if isinstance(adapter, SupportsFiles) else None,
        )


@attrs.define(eq=False)
class Lane:
    """Holds a bounded number of rows; others stay in the store until these are sent."""

    name: str
    _endpoint: Endpoint
    _store: OutboxStore
    _on_sent: Callable[[int], None]
    _unmarked: Collection[int]
    """Rows that were passed to `_on_sent`, but are not marked as sent in the store yet."""
    _redact: Callable[[str], str] = str
    _rows: deque[OutboxRow] = attrs.field(init=False, factory=deque)
    _newest: int = attrs.field(init=False, default=0)
    """The newest row that was offered and taken into memory."""
    _in_store: int = attrs.field(init=False, default=0)
    """How often there was something that is only in the store, since it was last read."""
    in_flight: bool = attrs.field(init=False, default=False)
    """Whether the platform may have a part, and the outcome is not stored yet."""
    _ending: bool = attrs.field(init=False, default=False)
    paused_until: float = attrs.field(init=False, default=-math.inf)
    changed: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when the lane pauses, ends, or while it is to end, has nothing in flight."""

    def offer(self, row: OutboxRow) -> None:
        """Append a row, unless older rows are only in the store. Never waits."""
        if row.outbox_id <= self._newest:
            return
        if self._in_store or len(self._rows) >= MAX_ROWS:
            self.look()
        else:
            self._rows.append(row)
            self._newest = row.outbox_id

    def look(self) -> None:
        """Look in the store for more, once the rows in memory are sent."""
        self._in_store += 1

    def end(self) -> None:
        """Begin no other send: another node goes on with this lane."""
        self._ending = True

    async def run(self) -> None:
        """Send everything. There is no checkpoint between the last look and the return."""
        while self._rows or self._in_store:
            if self._rows:
                with contextlib.suppress(_Closed):
                    await self._deliver(self._rows.popleft())
                self._landed()
            else:
                await self._fetch()

    async def _fetch(self) -> None:
        """Read the next rows from the store. Rows that are offered meanwhile stay there.

        It reads from the oldest row on: with several nodes, a row may be committed after one with a
        larger id.
        """
        looks, sent = self._in_store, frozenset(self._unmarked)
        limit = MAX_ROWS + len(sent)
        rows = await until_stored(lambda: self._store.pending_outbox(self.name, limit=limit))
        left = [row for row in rows if row.outbox_id not in sent]
        self._rows.extend(await self._settle(left))
        self._newest = max([self._newest, *(row.outbox_id for row in rows)])
        if len(rows) < limit:
            self._in_store -= looks

    async def _settle(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Mark what is in flight: a lane that ended has begun to send it."""
        unknown = [row.outbox_id for row in rows if row.state == "sending"]
        if unknown:
            await until_stored(lambda: self._store.mark_unknown(unknown))
        return [
            replace(row, state="pending", recovered=True) if row.state == "sending" else row
            for row in rows
        ]

    async def _deliver(self, row: OutboxRow) -> None:
        """Send a row part by part, until the platform has all of it or it is given up."""
        bodies = await self._bodies(row)
        while row.part < len(bodies):
            attempt = _Attempt(replace(row, body=bodies[row.part], parts=len(bodies)))
            while (error := await self._try(attempt)) is not None:
                if await self._failed(attempt, leaf(error)):
                    return
            row = replace(attempt.row, part=row.part + 1, recovered=False)
            if row.part < len(bodies):
                row = await self._store_progress(row)
        self._on_sent(row.outbox_id)

    async def _bodies(self, row: OutboxRow) -> list[JsonObject]:
        """Return the body of each part."""
        if "files" in row.body:
            return await self._bodies_with_files(row)
        text, limit = row.body.get("text"), self._endpoint.limit
        if limit is None or not isinstance(text, str):
            return [row.body]
        parts = split(text, limit) if len(text) <= SPLIT_INLINE else await _split(text, limit)
        return [{**row.body, "text": part} for part in parts] or [row.body]

    async def _try(self, attempt: _Attempt) -> BaseException | None:
        """Send one part. While it is in flight, its outcome is stored as unknown."""
        row, ready = attempt.row, self._endpoint.ready
        if row.state == "pending":
            if ready is not None and (early := await _failure(ready, row)) is not None:
                return early
            await self._begin(row.outbox_id)
            attempt.row = replace(row, state="sending", attempts=row.attempts + 1)
        send = self._send_file if "file" in row.body else self._endpoint.adapter.send
        return await _failure(send, attempt.row)

    async def _begin(self, outbox_id: int) -> None:
        """Record that a part will be in flight. Raises `_Closed` if the reply needs no send."""
        if self._ending:
            await trio.sleep_forever()
        self.in_flight = True
        if not await until_stored(lambda: self._store.mark_sending([outbox_id])):
            raise _Closed

    def _landed(self) -> None:
        """Note that nothing is in flight, and that this is stored or about to be."""
        self.in_flight = False
        if self._ending or self.paused_until > -math.inf:
            set_event(self.changed)
            self.changed = trio.Event()

    async def _bodies_with_files(self, row: OutboxRow) -> list[JsonObject]:
        """Return the body of each part of a reply with files: its text, then each file."""
        files: list[JsonObject] = row.body["files"]
        text = str(row.body.get("text") or "")
        plain = {name: value for name, value in row.body.items() if name != "files"}
        if self._endpoint.send_file is None:
            lines = [*filter(None, [text]), *map(describe, files)]
            return await self._bodies(replace(row, body={**plain, "text": "\n".join(lines)}))
        bodies = await self._bodies(replace(row, body=plain)) if text else []
        return [*bodies, *({**plain, "text": "", "file": part} for part in files)]

    async def _send_file(self, row: OutboxRow) -> None:
        """Send one file, or its description if it was deleted."""
        part: JsonObject = row.body["file"]
        assert self._endpoint.send_file is not None
        try:
            file = await self._store.open_file(part["file"], session_key=row.session_key)
        except UnknownFile:
            body = {**row.body, "text": describe(part, "it was deleted")}
            await self._endpoint.adapter.send(replace(row, body=body))
        else:
            await self._endpoint.send_file(row, file)

    async def _store_progress(self, row: OutboxRow) -> OutboxRow:
        """Record how many parts the platform has."""
        await until_stored(lambda: self._store.mark_part(row.outbox_id, row.part))
        if self._endpoint.ready is None and not self._ending:
            return row
        # The platform may take long to be ready, and the next part is not in flight yet.
        await until_stored(lambda: self._store.mark_unsent([row.outbox_id]))
        self._landed()
        return replace(row, state="pending")

    async def _failed(self, attempt: _Attempt, error: BaseException) -> bool:
        """Handle a failed attempt. Returns whether the row is given up."""
        attempt.refusals += isinstance(error, MessageRefused)
        if isinstance(error, Unsendable):
            await self._give_up_chat(attempt, error)
        elif attempt.refusals >= MAX_REFUSALS and "file" not in attempt.row.body:
            await self._give_up(attempt, error)
        else:
            if attempt.refusals >= MAX_REFUSALS:
                attempt.describe_file()
            await self._retry_later(attempt, error)
            return False
        return True

    async def _retry_later(self, attempt: _Attempt, error: BaseException) -> None:
        """Store what is known about a failed attempt, and wait."""
        row, ids = attempt.row, [attempt.row.outbox_id]
        if row.state == "pending":
            pass  # it was not in flight, and that is what is stored
        elif isinstance(error, RetryAfter | MessageRefused):
            await until_stored(lambda: self._store.mark_unsent(ids))
            attempt.row = replace(row, state="pending")
        else:
            await until_stored(lambda: self._store.mark_unknown(ids))
            attempt.row = replace(row, state="pending", recovered=True)
        if isinstance(error, RetryAfter):
            delay = min(max(FIRST_DELAY, error.seconds), MAX_RETRY_AFTER)
        else:
            delay = attempt.next_delay()
        expected = isinstance(error, HermesError)  # else it may be a bug in the adapter
        log.warning(
            "reply %d is sent again after %g s: %s", ids[0], delay, loggable(error),
            exc_info=None if expected else error,
        )  # fmt: skip
        await self._pause(delay)

    async def _give_up(self, attempt: _Attempt, error: BaseException) -> None:
        note = attempt.note(self._redact(str(error)))
        log.error("reply %d is given up: %s", attempt.row.outbox_id, loggable(error))
        await until_stored(lambda: self._store.mark_dead([attempt.row.outbox_id], note))

    async def _pause(self, seconds: float) -> None:
        self.paused_until = trio.current_time() + seconds
        self._landed()
        await trio.sleep_until(self.paused_until)
        self.paused_until = -math.inf

    async def _give_up_chat(self, attempt: _Attempt, gone: Unsendable) -> None:
        """The chat is gone: give up everything that waits; later replies are tried again."""
        first, note = attempt.row.outbox_id, attempt.note(self._redact(str(gone)))
        # From this row on: earlier rows were sent, even if that is not stored yet.
        dead = await until_stored(lambda: self._store.mark_lane_dead(self.name, note, since=first))
        log.warning("%d replies cannot be sent, from %d on", len(dead), first)
        given_up = set(dead)
        self._rows = deque(row for row in self._rows if row.outbox_id not in given_up)


class _Closed(Exception):
    """A reply was sent or given up by somebody else."""


@attrs.define(eq=False)
class _Attempt:
    """A part being sent, and how the attempts so far went."""

    row: OutboxRow
    """What the adapter receives: the row with the text of this part."""
    refusals: int = 0
    _backoff: Backoff | None = None

    def next_delay(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        self._backoff = self._backoff or Backoff(FIRST_DELAY, LONGEST_DELAY)
        return self._backoff.next()

    def describe_file(self) -> None:
        """Send the description of a file that is always refused, so that the rest can follow."""
        log.error("a file of reply %d is given up", self.row.outbox_id)
        body = {name: value for name, value in self.row.body.items() if name != "file"}
        text = describe(self.row.body["file"], NOT_SENT)
        self.row, self.refusals = replace(self.row, body={**body, "text": text}), 0

    def note(self, reason: str) -> str:
        """Return why it is given up, as the store keeps it."""
        part, parts, text = self.row.part, self.row.parts, scrub(reason[:MAX_NOTE])
        return text if parts == 1 else f"part {part + 1} of {parts}: {text}"


async def _split(text: str, limit: int) -> list[str]:
    """Split a long text in a thread."""
    return await trio.to_thread.run_sync(split, text, limit)


async def _failure(send: Send, row: OutboxRow) -> BaseException | None:
    """Call an adapter, and return what it raises."""
    with contained() as caught:
        await send(row)
    return caught.error


async def until_stored(verb: Callable[[], Awaitable[T]]) -> T:
    """Call a store verb until it succeeds.

    Raises `StoreFailed` or `ActorStopped` at the end of the store, and `NotOwner` if another node
    has the role of the platform.
    """
    while True:
        try:
            return await verb()
        except (ActorStopped, NotOwner, StoreFailed):
            raise
        except HermesError as error:
            log.warning("the outbox is delayed: %s", error)
            await trio.sleep(FIRST_DELAY)
