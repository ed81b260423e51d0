"""Replies on their way out: one lane per chat, in order, sent at least once.

A lane holds a bounded number of rows; when an adapter is down for long, the rest stay in the store
and are fetched when the lane has moved on. Replies for which no adapter is registered were for the
host itself, who heard them as answers or events: they are marked as sent, many at once.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import attrs
import trio

from hermes import foreign
from hermes.errors import HermesError, StoreFailed, Unsendable
from hermes.messages import OutboxRow, Source
from hermes.protocols import Adapter, Store

log = logging.getLogger(__name__)

LANE_ROWS = 100
MARK_DELAY = 0.05
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


def lane_of(source: Source, session_key: str) -> str:
    """The chat whose order is kept."""
    place = source.chat_id or session_key
    return "/".join((source.platform, source.account, place, source.thread_id or ""))


@attrs.define
class _Lane:
    rows: deque[OutboxRow] = attrs.Factory(deque)
    newest: int = 0
    behind: bool = False
    """Whether the store has rows for this lane that are not in memory."""


class Sender:
    """Sends what the store has committed, through the adapter of its platform."""

    def __init__(self, nursery: trio.Nursery, adapters: Iterable[Adapter], store: Store) -> None:
        self._nursery = nursery
        self._store = store
        self._adapters: Mapping[str, Adapter] = {each.platform: each for each in adapters}
        self._lanes: dict[str, _Lane] = {}
        self._told: list[int] = []
        self._some_told = trio.Event()
        self._quiet = trio.Event()
        self._quiet.set()

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        """Take committed rows, in the order of their commits; never waits."""
        for row in rows:
            if self._adapter(row) is None:
                self._told.append(row.outbox_id)
                self._some_told.set()
            else:
                self._queue(row)

    def _adapter(self, row: OutboxRow) -> Adapter | None:
        return self._adapters.get(str(row.body.get("platform")))

    def _queue(self, row: OutboxRow) -> None:
        lane = self._lanes.get(row.lane)
        if lane is None:
            lane = self._lanes[row.lane] = _Lane()
            if self._quiet.is_set():
                self._quiet = trio.Event()
            self._nursery.start_soon(self._run_lane, row.lane, lane)
        if row.outbox_id <= lane.newest:
            return
        if lane.behind or len(lane.rows) >= LANE_ROWS:
            lane.behind = True
        else:
            lane.rows.append(row)
            lane.newest = row.outbox_id

    async def recover(self) -> None:
        """Offer what an earlier process left; what was in flight then is marked so."""
        await self._store.recover_outbox()
        after = 0
        while rows := await self._store.pending_outbox(after=after):
            self.offer(rows)
            after = rows[-1].outbox_id

    async def _run_lane(self, name: str, lane: _Lane) -> None:
        while True:
            while lane.rows:
                await self._send(lane.rows[0])
                lane.rows.popleft()
            if not lane.behind:
                break
            lane.behind = False  # before the read: rows that come during it set it again
            for row in await self._store.pending_outbox(name, after=lane.newest, limit=LANE_ROWS):
                lane.rows.append(row)
                lane.newest = row.outbox_id
            lane.behind = lane.behind or len(lane.rows) >= LANE_ROWS
        del self._lanes[name]  # no checkpoint since the last look
        if not self._lanes:
            self._quiet.set()

    async def _send(self, row: OutboxRow) -> None:
        """Send until the platform has it, or the chat is gone."""
        adapter = self._adapter(row)
        assert adapter is not None
        pause = FIRST_PAUSE
        while True:
            await self._until_stored(self._store.mark_sending, [row.outbox_id])
            try:
                await adapter.send(row)
            except Unsendable as gone:
                log.warning("reply %d cannot be sent: %s", row.outbox_id, gone)
                dead = functools.partial(self._store.mark_dead, note=str(gone))
                await self._until_stored(dead, [row.outbox_id])
                return
            except BaseException as error:  # foreign code: its failure is tried again
                if (through := foreign.passing(error)) is not None:
                    raise through from None
                log.exception("reply %d was not sent; trying again", row.outbox_id)
                await self._until_stored(self._store.mark_unsent, [row.outbox_id])
                await trio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._told.append(row.outbox_id)
                self._some_told.set()
                return

    async def _until_stored(
        self, verb: Callable[[Sequence[int]], Awaitable[None]], outbox_ids: Sequence[int]
    ) -> None:
        while True:
            try:
                await verb(outbox_ids)
            except StoreFailed:
                raise
            except HermesError as error:
                log.warning("the outbox is delayed: %s", error)
                await trio.sleep(FIRST_PAUSE)
            else:
                return

    async def mark(self) -> None:
        """Mark what was sent, many at once, for ever; nobody waits for it."""
        while True:
            await self._some_told.wait()
            await trio.sleep(MARK_DELAY)
            await self.flush()

    async def flush(self) -> None:
        """Mark what was sent and is not yet marked."""
        self._some_told = trio.Event()
        told, self._told = self._told, []
        if told:
            await self._until_stored(self._store.mark_sent, told)

    async def wait_sent(self) -> None:
        """Wait until every lane is empty."""
        await self._quiet.wait()
