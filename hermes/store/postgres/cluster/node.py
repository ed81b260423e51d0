"""The nodes that share a PostgreSQL database. See `hermes.protocols.Cluster`."""

from __future__ import annotations

import logging
from collections.abc import (
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import trio

from hermes.background import set_event, start_soon
from hermes.errors import Overloaded, StoreError
from hermes.messages import Accepted, Claim, ClusterView, NodeInfo
from hermes.protocols.cluster import HOOKS, Hints, Waiting
from hermes.store.cluster import claims, listeners, nodes
from hermes.store.cluster.alone import NoHints
from hermes.store.cluster.placement import place, surplus
from hermes.store.cluster.view import cluster_view
from hermes.store.engine import ClusterStore
from hermes.store.postgres.cluster.membership import Beat, Membership
from hermes.store.postgres.cluster.roles import NodeRoles
from hermes.store.postgres.connection import PostgresConnection
from hermes.store.transaction import KeyedWork, Transaction

log: Final = logging.getLogger(__name__)

POLLS: Final = 6
"""How often a node looks for messages in the time of one lease."""
FREE_KEYS: Final = 1000
"""How many conversations a node claims at once."""
CHUNK: Final = 500
"""How many conversations are given up in one transaction."""
HINT_PAUSE: Final = 0.01
"""Seconds in which hints are gathered before the database is asked."""
LONG_WAIT: Final = 3.0
"""After this many leases, a message is taken by whoever sees it, wherever its key is placed."""
TOPIC: Final = "open"
"""Hints that there may be messages for a node."""
_TEMPORARY: Final = (StoreError, Overloaded)


class NodeHints(Hints, Protocol):
    """Hints of a node whose id may change."""

    def join(self, node: int) -> None: ...


class PostgresCluster:
    """The other nodes, as one node sees them. Used in Trio's thread only."""

    ids_in_order: bool = False

    def __init__(
        self, store: ClusterStore, writer: PostgresConnection, membership: Membership, first: Beat
    ) -> None:
        self._store = store
        self._writer = writer
        self._membership = membership
        self._seconds = first.lease.seconds
        self._beat = first
        self._beaten = trio.Event()
        """Set at the next heartbeat."""
        self.hints: NodeHints = NoHints()
        self._hinted = trio.Event()
        """Set when there may be something to do before the next poll."""
        self._hinted_keys: set[str] | None = None
        """The conversations that others have named; None if all must be looked at."""
        self._wanted: set[str] | None = None
        """Those that are looked at now."""
        self._next_poll = trio.current_time()
        self._watchers: list[Callable[[], None]] = []
        self._draining = False
        self._released: list[Claim] = []
        self._some_released = trio.Event()
        self._balanced_at = trio.current_time()
        self._roles = NodeRoles(self, store, self._seconds / POLLS)
        self.run_as: Final = self._roles.run_as
        self.holds: Final = self._roles.holds
        self.claim_of: Final = self._roles.claim_of
        self.wake: Final = self._roles.wake
        self.until_woken: Final = self._roles.until_woken
        self._tell_writer()

    # Membership

    @property
    def node(self) -> int:
        """The id of this node."""
        return self._beat.node

    @property
    def nodes(self) -> Mapping[int, NodeInfo]:
        """The nodes that are not dead, with this one."""
        return self._beat.nodes

    def note_beat(self, beat: Beat) -> None:
        """Take the answer to a heartbeat."""
        before, self._beat = self._beat, beat
        self._tell_writer()
        if beat.node != before.node:
            self._lose_everything(beat.node)
        if before.nodes.keys() - beat.nodes.keys():
            self._roles.note_change()
            self.note_hint("")
        beaten, self._beaten = self._beaten, trio.Event()
        set_event(beaten)

    def _tell_writer(self) -> None:
        """Tell the connection that accepts messages where they may be placed."""
        self._writer.node = self.node
        self._writer.living = tuple(n for n, info in self.nodes.items() if not info.draining)

    def _lose_everything(self, node: int) -> None:
        """This node was declared dead, and has another id now."""
        self._released.clear()
        self._roles.drop()
        self.hints.join(node)
        for on_lost in list(self._watchers):
            on_lost()

    @contextmanager
    def watch(self, on_lost: Callable[[], None]) -> Iterator[None]:
        """Call back, during the block, when this node has lost all its conversations."""
        self._watchers.append(on_lost)
        try:
            yield
        finally:
            self._watchers.remove(on_lost)

    def tell(self, name: str, fact: Callable[[], Any]) -> None:
        """Tell the other nodes a fact with each heartbeat."""
        self._membership.facts[name] = fact

    async def until_trusted(self) -> None:
        """Wait while the lease of this node has run out; return at once otherwise."""
        while not self._beat.lease.valid:
            await self._beaten.wait()

    async def owner_of(self, session_key: str) -> Claim | None:
        """Return which living node serves a conversation, from the database."""
        return await self._store.snapshot(partial(claims.owner_of, session_key=session_key))

    async def view(self) -> ClusterView:
        """Return the nodes and what each of them has, for operators."""
        return await self._store.snapshot(cluster_view)

    async def leases(self) -> Mapping[int, float]:
        """Return when the leases of the living nodes end, by id, from the database."""
        living = await self._store.snapshot(nodes.live)
        return {node: info.lease_until for node, info in living.items()}

    # Listeners

    async def owners_of(self, session_keys: Sequence[str]) -> Mapping[str, Claim]:
        """Return which living nodes serve these conversations, without those that none serves."""
        return await self._store.snapshot(partial(listeners.owners_of, session_keys=session_keys))

    async def set_listened(self, session_keys: Collection[str]) -> None:
        """Store for which conversations this node has listeners, instead of those before."""
        work = partial(listeners.set_listened, node=self.node, session_keys=session_keys)
        await self._store.transact(work)

    async def listened(self) -> Sequence[tuple[int, str]]:
        """Return the conversations for which other living nodes have listeners, with the nodes."""
        return await self._store.snapshot(partial(listeners.listened, node=self.node))

    # Ownership

    @property
    def others(self) -> bool:
        """Whether another node goes on with the conversations of this one when it ends."""
        return bool(self._placed_nodes - {self.node})

    @property
    def _placed_nodes(self) -> set[int]:
        return {node for node, info in self.nodes.items() if not info.draining}

    def serves(self, accepted: Accepted) -> bool:
        """Whether this node serves the conversation of a message that it has just accepted."""
        claim = accepted.claim
        if claim is not None and claim.node != self.node:
            self.hints.send(claim.node, TOPIC, claim.session_key)
        return claim is not None and claim.node == self.node

    async def claim(self, session_key: str) -> Claim | None:
        """Return who serves a conversation; if nobody does, this node does from now on.

        A conversation that does not exist has no owner.
        """
        await self.until_trusted()
        node = self.node

        def work(tx: Transaction) -> Claim | None:
            if (found := claims.owner_of(tx, session_key)) is not None or self._draining:
                return found
            return next(iter(claims.claim(tx, node, [session_key])), None)

        return await self._store.transact(KeyedWork(work, session_key))

    async def waiting(self, after: int, limit: int) -> Sequence[Waiting]:
        """Return open messages that this node is to answer; first claim those of nobody.

        After hints that name conversations, only theirs are returned.
        """
        if after == 0:
            self._wanted, self._hinted_keys = self._hinted_keys, set()
            if self._wanted is None:
                await self._claim_free()
        if not self._beat.lease.valid:
            return ()
        keys = None if self._wanted is None else sorted(self._wanted)
        work = partial(claims.waiting, node=self.node, after=after, limit=limit, keys=keys)
        return await self._store.snapshot(work)

    async def _claim_free(self) -> None:
        if self._draining or not self._beat.lease.valid:
            return
        now, free = await self._store.snapshot(
            lambda tx: (tx.now, claims.free_keys(tx, limit=FREE_KEYS))
        )
        overdue, node, placed = now - LONG_WAIT * self._seconds, self.node, self._placed_nodes
        mine = [key for key, since in free if place(key, placed) == node or since < overdue]
        if mine and self._beat.lease.valid:
            taken = await self._store.transact_alone(
                partial(claims.claim, node=node, session_keys=mine)
            )
            log.info("node %d serves %d more conversations", node, len(taken))

    async def until_hint(self) -> None:
        """Wait for a hint, at most as long as the time between two polls."""
        with trio.move_on_at(self._next_poll):
            await self._hinted.wait()
            await trio.sleep(HINT_PAUSE)
        self._hinted = trio.Event()
        if trio.current_time() >= self._next_poll:
            self._hinted_keys = None
        if self._hinted_keys is None:
            self._next_poll = trio.current_time() + self._seconds / POLLS

    def note_hint(self, session_key: str) -> None:
        """There may be messages of a conversation; if it is empty, of any that nobody serves."""
        if not session_key:
            self._hinted_keys = None
        elif self._hinted_keys is not None:
            self._hinted_keys.add(session_key)
        set_event(self._hinted)

    def hint_others(self) -> None:
        """Tell the other nodes that there may be messages that nobody serves."""
        for node in self._placed_nodes - {self.node}:
            self.hints.send(node, TOPIC)

    def balance(self, owned: int, idle: Sequence[str]) -> Sequence[str]:
        """Return the idle conversations that other nodes should serve, once in a heartbeat."""
        self._membership.owned = owned
        if trio.current_time() < self._balanced_at + self._membership.interval:
            return ()
        self._balanced_at = trio.current_time()
        counts = {n: self.nodes[n].owned for n in self._placed_nodes} | {self.node: owned}
        return surplus(self.node, counts, idle)

    def release_idle(self, released: Sequence[Claim]) -> None:
        """Give up conversations that have nothing to do, soon."""
        self._released += [claim for claim in released if claim.node == self.node]
        if self._released:
            set_event(self._some_released)

    async def run_releases(self) -> None:
        """Background loop: give up what was released."""
        while True:
            await self._some_released.wait()
            released, self._released = self._released, []
            self._some_released = trio.Event()
            try:
                await self._release(released)
            except _TEMPORARY as error:
                log.info("conversations are not released yet: %s", error)
                await trio.sleep(self._membership.interval)
                self.release_idle(released)

    async def _release(self, released: Sequence[Claim]) -> None:
        for start in range(0, len(released), CHUNK):
            chunk = released[start : start + CHUNK]
            if self._draining:  # nobody here takes what has arrived meanwhile
                keys = [claim.session_key for claim in chunk]
                await self.hand_over(keys)
            else:
                await self._store.transact_alone(partial(claims.release_idle, released=chunk))

    async def start_draining(self) -> None:
        """Take nothing new, and give up the roles if another node can have them."""
        self._draining = self._membership.draining = True
        await self._store.transact_alone(partial(nodes.drain, node=self.node))
        if self.others:
            self._roles.drop(keep=[HOOKS])  # the hooks that were called finish until the end
        self._membership.wake()

    async def hand_over(self, session_keys: Sequence[str]) -> None:
        """Give up conversations, also with open messages, so that other nodes go on with them."""
        for start in range(0, len(session_keys), CHUNK):
            keys = session_keys[start : start + CHUNK]
            await self._store.transact_alone(
                partial(claims.hand_over, node=self.node, session_keys=keys)
            )
        if session_keys:
            self.hint_others()

    # Roles

    @property
    def trusted(self) -> bool:
        """Whether the lease of this node has not run out."""
        return self._beat.lease.valid

    @property
    def takes_roles(self) -> bool:
        """Whether this node shall take roles: one that drains leaves them to others."""
        return not (self._draining and self.others)

    @property
    def known_holders(self) -> Mapping[str, int]:
        """Which node had which role at the last heartbeat."""
        return self._beat.holders

    @property
    def holders(self) -> Mapping[str, int]:
        """The roles that nodes have, with the id of the node."""
        return self._roles.holders

    async def watch_lease(self) -> None:
        """Background loop: end what runs in a role when the lease has run out."""
        while True:
            remaining = self._beat.lease.remaining
            if remaining > 0:
                await trio.sleep(remaining)
            else:
                self._roles.drop()
                await self._beaten.wait()

    async def send_beats(self) -> None:
        """Background loop: send the heartbeats from here, without a thread."""
        while True:
            await trio.sleep(self._membership.interval)
            if (beat := self._membership.beat()) is not None:
                self.note_beat(beat)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive hints from other nodes during the block."""
        with self.hints.listen(TOPIC, self.note_hint), self._roles.listening():
            yield

    def start(self, nursery: trio.Nursery, *, threads: bool) -> None:
        """Start the heartbeats and the background tasks."""
        if threads:
            self._membership.start(self.note_beat)
        else:
            start_soon(nursery, self.send_beats)
        start_soon(nursery, self.run_releases)
        start_soon(nursery, self.watch_lease)
