"""What an operator sees of a running runtime: read models of the live view."""

from __future__ import annotations

from typing import Literal

import msgspec

from hermes.messages.outbox import OutboxState, StoreStatistics
from hermes.messages.replies import BuildReason
from hermes.messages.sessions import SessionKind


class LiveActor(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in memory. Ages follow from the times, so they need no updates."""

    session_key: str
    session_id: str | None
    mailbox: int
    """Messages in memory that wait for their turn."""
    turn_id: int | None
    """The running turn."""
    turn_started: float | None
    """When it began, in Unix time."""
    agent: bool
    """Whether an agent is cached."""
    builds: int
    """How often an agent was built."""
    last_build: BuildReason | None
    """Why it was built last."""
    transcript_bytes: int
    used_at: float
    """When the conversation was last used, in Unix time."""


class LiveLane(msgspec.Struct, frozen=True, kw_only=True):
    """The undelivered replies of one chat."""

    lane: str
    session_key: str
    pending: int
    sending: int
    retried: int
    """Replies that were tried before."""
    unknown: int
    """Replies that the platform may already have, because the outcome of a send is unknown."""
    attempts: int
    """How often the one that was tried most often was tried."""
    oldest_at: float


class LiveLease(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is being compressed."""

    session_id: str
    session_key: str | None
    holder: str
    expires_at: float
    """When the lease ends unless it is renewed, in Unix time."""


class LiveCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tables of a store say, read in one transaction. It is cheap to read each second."""

    inbox_open: int = 0
    """Accepted messages without an answer."""
    inbox_oldest_at: float | None = None
    unindexed: int = 0
    """Messages that the search index lacks."""
    hooks_open: int = 0
    """Session boundaries whose hooks have not all run."""
    dead: int = 0
    """Replies given up within the last day."""
    lanes: tuple[LiveLane, ...] = ()
    """The chats that have undelivered replies, those that wait longest first."""
    leases: tuple[LiveLease, ...] = ()


class StorePulse(msgspec.Struct, frozen=True, kw_only=True):
    """A store at one moment: its counts, and what its writer has done."""

    counts: LiveCounts
    writer: StoreStatistics
    queue_limit: int
    wal_bytes: int
    wal_limit: int
    database_bytes: int


class Payer(msgspec.Struct, frozen=True):
    """What the calls of one user have cost since midnight."""

    payer: str
    """The platform and the id of the user, with a slash between them."""
    cost: float


class CostlySession(msgspec.Struct, frozen=True):
    """A session that has spent something since midnight, and its total cost."""

    session_id: str
    session_key: str | None
    cost: float


class CostsToday(msgspec.Struct, frozen=True, kw_only=True):
    """What was spent since midnight. The lists have the largest amounts."""

    total: float = 0.0
    payers: tuple[Payer, ...] = ()
    sessions: tuple[CostlySession, ...] = ()


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A reply of a lane: one that is not delivered, or was given up within the last day."""

    outbox_id: int
    lane: str
    session_key: str
    turn_id: int
    state: OutboxState
    attempts: int
    parts_sent: int
    unknown: bool
    """Whether the platform may already have it."""
    created_at: float
    closed_at: float | None
    note: str | None
    """Why it was given up."""
    preview: str
    """The beginning of its text."""


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """What the summary at the beginning of a session replaced in the session before it."""

    message: int
    """The row of the summary."""
    session_id: str
    """The session whose rows it replaced."""
    first: int | None
    last: int | None
    """The first and the last of these rows; null if they are not there any more."""
    count: int


class LineageSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session, and the one from which it was made."""

    session_id: str
    parent: str | None
    kind: SessionKind
    title: str | None
    session_key: str | None
    started_at: float
    last_active: float
    ended_at: float | None
    end_reason: str | None
    messages: int
    cost: float
    current: bool
    """Whether the conversation continues here."""
    keys: tuple[str, ...] = ()
    """The conversations that continue here."""
    summary: Replacement | None = None


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model, with what its provider read from a cache."""

    id: int
    session_id: str
    turn_id: int | None
    purpose: str
    model: str | None
    input_tokens: int
    """Tokens that were neither read from the cache nor written to it."""
    cache_read_tokens: int
    cache_write_tokens: int
    output_tokens: int
    cost: float | None
    created_at: float
    build_reason: BuildReason | None
    """Why the agent was built for the turn of this call; null if it was reused, or not known."""


class CachedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the input of a session came from the caches of providers."""

    session_key: str
    session_id: str
    title: str | None
    calls: int
    input_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    last_active: float


class PromptDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first byte in which two prompts differ, with what is around it."""

    part: str
    """Where it is: "system prompt", "tools", "model", "settings"…"""
    offset: int
    """Bytes of the part before it, in UTF-8."""
    before: str
    """The old text around it."""
    after: str
    """The new text around it."""
    shown_from: int
    """Bytes of the part before these texts."""


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that replaced an earlier one, and the first difference between the two."""

    at: float
    session_id: str
    reason: BuildReason
    compared: Literal["prompts", "descriptions"]
    """What was compared: recorded prompts, or what the runtime knows of the agents: the model, the
    names of the tools, the system prompt and the settings."""
    difference: PromptDifference | None = None
    """Null if what was compared is equal."""
