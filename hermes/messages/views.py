"""What a client sees of conversations and of the runtime: read models of the API."""

from __future__ import annotations

from typing import Literal

import msgspec

from hermes.messages.approvals import Approval
from hermes.messages.outbox import StoreStats
from hermes.messages.replies import BuildReason
from hermes.messages.sessions import ConversationSettings
from hermes.messages.transcript import Head, JsonObject, StoredMessage, ToolCall


class ConversationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a list of conversations: a session_key, and its current session."""

    session_key: str
    session_id: str
    title: str | None
    preview: str
    """The beginning of the first user message."""
    platform: str
    """The platform of the last message."""
    started_at: float | None
    """When its first session began; None before the first turn."""
    last_active: float
    message_count: int
    waiting: int
    """Messages without an answer."""
    archived: bool
    model: str | None
    cost: float


class OpenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message or command that is accepted and has no answer yet."""

    inbox_id: int
    text: str
    platform: str
    accepted_at: float
    parts: tuple[JsonObject, ...] = ()


class KnownRows(msgspec.Struct, frozen=True):
    """What a reader has of a transcript: all rows up to `last`, of this state of the session."""

    session_id: str | None
    rewrites: int
    last: int


class ConversationView(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a conversation, read in one transaction."""

    session_key: str
    head: Head | None
    """The state of the transcript; None if nothing is stored."""
    rows: tuple[StoredMessage, ...]
    """The latest messages, or those that the reader does not know."""
    appended: bool
    """Whether `rows` follow what the reader knows; if not, they replace it."""
    earlier: bool
    """Whether the transcript has messages before these."""
    title: str | None
    settings: ConversationSettings
    archived: bool
    waiting: tuple[OpenMessage, ...]
    approvals: tuple[Approval, ...]
    """The tool calls that the user has not decided."""
    stamp: str | None
    """Changes whenever the state does; None if nothing is stored."""

    @property
    def session_id(self) -> str | None:
        """The current session; None if there is none."""
        return None if self.head is None else self.head.session_id


class ToolProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call of a running turn."""

    call: ToolCall
    finished: bool = False
    failed: bool = False
    content: str | None = None
    """The result, once it has finished."""


class TurnProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A running turn, and what it has published so far."""

    turn_id: int
    session_id: str
    inbox_ids: tuple[int, ...]
    """The messages that it answers."""
    attempt: int
    started_at: float
    text: str
    reasoning: str
    tools: tuple[ToolProgress, ...]


class TurnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The provider calls of one turn, or those outside of turns, added up."""

    turn_id: int | None
    purposes: tuple[str, ...]
    models: tuple[str, ...]
    calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float
    unpriced: int
    """Calls whose cost is not known."""
    last_at: float


class ActorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in memory."""

    session_key: str
    session_id: str | None
    mailbox: int
    """Messages in memory that wait for their turn."""
    turn_id: int | None
    """The running turn."""
    turn_seconds: float | None
    """How long it has been running."""
    has_agent: bool
    """Whether an agent is cached."""
    builds: dict[BuildReason, int]
    last_build: BuildReason | None
    """Why the agent was built last."""
    transcript_bytes: int
    idle_seconds: float


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The queue and the sizes of a store."""

    queue: int
    """Requests that wait for the next commit."""
    queue_limit: int
    """Further requests are refused."""
    commits: int
    """Commits since the start; each has one request or more."""
    requests: int
    """Requests in these commits."""
    largest_batch: int
    """Requests in the largest of them."""
    wal_bytes: int
    """Size of the write-ahead log."""
    wal_limit: int
    """Messages are refused while it has this size or more."""
    database_bytes: int
    free_bytes: int
    """Bytes of the database that are free for new rows."""
    disk_free_bytes: int | None
    """Bytes that the file system has left; null if that is not known."""
    unindexed: int
    """Messages that the search index lacks; a search adds them first."""
    sessions: dict[Literal["open", "ended"], int]
    conversations: int
    """Session keys that have a current session."""


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator sees of a store, read in one transaction."""

    counts: StoreStats
    health: StoreHealth
    lanes: tuple[LaneInfo, ...]


class CacheHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the conversations keep in memory, and how often that is reused."""

    agents: int
    agent_limit: int
    transcript_bytes: int
    transcript_limit: int
    hits: int
    """Turns that reused their cached agent."""
    misses: int
    """Turns for which it was built."""
    hit_rate: float | None
    """The share of the hits; null before the first turn."""
    rebuilds: dict[BuildReason, int]
    """The misses by cause."""
    cached_token_share: float | None
    """The share of the input tokens that providers read from their caches; null without any."""


class AdmissionLevel(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the rate limit of one sender."""

    platform: str
    account: str
    sender: str
    """The id of the user; of the chat, if there is no user."""
    left: float
    """Messages that it may send at once."""


class AdmissionHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The rate limits of senders."""

    per_minute: float
    burst: int
    senders: int
    """Senders that are remembered."""
    exhausted: int
    """Senders that must wait."""
    refused: int
    """Messages refused since the start: of unknown senders, too many, or without the role."""
    lowest: list[AdmissionLevel]
    """The senders that have the least left."""


class EventHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The event bus."""

    published: int
    """Events since the start."""
    subscribers: int
    lost: int
    """Events since the start that subscribers did not get, because they read too slowly."""


class LaneInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The undelivered replies of one chat."""

    lane: str
    session_key: str
    pending: int
    sending: int
    attempts: int
    """How often the first of them was tried."""
    recovered: int
    """Replies that the platform may already have."""
