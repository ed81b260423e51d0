"""The outbox dispatcher: replies are sent at least once, in order within each chat.

If a platform never had an adapter, its replies are for the host, which receives them as return
values or events: they are marked as sent. If it had an adapter in an earlier process, or has one
for another account only, its replies are kept until there is one again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import msgspec
import trio

from hermes.actors.delivery.lane import Endpoint, Lane, until_stored
from hermes.actors.delivery.split import MIN_LIMIT
from hermes.background import set_event, start_soon
from hermes.errors import HermesError
from hermes.messages import OutboxRow, Source
from hermes.protocols import Adapter, HasAccount, OutboxStore

log: logging.Logger = logging.getLogger(__name__)

MARK_DELAY = 0.05
SERVED = "outbox:platforms"


class Dispatcher:
    """Sends committed replies through the adapter of their platform and account."""

    def __init__(
        self,
        nursery: trio.Nursery,
        adapters: Iterable[Adapter],
        store: OutboxStore,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        self._nursery = nursery
        self._store = store
        self._endpoints: dict[str, dict[str | None, Endpoint]] = {}
        for adapter in adapters:
            self._register(adapter)
        for accounts in self._endpoints.values():
            if len(accounts) == 1:  # a chat that names no account is one of the only account
                accounts.setdefault("", *accounts.values())
        self._served = set(self._endpoints)
        """Platforms that have an adapter, or had one."""
        self._redact = redact or str
        self._missing: set[tuple[str, str]] = set()
        self._lanes: dict[str, Lane] = {}
        self._sent: list[int] = []
        self._some_sent = trio.Event()

    def _register(self, adapter: Adapter) -> None:
        endpoint = Endpoint.of(adapter)
        if endpoint.limit is not None and endpoint.limit < MIN_LIMIT:
            raise HermesError(
                f"the adapter for {adapter.platform} has a limit of {endpoint.limit} characters; "
                f"it must be at least {MIN_LIMIT}"
            )
        account = adapter.account if isinstance(adapter, HasAccount) else None
        accounts = self._endpoints.setdefault(adapter.platform, {})
        if account in accounts:
            raise HermesError(f"there are two adapters for {adapter.platform}, account {account}")
        accounts[account] = endpoint

    def serves(self, platform: str) -> bool:
        """Whether an adapter sends the replies of a platform, now or after another start."""
        return platform in self._served

    def limit_of(self, source: Source) -> int | None:
        """Return the maximum length of a message to a chat; None for no limit."""
        accounts = self._endpoints.get(source.platform, {})
        endpoint = accounts.get(source.account) or accounts.get(None)
        return None if endpoint is None else endpoint.limit

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        """Take committed rows, in the order of their commits. Never waits."""
        for row in rows:
            platform, account = str(row.body.get("platform")), str(row.body.get("account") or "")
            accounts = self._endpoints.get(platform, {})
            endpoint = accounts.get(account) or accounts.get(None)
            if endpoint is not None:
                lane = self._lanes.get(row.lane) or self._start_lane(row.lane, endpoint)
                lane.offer(row)
            else:
                self._without_adapter(row.outbox_id, platform, account)

    def _without_adapter(self, outbox_id: int, platform: str, account: str) -> None:
        if platform not in self._served:
            self._on_sent(outbox_id)
        elif (platform, account) not in self._missing:
            self._missing.add((platform, account))
            log.warning("replies wait for an adapter: %s, account %r", platform, account)

    def _start_lane(self, name: str, endpoint: Endpoint) -> Lane:
        lane = Lane(name, endpoint, self._store, self._on_sent, self._redact)
        self._lanes[name] = lane
        start_soon(self._nursery, self._run_lane, lane)
        return lane

    async def _run_lane(self, lane: Lane) -> None:
        await lane.run()
        del self._lanes[lane.name]  # no checkpoint since the lane found nothing more to send
        set_event(lane.changed)

    def _on_sent(self, outbox_id: int) -> None:
        self._sent.append(outbox_id)
        set_event(self._some_sent)

    async def recover(self) -> None:
        """Offer what an earlier process left; sends that were in flight are marked recovered."""
        await self._store.recover_outbox()
        await self._remember_platforms()
        after = 0
        while rows := await self._store.pending_outbox(after=after):
            self.offer(rows)
            after = rows[-1].outbox_id

    async def _remember_platforms(self) -> None:
        stored = await self._store.get_meta(SERVED)
        earlier = set() if stored is None else set(msgspec.json.decode(stored, type=list[str]))
        self._served |= earlier
        if self._served != earlier:
            await self._store.set_meta(SERVED, msgspec.json.encode(sorted(self._served)).decode())

    async def run(self) -> None:
        """Background loop: mark delivered rows as sent, in batches."""
        while True:
            await self._some_sent.wait()
            await trio.sleep(MARK_DELAY)
            await self.flush()

    async def flush(self) -> None:
        """Mark the delivered rows that are not marked yet."""
        self._some_sent = trio.Event()
        sent, self._sent = self._sent, []
        if sent:
            await until_stored(lambda: self._store.mark_sent(sent))

    async def wait_sent(self, deadline: float = math.inf) -> None:
        """Wait until every lane is empty, or paused until after the deadline."""
        while busy := next((x for x in self._lanes.values() if x.paused_until < deadline), None):
            await busy.changed.wait()
