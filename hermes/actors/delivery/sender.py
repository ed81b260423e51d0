"""Sends the replies of one adapter: in a cluster, while this node has the role of its platform.

A role is taken from a node only when that is dead or has given it up. So what is in flight when a
node gets the role was sent by such a node, and its outcome will never be stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial

import attrs
import trio

from hermes.actors.delivery.lane import Endpoint, Lane, until_stored
from hermes.background import set_event, start_soon
from hermes.errors import NotOwner
from hermes.messages import OutboxRow
from hermes.protocols import Adapter, HasAccount, OutboxStore
from hermes.protocols.cluster import Roles

log: logging.Logger = logging.getLogger(__name__)

PREFIX = "platform:"


def account_of(adapter: Adapter) -> str | None:
    """Return the account whose replies an adapter sends; None for all accounts."""
    return adapter.account if isinstance(adapter, HasAccount) else None


def role_of(adapter: Adapter) -> str:
    """Return the role of the node that receives and sends for an adapter."""
    account = account_of(adapter)
    return PREFIX + adapter.platform + ("" if account is None else f":{account}")


@attrs.define(eq=False)
class Sender:
    """The lanes of one adapter. There are none while another node has the role."""

    role: str
    endpoint: Endpoint
    _store: OutboxStore
    _roles: Roles
    _serves: Callable[[str, str], bool]
    """Whether the replies of a platform and an account are for this adapter."""
    _on_sent: Callable[[int], None]
    _unmarked: Collection[int]
    _redact: Callable[[str], str]
    lanes: dict[str, Lane] = attrs.field(init=False, factory=dict)
    began: trio.Event = attrs.field(init=False, factory=trio.Event)
    """Set when what earlier processes left has been offered to the lanes for the first time."""
    _nursery: trio.Nursery | None = attrs.field(init=False, default=None)
    _acting: OutboxStore = attrs.field(init=False)
    """The verbs of the store that fail if another node has the role."""
    _ending: bool = attrs.field(init=False, default=False)

    async def run(self) -> None:
        """Send until cancelled: first what earlier processes left, marked if it was in flight."""
        self._acting = self._store.acting(self.role)
        try:
            async with trio.open_nursery() as self._nursery:
                await self._take_over()
                set_event(self.began)
                while True:
                    await self._roles.until_woken(self.role)
                    await self.look()
        finally:
            self._nursery, lanes, self.lanes = None, self.lanes, {}
            for lane in lanes.values():
                set_event(lane.changed)

    async def _take_over(self) -> None:
        lanes = await self._open_lanes()
        await until_stored(lambda: self._acting.recover_outbox(lanes))
        after = 0
        while rows := await until_stored(partial(self._store.pending_outbox, after=after)):
            for row in rows:
                if self._serves(*address_of(row)):
                    self.offer(row)
            after = rows[-1].outbox_id

    async def _open_lanes(self) -> list[str]:
        """Return the lanes of this adapter that have replies to send."""
        lanes = await until_stored(self._store.open_lanes)
        return [lane for lane, platform, account in lanes if self._serves(platform, account)]

    async def look(self) -> None:
        """Let the lanes look for replies that any node has committed."""
        for name in await self._open_lanes():
            if self._nursery is not None and not self._ending:
                self._lane(name).look()

    def offer(self, row: OutboxRow) -> None:
        """Send a committed row, after those that were offered before. Never waits."""
        if self._nursery is not None and not self._ending:
            self._lane(row.lane).offer(row)

    def _lane(self, name: str) -> Lane:
        lane = self.lanes.get(name)
        if lane is None:
            lane = Lane(
                name, self.endpoint, self._acting, self._on_sent, self._unmarked, self._redact
            )
            self.lanes[name] = lane
            assert self._nursery is not None
            start_soon(self._nursery, self._run_lane, lane)
        return lane

    async def _run_lane(self, lane: Lane) -> None:
        try:
            await lane.run()
        except NotOwner:
            log.info("another node has the role %s", self.role)
        del self.lanes[lane.name]  # no checkpoint since the lane found nothing more to send
        set_event(lane.changed)

    async def end(self) -> None:
        """Begin no other send, and wait until nothing is in flight."""
        self._ending = True
        for lane in self.lanes.values():
            lane.end()
        while busy := next((lane for lane in self.lanes.values() if lane.in_flight), None):
            await busy.changed.wait()


def address_of(row: OutboxRow) -> tuple[str, str]:
    """Return the platform and the account of a row."""
    return str(row.body.get("platform")), str(row.body.get("account") or "")
