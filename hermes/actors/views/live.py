"""What operators see of a running runtime: only what has changed since they last looked."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import trio

from hermes.actors.context import RuntimeContext
from hermes.actors.metrics import Latency
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.running_turn import RunningTurn
from hermes.actors.supervisor import Supervisor
from hermes.actors.views.health import cache_of
from hermes.messages import (
    AdmissionHealth,
    CachedConversation,
    CacheHealth,
    ClusterView,
    CostsToday,
    EventHealth,
    LaneRow,
    LineageSession,
    LiveActor,
    ModelCall,
    Rebuild,
    Replacement,
    ReplyStatus,
    StoredMessage,
    StorePulse,
)

_Facts: TypeAlias = tuple[Any, ...]


class LiveRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of a runtime, without its store and its actors."""

    draining: bool
    turns: dict[ReplyStatus, int]
    """Replies since the start, by status."""
    errors: dict[str, int]
    """Failed turns since the start, by class of the error."""
    quarantined: tuple[str, ...]
    """The keys of conversations that failed too often and are paused."""
    commits: Latency
    cache: CacheHealth
    admission: AdmissionHealth | None
    events: EventHealth


class ActorWatch:
    """Compares the actors with what they were when it last looked."""

    def __init__(self, context: RuntimeContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        self._known: dict[str, _Facts] = {}
        self._shown: dict[str, LiveActor] = {}

    @property
    def actors(self) -> list[LiveActor]:
        """The actors as they were when it last looked."""
        return [*self._shown.values()]

    def look(self) -> tuple[list[LiveActor], list[str]]:
        """Return the actors that have changed, and the keys of those that have ended.

        There is no checkpoint, and no query: it reads a few attributes of each actor.
        """
        known, changed, now = self._known, list[LiveActor](), trio.current_time()
        actors = self._supervisor.actors
        for actor in actors:
            facts, key = _facts(actor), actor.state.key
            if known.get(key) != facts:
                known[key] = facts
                self._shown[key] = info = _live_actor(actor, facts, now)
                changed.append(info)
        if len(known) == len(actors):
            return changed, []
        keys = {actor.key for actor in actors}
        gone = [key for key in known if key not in keys]
        for key in gone:
            del known[key], self._shown[key]
        return changed, gone


def _facts(actor: SessionActor) -> _Facts:
    """Return what an entry is made of, as far as it can change."""
    cache, turn, inbox = actor.state.cache, _running(actor), actor.inbox
    waiting = inbox.waiting if inbox.queue or len(inbox.mailbox) else 0
    return (
        actor.last_used, waiting, None if turn is None else turn.turn_id, cache.has_agent,
        cache.measured, cache.builds, actor.state.session_id,
    )  # fmt: skip


def _running(actor: SessionActor) -> RunningTurn | None:
    """Return the turn whose agent has started and that is not on disk yet."""
    turn = actor.runner.latest
    if turn is None or turn.started is None or turn.reply is not None or turn.discarded:
        return None
    return turn


def _live_actor(actor: SessionActor, facts: _Facts, now: float) -> LiveActor:
    last_used, mailbox, turn_id, has_agent, size, builds, session_id = facts
    turn = _running(actor)
    started = None if turn is None or turn.started is None else turn.started
    return LiveActor(
        session_key=actor.key,
        session_id=session_id,
        mailbox=mailbox,
        turn_id=turn_id,
        turn_started=None
        if turn is None or started is None
        else turn.rows[0].accepted_at + started.waited,
        agent=has_agent,
        builds=sum(builds.values()),
        last_build=next(reversed([*builds]), None),
        transcript_bytes=size,
        used_at=actor.state.context.wall() - max(0.0, now - last_used),
    )


class LiveViews:
    """The part of `runtime.api` that the live view of operators reads."""

    _context: RuntimeContext
    _supervisor: Supervisor

    def watch_actors(self) -> ActorWatch:
        """Return a watch that has seen no actor yet."""
        self._supervisor.require_running()
        return ActorWatch(self._context, self._supervisor)

    def live_runtime(self) -> LiveRuntime:
        """Return the counters of the runtime. There is no checkpoint, and no query."""
        self._supervisor.require_running()
        context, metrics = self._context, self._context.metrics
        bus, caches, admission = context.bus, context.caches, context.admission
        return LiveRuntime(
            draining=self._supervisor.draining,
            turns={**metrics.turns},
            errors={**metrics.errors},
            quarantined=tuple(sorted(self._supervisor.quarantined)),
            commits=metrics.latency(),
            cache=cache_of(context, caches.agents, caches.size),
            admission=None if admission is None else admission.health(),
            events=EventHealth(published=bus.seq, subscribers=bus.subscribers, lost=bus.lost),
        )

    def commits_by_second(self, seconds: int = 60) -> list[int]:
        """Return how many turns were committed in each of the last seconds, oldest first."""
        self._supervisor.require_running()
        return self._context.metrics.commits.by_second(trio.current_time(), seconds)

    async def pulse(self) -> StorePulse:
        """Return what changes in the store from second to second, by one query."""
        return await self._supervisor.store.pulse()

    def node_id(self) -> int:
        """Return the id of this node; 0 for a process that has its store for itself."""
        return self._supervisor.store.cluster.node

    async def cluster_view(self) -> ClusterView:
        """Return the nodes of the cluster, and which conversations each of them serves."""
        return await self._supervisor.store.cluster.view()

    async def costs_today(self) -> CostsToday:
        """Return what was spent since midnight, and by whom."""
        return await self._supervisor.store.costs_today()

    async def lane_rows(
        self, lane: str | None = None, *, after: int = 0, limit: int = 100
    ) -> list[LaneRow]:
        """Return the undelivered replies of a chat or of all, and those given up within a day."""
        return await self._supervisor.store.lane_rows(lane, after=after, limit=limit)

    async def session_family(self, session_key: str) -> list[LineageSession]:
        """Return the sessions of a key, those they came from, and those made from them."""
        return await self._supervisor.store.session_family(session_key)

    async def summary_rows(
        self, session_id: str, *, limit: int = 200
    ) -> tuple[Replacement, StoredMessage, list[StoredMessage]] | None:
        """Return what the summary of a session replaced; None if the session has no summary.

        Raises `UnknownSession`.
        """
        return await self._supervisor.store.summary_rows(session_id, limit=limit)

    async def model_calls(
        self, session_key: str, *, before: int | None = None, limit: int = 100
    ) -> list[ModelCall]:
        """Return the model calls of a conversation, the latest first."""
        return await self._supervisor.store.model_calls(session_key, before=before, limit=limit)

    async def cached_conversations(self, limit: int = 100) -> list[CachedConversation]:
        """Return the latest conversations that called a model, with what came from caches."""
        return await self._supervisor.store.cached_conversations(limit)

    def rebuilds(self, session_key: str) -> list[Rebuild]:
        """Return why the agents of a conversation were replaced, the latest first."""
        self._supervisor.require_running()
        return self._context.rebuilds.of(session_key)
