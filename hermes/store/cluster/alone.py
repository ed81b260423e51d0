"""The trivial cluster: one process, which serves every conversation and has every role."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, Protocol

import trio

from hermes.background import protected, set_event
from hermes.messages import Accepted, Claim, ClusterView, NodeInfo
from hermes.protocols.cluster import OnHint, Waiting

WATCH_INTERVAL = 1.0


class _Store(Protocol):
    """What it reads from the store."""

    async def waiting_keys(self, after: int = 0, limit: int = 1000) -> list[tuple[str, int]]: ...


class NoHints:
    """There is nobody to send hints to."""

    def join(self, node: int) -> None:
        """Do nothing."""

    def send(self, node: int, topic: str, payload: str = "") -> None:
        """Do nothing."""

    @contextmanager
    def listen(self, topic: str, on_hint: OnHint) -> Iterator[None]:
        """Never call `on_hint`."""
        del topic, on_hint
        yield


class Alone:
    """A process that shares its store with no other node. See `hermes.protocols.Cluster`."""

    node: int = 0
    nodes: Mapping[int, NodeInfo] = {}
    hints: NoHints = NoHints()
    others: bool = False
    ids_in_order: bool = True
    holders: Mapping[str, int] = {}

    def __init__(self, store: _Store) -> None:
        self._store = store
        self._woken: defaultdict[str, trio.Event] = defaultdict(trio.Event)

    def serves(self, accepted: Accepted) -> bool:
        """Return True."""
        del accepted
        return True

    def tell(self, name: str, fact: Callable[[], Any]) -> None:
        """Do nothing: there is nobody to tell."""
        del name, fact

    async def until_trusted(self) -> None:
        """Return at once."""

    async def owner_of(self, session_key: str) -> None:
        """Return None: there are no claims."""

    async def view(self) -> ClusterView:
        """Return a view without nodes."""
        return ClusterView()

    async def leases(self) -> Mapping[int, float]:
        """Return nothing: there are no leases."""
        return {}

    async def owners_of(self, session_keys: Sequence[str]) -> Mapping[str, Claim]:
        """Return nothing: there are no claims."""
        del session_keys
        return {}

    async def set_listened(self, session_keys: Collection[str]) -> None:
        """Do nothing."""

    async def listened(self) -> Sequence[tuple[int, str]]:
        """Return nothing: there are no other nodes."""
        return ()

    async def claim(self, session_key: str) -> None:
        """Return None: there are no claims."""

    def balance(self, owned: int, idle: Sequence[str]) -> Sequence[str]:
        """Return nothing."""
        del owned, idle
        return ()

    def release_idle(self, released: Sequence[Claim]) -> None:
        """Do nothing."""

    async def start_draining(self) -> None:
        """Do nothing."""

    async def hand_over(self, session_keys: Sequence[str]) -> None:
        """Do nothing."""

    @contextmanager
    def watch(self, on_lost: Callable[[], None]) -> Iterator[None]:
        """Never call back."""
        del on_lost
        yield

    async def waiting(self, after: int, limit: int) -> Sequence[Waiting]:
        """Return all open messages with an id above `after`, by id."""
        found = await self._store.waiting_keys(after, limit)
        return [(session_key, inbox_id, None) for session_key, inbox_id in found]

    async def until_hint(self) -> None:
        """Sleep: another process may have accepted a message."""
        await trio.sleep(WATCH_INTERVAL)

    def claim_of(self, role: str) -> None:
        """Return None: there are no claims."""

    def holds(self, role: str) -> bool:
        """Return True."""
        del role
        return True

    async def run_as(self, role: str, function: Callable[[], Awaitable[None]]) -> None:
        """Run the function."""
        del role
        await function()

    def wake(self, role: str) -> None:
        """Let `until_woken` return."""
        set_event(self._woken[role])

    async def until_woken(self, role: str) -> bool:
        """Wait for `wake`."""
        await self._woken[role].wait()
        del self._woken[role]
        return True


@protected
async def join_nobody(store: _Store) -> AsyncIterator[Alone]:
    """Be the only process that uses a store, during the block."""
    yield Alone(store)
