"""The roles of a node of a PostgreSQL database, and what runs as each."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol

import attrs
import trio

from hermes.background import cancel, set_event
from hermes.errors import HermesError
from hermes.messages import NodeInfo, RoleClaim
from hermes.protocols.cluster import Hints
from hermes.store.cluster import roles
from hermes.store.engine import ClusterStore

log: Final = logging.getLogger(__name__)

GIVE_SECONDS: Final = 2.0
WAKE: Final = "wake"
"""Hints to the node that has a role: there is something to do."""
FREE: Final = "role"
"""Hints to all nodes: a role was given up."""


class Node(Protocol):
    """What roles need of their node."""

    @property
    def hints(self) -> Hints: ...
    @property
    def node(self) -> int: ...
    @property
    def nodes(self) -> Mapping[int, NodeInfo]: ...
    @property
    def trusted(self) -> bool: ...
    @property
    def takes_roles(self) -> bool: ...
    @property
    def known_holders(self) -> Mapping[str, int]: ...
    async def until_trusted(self) -> None: ...


@attrs.define(eq=False)
class _Held:
    """A role that this node has taken, until everything that runs as this role has ended."""

    claim: RoleClaim
    scopes: set[trio.CancelScope] = attrs.Factory(set)


class NodeRoles:
    """What runs as a role on this node. See `hermes.protocols.Roles`."""

    def __init__(self, node: Node, store: ClusterStore, poll: float) -> None:
        self._node = node
        self._store = store
        self._poll = poll
        """Seconds between two looks, if there is no hint."""
        self._held: dict[str, _Held] = {}
        self._taking: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._woken: defaultdict[str, trio.Event] = defaultdict(trio.Event)
        self._changed = trio.Event()
        """Set when a role may be free."""

    @property
    def holders(self) -> Mapping[str, int]:
        """The roles that nodes have, with the id of the node."""
        return {**self._node.known_holders, **dict.fromkeys(self._held, self._node.node)}

    def claim_of(self, role: str) -> RoleClaim | None:
        """Return the claim under which this node has a role; None if it does not have it."""
        held = self._held.get(role)
        return None if held is None else held.claim

    def holds(self, role: str) -> bool:
        """Whether this node has a role and may act in it now."""
        return role in self._held and self._node.trusted

    async def run_as(self, role: str, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function while this node has the role, until the function returns."""
        while True:
            held = await self._hold(role)
            with trio.CancelScope() as scope:
                held.scopes.add(scope)
                try:
                    await function()
                    return
                finally:
                    held.scopes.discard(scope)
                    if not held.scopes:
                        await self._give(held)

    async def _hold(self, role: str) -> _Held:
        """Wait until this node has a role."""
        async with self._taking[role]:  # one bid for all that runs as this role
            while (held := self._held.get(role)) is None:
                if (claim := await self._bid(role)) is not None and claim.node == self._node.node:
                    held = self._held[role] = _Held(claim)
                    log.info("node %d has the role %s", claim.node, role)
                    break
        return held

    async def _bid(self, role: str) -> RoleClaim | None:
        """Take a role if no living node has it; else wait a while, and return None."""
        await self._node.until_trusted()
        changed = self._changed
        with suppress(HermesError):
            if self._node.takes_roles and await self._is_free(role):
                work = partial(roles.claim_role, name=role, node=self._node.node)
                if (claim := await self._store.transact_alone(work)) is not None:
                    return claim
        with trio.move_on_after(self._poll):
            await changed.wait()
        return None

    async def _is_free(self, role: str) -> bool:
        held = await self._store.snapshot(roles.holders)
        return all(claim.name != role for claim in held)

    async def _give(self, held: _Held) -> None:
        """Give up a role, and tell the others."""
        if self._held.get(held.claim.name) is held:
            del self._held[held.claim.name]
        with trio.move_on_after(GIVE_SECONDS, shield=True), suppress(HermesError):
            await self._store.transact_alone(partial(roles.release_role, claim=held.claim))
        for node in self._node.nodes:
            if node != self._node.node:
                self._node.hints.send(node, FREE)

    def drop(self, keep: Collection[str] = ()) -> None:
        """End what runs as a role; each role is given up once all of that has ended."""
        for role in self._held.keys() - set(keep):
            for scope in self._held.pop(role).scopes:
                cancel(scope)

    def note_change(self) -> None:
        """Note that a role may be free."""
        changed, self._changed = self._changed, trio.Event()
        set_event(changed)

    # Wakes

    def wake(self, role: str) -> None:
        """Tell the node that has a role that there is something to do."""
        if role in self._held:
            set_event(self._woken[role])
        elif (node := self._node.known_holders.get(role)) is not None:
            self._node.hints.send(node, WAKE, role)

    async def until_woken(self, role: str) -> bool:
        """Wait for `wake`, at most until it is time to look. Returns whether it was called."""
        with trio.move_on_after(self._poll) as waiting:
            await self._woken[role].wait()
        self._woken.pop(role, None)
        return not waiting.cancelled_caught

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receive hints from other nodes during the block."""
        hints = self._node.hints
        with (
            hints.listen(WAKE, lambda role: set_event(self._woken[role])),
            hints.listen(FREE, lambda _: self.note_change()),
        ):
            yield
