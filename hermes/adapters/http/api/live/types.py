"""What the live view sends. Times are Unix times; ages follow from them without updates."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hermes.actors.views.live import LiveRuntime
from hermes.adapters.jsonrpc.types import Row
from hermes.config import Budgets
from hermes.messages import (
    CachedConversation,
    CostsToday,
    LaneRow,
    LineageSession,
    LiveActor,
    LiveLane,
    LiveLease,
    ModelCall,
    PromptDifference,
    Rebuild,
    Replacement,
    StoreStatistics,
)


class LiveStore(msgspec.Struct, frozen=True, kw_only=True):
    """The store: its queue, its sizes, and what waits in it."""

    writer: StoreStatistics
    """Requests that wait for the next commit, and counters since the start."""
    queue_limit: int
    wal_bytes: int
    wal_limit: int
    database_bytes: int
    inbox_open: int
    """Accepted messages without an answer."""
    inbox_oldest_at: float | None
    unindexed: int
    """Messages that the search index lacks."""
    hooks_open: int
    dead: int
    """Replies given up within the last day."""


class LiveNode(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a cluster."""

    node: int
    name: str
    here: bool
    """Whether it is the one that serves this view."""
    draining: bool
    """Whether it is about to end and hands over its conversations."""
    owned: int
    """How many conversations it serves."""
    lease_until: float
    roles: list[str]
    """What only this node does for all of them."""


class LiveClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, and the node that serves it."""

    session_key: str
    node: int
    before: int | None = None
    """The node that served it before, if that was seen."""
    moved_at: float | None = None
    """When it was seen to move."""


class LiveCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent since midnight, and what may be spent. It is read every ten seconds."""

    today: CostsToday
    budgets: Budgets | None
    """The limits; null if the host has not said."""


class LiveSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state. The events after its `id` continue it."""

    id: str
    at: float
    runtime: LiveRuntime
    store: LiveStore | None
    """Null if the store did not answer."""
    costs: LiveCosts
    actors: list[LiveActor]
    lanes: list[LiveLane]
    leases: list[LiveLease]
    nodes: list[LiveNode]
    """The nodes of the cluster; none for a single process."""
    claims: list[LiveClaim]
    """At most 1,000 conversations of the cluster, those that were claimed last."""
    commits: list[int]
    """Committed turns in each of the last sixty seconds, oldest first."""
    commit_bounds: tuple[float, ...]
    """The upper bounds of the histogram of commit times, in seconds."""


class LiveChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed since the event before; other fields are left out.

    Actors and claims replace those with the same key, and lanes those with the same name.
    """

    at: float
    runtime: LiveRuntime | UnsetType = UNSET
    store: LiveStore | UnsetType | None = UNSET
    costs: LiveCosts | UnsetType = UNSET
    actors: list[LiveActor] | UnsetType = UNSET
    actors_gone: list[str] | UnsetType = UNSET
    lanes: list[LiveLane] | UnsetType = UNSET
    lanes_gone: list[str] | UnsetType = UNSET
    leases: list[LiveLease] | UnsetType = UNSET
    nodes: list[LiveNode] | UnsetType = UNSET
    claims: list[LiveClaim] | UnsetType = UNSET
    claims_gone: list[str] | UnsetType = UNSET


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of a conversation, those they came from and those made from them."""

    session_key: str
    current: str | None
    """The session in which the conversation continues: the tip."""
    sessions: list[LineageSession]


class SummaryDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A summary, and the rows that it replaced."""

    replaced: Replacement
    summary: Row
    rows: list[Row]
    """At most 200 of them, the oldest first."""


class CallsQuery(msgspec.Struct, kw_only=True):
    """The page to return."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    before: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    """The id of the last call of the page before."""


class CacheDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The model calls of a conversation, and why its agents were replaced; the latest first."""

    session_key: str
    calls: list[ModelCall]
    rebuilds: list[Rebuild]


class PromptComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The last prompt before a turn, and the first prompt of the turn, byte by byte."""

    turn_id: int
    earlier_turn: int | None = None
    """The turn of the earlier prompt; null if none was recorded."""
    exact: bool = False
    """Whether both are known to be what was sent, by their hashes."""
    extended: bool = False
    """Whether the new one has the earlier one's messages at its beginning, and only adds others."""
    difference: PromptDifference | None = None
    """Null if the bytes are not known."""
    reasons: list[str] = []
    """Why the bytes are not known, or not exact."""


class CacheList(msgspec.Struct):
    """Conversations that called a model, most recently active first."""

    conversations: list[CachedConversation]


class LaneQuery(msgspec.Struct, kw_only=True):
    """The page to return, of one lane or of all."""

    lane: Annotated[str, Meta(max_length=2000)] | None = None
    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """The number of the last reply of the page before."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


class LaneRows(msgspec.Struct):
    """Replies that are not delivered, or were given up within the last day, oldest first."""

    rows: list[LaneRow]
