"""The state of a runtime, for operators and monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from hermes.actors.context import RuntimeContext
from hermes.actors.metrics import Latency, Spending
from hermes.actors.session.actor import SessionActor
from hermes.actors.supervisor import Supervisor
from hermes.messages import (
    AdmissionHealth,
    BuildReason,
    CacheHealth,
    EventHealth,
    LaneInfo,
    ReplyStatus,
    StoreHealth,
    StoreSnapshot,
    StoreStats,
)

ActorState: TypeAlias = Literal["running", "waiting", "idle", "quarantined"]


class RuntimeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of a runtime."""

    actors: int
    """Conversations in memory."""
    agents: int
    """Cached agents."""
    transcript_bytes: int
    """Approximate size of the cached transcripts."""
    builds: Mapping[BuildReason, int]
    """Agent builds since the start, by reason."""
    reuses: int
    """Turns that reused their cached agent."""
    draining: bool
    """Whether the runtime is ending."""
    running: int
    """Turns that are running now."""
    turns: Mapping[ReplyStatus, int]
    """Replies since the start, by status."""
    errors: Mapping[str, int]
    """Failed turns since the start, by class of the error."""
    last_error: tuple[str, float] | None
    """The class of the last error, and its wall-clock time."""
    spending: Spending
    """Provider calls of turns since the start."""
    commits: Latency
    """Commit times."""
    store: StoreStats | None
    """Open messages, undelivered replies and today's cost; None if the store did not answer."""


class RuntimeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a runtime and its store."""

    statistics: RuntimeStatistics
    states: dict[ActorState, int]
    """Conversations in memory that run a turn, have waiting messages, or neither; and those that
    failed too often and are paused.
    """
    store: StoreHealth | None
    """None if the store did not answer."""
    lanes: tuple[LaneInfo, ...]
    """The chats that have undelivered replies, those that wait longest first."""
    cache: CacheHealth
    admission: AdmissionHealth | None
    """None if the host decides who may use the runtime."""
    events: EventHealth


def statistics_of(
    context: RuntimeContext, supervisor: Supervisor, stored: StoreStats | None
) -> RuntimeStatistics:
    """Return counters and gauges of a runtime, with those of its store."""
    actors, metrics = supervisor.actors, context.metrics
    return RuntimeStatistics(
        actors=len(actors),
        agents=sum(actor.state.cache.has_agent for actor in actors),
        transcript_bytes=sum(actor.state.cache.size for actor in actors),
        builds=Counter(metrics.builds),
        draining=supervisor.draining,
        running=sum(actor.runner.turn is not None for actor in actors),
        reuses=metrics.reuses,
        turns=Counter(metrics.turns),
        errors=Counter(metrics.errors),
        last_error=metrics.last_error,
        spending=metrics.spending,
        commits=metrics.latency(),
        store=stored,
    )


def health_of(
    context: RuntimeContext, supervisor: Supervisor, stored: StoreSnapshot | None
) -> RuntimeHealth:
    """Return the state of a runtime, with that of its store."""
    counts = None if stored is None else stored.counts
    statistics = statistics_of(context, supervisor, counts)
    bus, admission = context.bus, context.admission
    return RuntimeHealth(
        statistics=statistics,
        states=_states(supervisor),
        store=None if stored is None else stored.health,
        lanes=() if stored is None else stored.lanes,
        cache=cache_of(context, statistics.agents, statistics.transcript_bytes),
        admission=None if admission is None else admission.health(),
        events=EventHealth(published=bus.seq, subscribers=bus.subscribers, lost=bus.lost),
    )


def _states(supervisor: Supervisor) -> dict[ActorState, int]:
    counts = Counter(map(_state, supervisor.actors))
    return {**counts, "quarantined": len(supervisor.quarantined)}


def _state(actor: SessionActor) -> ActorState:
    if actor.runner.turn is not None:
        return "running"
    return "waiting" if actor.inbox.waiting else "idle"


def cache_of(context: RuntimeContext, agents: int, transcript_bytes: int) -> CacheHealth:
    """Return what conversations keep in memory, and how often that was reused."""
    metrics, spending = context.metrics, context.metrics.spending
    hits, misses = metrics.reuses, sum(metrics.builds.values())
    return CacheHealth(
        agents=agents,
        agent_limit=context.config.max_agents,
        transcript_bytes=transcript_bytes,
        transcript_limit=context.config.transcript_bytes,
        hits=hits,
        misses=misses,
        hit_rate=_share(hits, misses),
        rebuilds=dict(metrics.builds),
        cached_token_share=_share(spending.cached_tokens, spending.input_tokens),
    )


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None
