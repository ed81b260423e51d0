"""Replies on their way out: one lane per chat, in order, sent at least once.

Replies to a platform that never had an adapter were for the host itself, who heard them as answers
or events: they are marked as sent, many at once. Where it had one in an earlier process, or has one
for another account only, they are kept for the day when there is one again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import trio

from hermes.actors.delivery.lane import Lane, until_stored
from hermes.actors.delivery.split import SMALLEST
from hermes.errors import HermesError
from hermes.messages import OutboxRow, Source
from hermes.protocols import Adapter, Store

log = logging.getLogger(__name__)

MARK_DELAY = 0.05
SERVED = "outbox:platforms"


def lane_of(source: Source, session_key: str) -> str:
    """The chat whose order is kept."""
    place = source.chat_id or session_key
    return "/".join((source.platform, source.account, place, source.thread_id or ""))


def _require_room(adapter: Adapter) -> None:
    limit: int | None = getattr(adapter, "limit", None)  # optional by contract
    if limit is not None and limit < SMALLEST:
        raise HermesError(f"the adapter for {adapter.platform} has a limit of {limit}: too little")


class Dispatcher:
    """Sends what the store has committed, through the adapter of its platform and account."""

    def __init__(
        self,
        nursery: trio.Nursery,
        adapters: Iterable[Adapter],
        store: Store,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._nursery = nursery
        self._store = store
        self._adapters: dict[str, dict[str | None, Adapter]] = {}
        for each in adapters:
            _require_room(each)
            account: str | None = getattr(each, "account", None)  # optional by contract
            ours = self._adapters.setdefault(each.platform, {})
            if account in ours:
                raise HermesError(f"there are two adapters for {each.platform}, account {account}")
            ours[account] = each
        self._served = set(self._adapters)
        """Platforms that have an adapter, or had one."""
        self._redact = redact or str
        self._missed: set[tuple[str, str]] = set()
        self._lanes: dict[str, Lane] = {}
        self._told: list[int] = []
        self._some_told = trio.Event()

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        """Take committed rows, in the order of their commits; never waits."""
        for row in rows:
            platform, account = str(row.body.get("platform")), str(row.body.get("account") or "")
            ours = self._adapters.get(platform, {})
            adapter = ours.get(account) or ours.get(None)
            if adapter is not None:
                self._lane(row.lane, adapter).offer(row)
            elif platform not in self._served:
                self._sent(row.outbox_id)
            elif (platform, account) not in self._missed:
                self._missed.add((platform, account))
                log.warning("replies wait for an adapter: %s, account %r", platform, account)

    def _lane(self, name: str, adapter: Adapter) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane(name, adapter, self._store, self._sent, self._redact)
            self._nursery.start_soon(self._run_lane, name, lane)
        return lane

    async def _run_lane(self, name: str, lane: Lane) -> None:
        await lane.run()
        del self._lanes[name]  # no checkpoint since the last look
        lane.stir()

    def _sent(self, outbox_id: int) -> None:
        self._told.append(outbox_id)
        self._some_told.set()

    async def recover(self) -> None:
        """Offer what an earlier process left; what was in flight then is marked so."""
        await self._store.recover_outbox()
        await self._remember_platforms()
        after = 0
        while rows := await self._store.pending_outbox(after=after):
            self.offer(rows)
            after = rows[-1].outbox_id

    async def _remember_platforms(self) -> None:
        noted = await self._store.get_meta(SERVED)
        earlier = set() if noted is None else set(msgspec.json.decode(noted, type=list[str]))
        self._served |= earlier
        if self._served != earlier:
            await self._store.set_meta(SERVED, msgspec.json.encode(sorted(self._served)).decode())

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
            await until_stored(lambda: self._store.mark_sent(told))

    async def wait_sent(self, give_up: float = math.inf) -> None:
        """Wait until every lane is empty, or will rest until after we give up."""
        while busy := next((x for x in self._lanes.values() if x.rests_until < give_up), None):
            await busy.stirred.wait()
