"""The store as its consumers see it. Each method is one transaction, on disk when it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import UNSET, UnsetType

from hermes.errors import StoreFailed
from hermes.messages import (
    Accepted,
    Claim,
    ConversationSettings,
    CostTotals,
    Head,
    InboxReply,
    Lease,
    OutboxRow,
    Rotated,
    Rotation,
    Route,
    SearchHit,
    Session,
    SessionMatch,
    SessionSummary,
    Skipped,
    StoredMessage,
    StorePulse,
    StoreSnapshot,
    StoreStats,
    Title,
    Transcript,
    Usage,
)
from hermes.protocols.cluster import Cluster
from hermes.protocols.files import FileStore
from hermes.protocols.inbox import InboxStore
from hermes.protocols.records import AccessStore, ApiStore, ToolRecords
from hermes.protocols.views import ViewStore


class OutboxStore(FileStore, Protocol):
    """Replies that are to be sent."""

    @property
    def cluster(self) -> Cluster:
        """The other nodes that use this store, if there are any."""
        ...

    def acting(self, role: str) -> OutboxStore:
        """Return the verbs for what runs as a role: `NotOwner` once another node has it."""
        ...

    def pending_outbox(
        self, lane: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[OutboxRow]]:
        """Return replies that are not sent, in order; of one lane or of all."""
        ...

    def open_lanes(self) -> Awaitable[list[tuple[str, str, str]]]:
        """Return the lanes that have replies to send, each with its platform and account."""
        ...

    def served_platforms(self) -> Awaitable[list[str]]:
        """Return the platforms that have an adapter, or had one."""
        ...

    def serve_platforms(self, platforms: Sequence[str]) -> Awaitable[list[str]]:
        """Record that platforms have an adapter; return all that have one or had one."""
        ...

    def mark_sending(self, outbox_ids: Sequence[int]) -> Awaitable[list[int]]:
        """Record that sends are in flight. Returns those of them that are not closed."""
        ...

    def mark_part(self, outbox_id: int, part: int) -> Awaitable[None]:
        """Record how many parts of a long reply the platform has."""
        ...

    def mark_sent(self, outbox_ids: Sequence[int]) -> Awaitable[None]:
        """Record that the platform has these replies."""
        ...

    def mark_unsent(self, outbox_ids: Sequence[int]) -> Awaitable[None]:
        """Record that the platform did not accept these replies."""
        ...

    def mark_unknown(self, outbox_ids: Sequence[int]) -> Awaitable[None]:
        """Record that the platform may have these replies."""
        ...

    def mark_dead(self, outbox_ids: Sequence[int], note: str) -> Awaitable[None]:
        """Give these replies up, with a reason."""
        ...

    def mark_lane_dead(self, lane: str, note: str, *, since: int = 0) -> Awaitable[Sequence[int]]:
        """Give up all pending replies of a lane. Returns their ids."""
        ...

    def recover_outbox(self, lanes: Sequence[str] | None = None) -> Awaitable[int]:
        """Mark the sends that an earlier process left in flight as recovered."""
        ...


class TranscriptStore(Protocol):
    """The transcripts of sessions."""

    def load(self, session_id: str) -> Awaitable[Transcript]:
        """Return the live rows of a session and its head."""
        ...

    def head(self, session_id: str) -> Awaitable[Head]:
        """Return the state of a session's transcript."""
        ...

    def get_page(
        self,
        session_id: str,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        lineage: bool = False,
        include_rewound: bool = False,
    ) -> Awaitable[list[StoredMessage]]:
        """Return a page of a session's messages."""
        ...

    def get_history(  # noqa: PLR0913 - the filters of a list
        self,
        session_key: str,
        *,
        limit: int | None = None,
        before: int | None = None,
        after: int | None = None,
        lineage: bool = False,
        include_rewound: bool = False,
        include_waiting: bool = False,
    ) -> Awaitable[list[StoredMessage]]:
        """Return a page of the messages of a key's current session."""
        ...

    def rewind(
        self, session_id: str, message_id: int, *, answer: InboxReply | None = None
    ) -> Awaitable[list[StoredMessage]]:
        """Take back a message and all after it. Returns the rows."""
        ...

    def search_messages(
        self,
        query: str,
        *,
        session_key: str | None = None,
        key_prefixes: Sequence[str] | None = None,
        role: str | None = None,
        limit: int = 20,
    ) -> Awaitable[list[SearchHit]]:
        """Search messages, best match first."""
        ...


class SessionStoreVerbs(Protocol):
    """Sessions, their titles, and the routes of session_keys."""

    def get_route(self, session_key: str) -> Awaitable[Route | None]:
        """Return the route of a key."""
        ...

    def route_head(self, session_key: str) -> Awaitable[tuple[Route, Head] | None]:
        """Return the route of a key, and the head of the tip of its session."""
        ...

    def follow_route(self, session_key: str) -> Awaitable[tuple[Route, Head] | None]:
        """Move the route to the tip of its session. Returns the route and the tip's head."""
        ...

    def new_session(
        self,
        session_key: str,
        *,
        reason: str = "session_reset",
        title: str | None = None,
        platform: str | None = None,
        answer: InboxReply | None = None,
    ) -> Awaitable[Route]:
        """End the current session and point the key at a new one."""
        ...

    def close_session(self, session_key: str, *, reason: str = ...) -> Awaitable[str | None]:
        """End the current session. Returns its id."""
        ...

    def finalize(self, session_key: str, *, reason: str = ...) -> Awaitable[str | None]:
        """Run the finalize hooks of the current session without ending it."""
        ...

    def switch(
        self,
        session_key: str,
        target: str,
        *,
        any_key: bool = False,
        answer: InboxReply | None = None,
    ) -> Awaitable[Route]:
        """Point the key at another of its sessions, given by id, unique prefix or title.

        With `any_key`, the session may belong to another key.
        """
        ...

    def branch(
        self,
        session_id: str,
        *,
        title: str | None = None,
        session_key: str | None = None,
        before: int | None = None,
        answer: InboxReply | None = None,
    ) -> Awaitable[str]:
        """Copy a session, or what precedes a message; point the key at the copy. Returns its id."""
        ...

    def get_session(self, session_id: str) -> Awaitable[Session | None]:
        """Return a session."""
        ...

    def find(
        self, target: str, *, session_key: str | None = None
    ) -> Awaitable[SessionMatch | None]:
        """Find a conversation by id, unique prefix or title, of one key or of all."""
        ...

    def delete_session(self, session_id: str) -> Awaitable[int]:
        """Delete a session. Returns how many messages it had."""
        ...

    def list_sessions(
        self,
        *,
        session_key: str | None = None,
        include_subagents: bool = False,
        include_archived: bool = False,
        limit: int = 20,
        offset: int = 0,
    ) -> Awaitable[list[SessionSummary]]:
        """Return conversations, latest activity first."""
        ...

    def archive_session(
        self, session_id: str, *, session_key: str | None = None
    ) -> Awaitable[None]:
        """Hide a conversation from lists."""
        ...

    def unarchive_session(
        self, session_id: str, *, session_key: str | None = None
    ) -> Awaitable[None]:
        """List a conversation again."""
        ...

    def set_auto_title_if_empty(self, session_id: str, title: str) -> Awaitable[bool]:
        """Set a generated title unless there is one. Returns whether it was set."""
        ...

    def get_title(self, session_key: str) -> Awaitable[Title]:
        """Return the title of a conversation, which may be pending."""
        ...

    def set_title(self, session_key: str, title: str | None) -> Awaitable[tuple[str, Title]]:
        """Set the title of a conversation. Returns its session, and the title as stored."""
        ...

    def configure(
        self,
        session_key: str,
        *,
        agent: str | UnsetType | None = UNSET,
        model: str | UnsetType | None = UNSET,
        metadata: Mapping[str, Any] | UnsetType | None = UNSET,
    ) -> Awaitable[ConversationSettings]:
        """Change the settings of a conversation. Returns all of them."""
        ...


class CompressionStore(TranscriptStore, Protocol):
    """Compression: leases and the rotation to a child session."""

    def forget_runtimes(self, living: Sequence[int] = ()) -> Awaitable[int]:
        """Release the leases of earlier runtimes, except those of the nodes in `living`."""
        ...

    def acquire_lease(
        self, session_id: str, holder: str, ttl_seconds: float = ...
    ) -> Awaitable[Lease | None]:
        """Acquire the compression lease of a session; None while another holder has it."""
        ...

    def refresh_compression_lock(
        self, session_id: str, holder: str, ttl_seconds: float = ...
    ) -> Awaitable[bool]:
        """Extend a lease. Returns False if it was lost."""
        ...

    def release_compression_lock(self, session_id: str, holder: str) -> Awaitable[bool]:
        """Release a lease."""
        ...

    def get_compression_lock_holder(self, session_id: str) -> Awaitable[str | None]:
        """Return the holder of the lease, if there is one."""
        ...

    def get_compression_tip(self, session_id: str) -> Awaitable[str]:
        """Return the last compression descendant of a session, or the session itself."""
        ...

    def rotate(self, rotation: Rotation) -> Awaitable[Rotated | Skipped]:
        """Store a finished compression, or nothing if the session changed underneath it."""
        ...

    def get_meta(self, name: str) -> Awaitable[str | None]:
        """Return a stored setting."""
        ...

    def set_meta(self, name: str, value: str | None, *, replace: bool = True) -> Awaitable[None]:
        """Store a setting; None removes it."""
        ...


class UsageStore(Protocol):
    """The ledger of provider calls."""

    def book(self, session_id: str, calls: Sequence[Usage]) -> Awaitable[None]:
        """Record provider calls."""
        ...

    def get_usage(self, session_id: str) -> Awaitable[list[Usage]]:
        """Return the provider calls of a session."""
        ...

    def spent(self, session_id: str, platform: str, user_id: str | None) -> Awaitable[CostTotals]:
        """Return the costs of a conversation, and of today by its principal and by everybody."""
        ...


class Store(
    InboxStore,
    OutboxStore,
    SessionStoreVerbs,
    CompressionStore,
    UsageStore,
    ToolRecords,
    AccessStore,
    ApiStore,
    ViewStore,
    Protocol,
):
    """Everything that a runtime needs of its store."""

    def held(self, claim: Claim | None, on_lost: Callable[[], None]) -> Store:
        """Return the verbs for the actor of one conversation, which this node has claimed.

        If another node has taken it since, they change nothing, call `on_lost` and raise
        `NotOwner`. A store that one process has for itself returns itself.
        """
        ...

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store has stopped, if it has."""
        ...

    def subscribe(
        self,
        *,
        on_accepted: Callable[[Accepted], None],
        on_outbox: Callable[[Sequence[OutboxRow]], None],
    ) -> AbstractContextManager[None]:
        """Call back after each commit, in commit order, as long as the context is open.

        `on_accepted` receives each new message, `on_outbox` the replies that were stored.
        """
        ...

    def facts(self) -> Awaitable[StoreStats]:
        """Return counts from the tables."""
        ...

    async def inspect(self) -> StoreSnapshot:
        """Return what an operator sees of the store."""
        ...

    async def pulse(self) -> StorePulse:
        """Return what changes from second to second."""
        ...

    async def wait_hooks(self) -> None:
        """Wait until every stored boundary has been delivered to the hooks."""
        ...
