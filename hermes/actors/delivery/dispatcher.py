"""The outbox dispatcher: replies are sent at least once, in order within each chat.

If a platform never had an adapter, its replies are for the host, which receives them as return
values or events: they are marked as sent. If it had an adapter in an earlier process, or has one
for another account only, its replies are kept until there is one again. In a cluster, they are sent
by the node that has the role of the platform, and other nodes tell it that there are some.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence

import trio

from hermes.actors.delivery.lane import Endpoint, Lane, until_stored
from hermes.actors.delivery.sender import PREFIX, Sender, account_of, address_of, role_of
from hermes.actors.delivery.split import MIN_LIMIT
from hermes.background import set_event, start_soon
from hermes.errors import HermesError
from hermes.messages import OutboxRow, Source
from hermes.protocols import Adapter, OutboxStore

log: logging.Logger = logging.getLogger(__name__)

MARK_DELAY = 0.05


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
        self._cluster = store.cluster
        self._redact = redact or str
        self._senders: dict[str, dict[str | None, Sender]] = {}
        self._sent: set[int] = set()
        """Rows that were sent, and are not marked as sent in the store yet."""
        self._of_host: list[tuple[str, int]] = []
        """Platforms without a known adapter, and their rows."""
        self._some_sent = trio.Event()
        self._missing: set[tuple[str, str]] = set()
        for adapter in adapters:
            self._register(adapter)
        for accounts in self._senders.values():
            if len(accounts) == 1:  # a chat that names no account is one of the only account
                accounts.setdefault("", *accounts.values())
        self._served = set(self._senders)
        """Platforms that have an adapter, or had one."""

    def _register(self, adapter: Adapter) -> None:
        endpoint = Endpoint.of(adapter)
        if endpoint.limit is not None and endpoint.limit < MIN_LIMIT:
            raise HermesError(
                f"the adapter for {adapter.platform} has a limit of {endpoint.limit} characters; "
                f"it must be at least {MIN_LIMIT}"
            )
        account = account_of(adapter)
        accounts = self._senders.setdefault(adapter.platform, {})
        if account in accounts:
            raise HermesError(f"there are two adapters for {adapter.platform}, account {account}")
        sender = Sender(
            role_of(adapter), endpoint, self._store, self._cluster,
            lambda platform, account: self._sender(platform, account) is sender,
            self._on_sent, self._sent, self._redact,
        )  # fmt: skip
        accounts[account] = sender

    def _sender(self, platform: str, account: str) -> Sender | None:
        accounts = self._senders.get(platform, {})
        return accounts.get(account) or accounts.get(None)

    @property
    def _all(self) -> list[Sender]:
        """All senders; one of them may have two accounts."""
        found = (sender for accounts in self._senders.values() for sender in accounts.values())
        return list({sender.role: sender for sender in found}.values())

    def serves(self, platform: str) -> bool:
        """Whether an adapter sends the replies of a platform, now or after another start."""
        return platform in self._served or bool(self._roles_of(platform))

    def _roles_of(self, platform: str) -> list[str]:
        """Return the roles of a platform that nodes have now."""
        role = PREFIX + platform
        return [each for each in self._cluster.holders if f"{each}:".startswith(f"{role}:")]

    def limit_of(self, source: Source) -> int | None:
        """Return the maximum length of a message to a chat; None for no limit."""
        sender = self._sender(source.platform, source.account)
        return None if sender is None else sender.endpoint.limit

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        """Take committed rows, in the order of their commits. Never waits."""
        for row in rows:
            platform, account = address_of(row)
            sender = self._sender(platform, account)
            if sender is None:
                self._without_adapter(row.outbox_id, platform, account)
            elif self._cluster.ids_in_order:
                sender.offer(row)
            else:  # another node may have committed earlier ones: the sender asks the store
                self._cluster.wake(sender.role)

    def _without_adapter(self, outbox_id: int, platform: str, account: str) -> None:
        if not self.serves(platform):
            self._of_host.append((platform, outbox_id))
            set_event(self._some_sent)
        elif roles := self._roles_of(platform):
            for role in roles:
                self._cluster.wake(role)
        elif (platform, account) not in self._missing:
            self._missing.add((platform, account))
            log.warning("replies wait for an adapter: %s, account %r", platform, account)

    def _on_sent(self, outbox_id: int) -> None:
        self._sent.add(outbox_id)
        set_event(self._some_sent)

    async def recover(self) -> None:
        """Begin to send, with what earlier processes left; in a cluster, once it has the role.

        Without other nodes, all of that has been offered to the lanes when this returns.
        """
        self._served |= set(await self._store.serve_platforms(sorted(self._served)))
        if not self._cluster.node:  # nobody else sends, to any platform
            await until_stored(self._store.recover_outbox)
        await self._offer_rest()
        for sender in self._all:
            start_soon(self._nursery, self._cluster.run_as, sender.role, sender.run)
        for sender in self._all:
            if self._cluster.holds(sender.role):
                await sender.began.wait()

    async def _offer_rest(self) -> None:
        """Offer what an earlier process left, and no adapter of this one sends."""
        for lane, platform, account in await self._store.open_lanes():
            if self._sender(platform, account) is None:
                after = 0
                while rows := await self._store.pending_outbox(lane, after=after):
                    self.offer(rows)
                    after = rows[-1].outbox_id

    async def run(self) -> None:
        """Background loop: mark delivered rows as sent, in batches."""
        while True:
            await self._some_sent.wait()
            await trio.sleep(MARK_DELAY)
            await self.flush()

    async def flush(self) -> None:
        """Mark the delivered rows that are not marked yet."""
        self._some_sent = trio.Event()
        rows, self._of_host = self._of_host, []
        sent = sorted([*self._sent, *await self._without_adapters(rows)])
        if sent:
            await until_stored(lambda: self._store.mark_sent(sent))
            self._sent.difference_update(sent)

    async def _without_adapters(self, rows: Sequence[tuple[str, int]]) -> list[int]:
        """Return which of these rows no adapter sends on any node."""
        if rows and not self._cluster.ids_in_order:
            # A node with the adapter stores its name before it receives what is answered here.
            self._served |= set(await until_stored(self._store.served_platforms))
        for platform in {platform for platform, _ in rows if self.serves(platform)}:
            for role in self._roles_of(platform):
                self._cluster.wake(role)
        return [outbox_id for platform, outbox_id in rows if not self.serves(platform)]

    async def hand_over(self, seconds: float) -> None:
        """Begin no other send, and wait until the outcome of those in flight is stored.

        Then the node can give up the roles of its platforms. What is in flight after so many
        seconds is cancelled by that, and sent again by another node.
        """
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for sender in self._all:
                    start_soon(nursery, sender.end)
            await self.flush()

    async def wait_sent(self, deadline: float = math.inf) -> None:
        """Wait until every lane is empty, or paused until after the deadline."""
        if not self._cluster.ids_in_order:  # the lanes may not know of all replies yet
            for sender in self._all:
                await sender.look()
        while busy := next((x for x in self._lanes if x.paused_until < deadline), None):
            await busy.changed.wait()

    @property
    def _lanes(self) -> Iterable[Lane]:
        return (lane for sender in self._all for lane in sender.lanes.values())
