"""The live feed: what an operator sees, compared once a second while somebody looks.

All listeners read the same events. A second in which nothing changes sends nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs
import trio
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from hermes.actors.metrics import COMMIT_BOUNDS
from hermes.actors.runtime import Runtime
from hermes.actors.views.live import ActorWatch, LiveRuntime
from hermes.adapters.http.api.live.cluster import ClusterWatch
from hermes.adapters.http.api.live.types import LiveChanges, LiveCosts, LiveSnapshot, LiveStore
from hermes.adapters.http.api.streams.channels import Channel, Listener, Numbers
from hermes.background import set_event, start_soon
from hermes.config import Budgets
from hermes.errors import ActorStopped, StoreFailed
from hermes.messages import ClusterView, CostsToday, LiveLane, LiveLease, StorePulse
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)
T = TypeVar("T")

NAME = "live"
INTERVAL = 1.0
"""Seconds between two comparisons."""
COSTS_EVERY = 10
"""Comparisons between two looks at the costs, for which the calls of the day are added up."""


@attrs.define(eq=False)
class _Seen:
    """What the listeners know."""

    watch: ActorWatch
    runtime: LiveRuntime
    store: LiveStore | None = None
    costs: LiveCosts = attrs.field(factory=lambda: LiveCosts(today=CostsToday(), budgets=None))
    lanes: dict[str, LiveLane] = attrs.field(factory=dict)
    leases: list[LiveLease] = attrs.field(factory=list)
    cluster: ClusterWatch = attrs.field(factory=ClusterWatch)


class LiveFeed(Channel):
    """Compares the runtime with what the listeners know, and sends the difference."""

    def __init__(
        self,
        runtime: Runtime,
        nursery: trio.Nursery,
        process: str,
        budgets: Callable[[], Budgets | None],
    ) -> None:
        super().__init__(NAME, Numbers(process))
        self._runtime = runtime
        self._nursery = nursery
        self._budgets = budgets
        self._known: _Seen | None = None
        self._read = trio.Event()
        self._running = False
        self.interval: float = INTERVAL
        self.ticks: int = 0
        """Comparisons so far."""
        self.bytes: int = 0
        """Bytes of the events so far."""

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """Listen during the block."""
        listener = Listener()
        self.listeners.add(listener)
        if not self._running:
            self._running = True
            start_soon(self._nursery, self._run)
        try:
            yield listener
        finally:
            self.listeners.discard(listener)

    async def snapshot(self) -> LiveSnapshot | None:
        """Return what the listeners know, after the first comparison; None if it has failed."""
        await self._read.wait()
        seen = self._known
        if seen is None:
            return None
        return LiveSnapshot(
            id=self.event_id(self.numbers.last),
            at=time.time(),
            runtime=seen.runtime,
            store=seen.store,
            costs=seen.costs,
            actors=seen.watch.actors,
            lanes=[*seen.lanes.values()],
            leases=seen.leases,
            nodes=seen.cluster.nodes,
            claims=[*seen.cluster.claims.values()],
            commits=self._runtime.api.commits_by_second(),
            commit_bounds=COMMIT_BOUNDS,
        )

    def close(self) -> None:
        """Let the streams find that the server ends."""
        set_event(self._read)
        self.wake()

    async def _run(self) -> None:
        """Compare until nobody listens."""
        try:
            while self.listeners:
                with contained() as caught:
                    await self._tick()
                if isinstance(caught.error, ActorStopped | StoreFailed):
                    break
                if caught.error is not None:
                    log.error("the live view was not updated", exc_info=caught.error)
                await trio.sleep(self.interval)
        finally:
            self._running = False
            self._known = None
            set_event(self._read)
            self._read = trio.Event()
            self.forget()

    async def _tick(self) -> None:
        """Send what has changed; at the first time, let the snapshots be taken."""
        api = self._runtime.api
        pulse: StorePulse | None = None
        cluster: ClusterView | None = None
        with contained(ActorStopped, StoreFailed):  # the store may be busy
            pulse = await api.pulse()
            cluster = await api.cluster_view()
        costs = None
        if self._known is None or self.ticks % COSTS_EVERY == 0:
            with contained(ActorStopped, StoreFailed):
                costs = LiveCosts(today=await api.costs_today(), budgets=self._budgets())
        self.ticks += 1
        if self._known is None:
            self._known = _Seen(api.watch_actors(), api.live_runtime())
        changes = self._compare(self._known, api.live_runtime(), pulse, costs)
        if cluster is not None:
            changes = self._compare_cluster(self._known.cluster, cluster, changes)
        if self._read.is_set() and _has_changes(changes):
            self.emit("changed", "", changes)
            self.bytes += len(self.after(self.numbers.last - 1)[-1].frame)
        set_event(self._read)

    def _compare(
        self, seen: _Seen, runtime: LiveRuntime, pulse: StorePulse | None, costs: LiveCosts | None
    ) -> LiveChanges:
        """Take over the new state, and return what is new in it. There is no checkpoint."""
        actors, gone = seen.watch.look()
        store = None if pulse is None else _store(pulse)
        lanes, leases = seen.lanes, seen.leases
        if pulse is not None:
            lanes = {each.lane: each for each in pulse.counts.lanes}
            leases = [*pulse.counts.leases]
        changes = LiveChanges(
            at=time.time(),
            runtime=_new(seen.runtime, runtime),
            store=_new(seen.store, store),
            costs=UNSET if costs is None else _new(seen.costs, costs),
            actors=_some(actors),
            actors_gone=_some(gone),
            lanes=_some(lane for name, lane in lanes.items() if seen.lanes.get(name) != lane),
            lanes_gone=_some(name for name in seen.lanes if name not in lanes),
            leases=_new(seen.leases, leases),
        )
        seen.runtime, seen.store, seen.lanes, seen.leases = runtime, store, lanes, leases
        seen.costs = costs or seen.costs
        return changes

    def _compare_cluster(
        self, watch: ClusterWatch, cluster: ClusterView, changes: LiveChanges
    ) -> LiveChanges:
        before = watch.nodes
        claims, gone = watch.look(cluster, self._runtime.api.node_id(), changes.at)
        nodes = _new(before, watch.nodes)
        return replace(changes, nodes=nodes, claims=_some(claims), claims_gone=_some(gone))


def _store(pulse: StorePulse) -> LiveStore:
    counts = asdict(pulse.counts)
    del counts["lanes"], counts["leases"]
    fields = asdict(pulse)
    del fields["counts"]
    return LiveStore(**fields, **counts)


def _new(before: T, now: T) -> T | UnsetType:
    return UNSET if before == now else now


def _some(items: Iterable[T]) -> list[T] | UnsetType:
    return [*items] or UNSET


def _has_changes(changes: LiveChanges) -> bool:
    return any(value is not UNSET for name, value in asdict(changes).items() if name != "at")
