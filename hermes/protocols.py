"""The seams: what the runtime asks of agents, compressors, adapters and its store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import attrs

from hermes.errors import StoreFailed
from hermes.events import AgentEvent
from hermes.messages import (
    Accepted,
    AgentSpec,
    Answer,
    Committed,
    Delivery,
    Discarded,
    ExpiryPolicy,
    Head,
    Inbound,
    InboxRow,
    Lease,
    Listed,
    Message,
    OutboxRow,
    Rotated,
    Rotation,
    Route,
    Session,
    Skipped,
    Source,
    StoredMessage,
    Transcript,
    TurnCommit,
    TurnResult,
    Usage,
)


class Turn(Protocol):
    """One run of an agent over all input that waited."""

    @property
    def session_key(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    @property
    def turn_id(self) -> int:
        """The same when a crash makes the turn run again: an idempotency key for tools."""
        ...

    @property
    def source(self) -> Source: ...
    @property
    def input(self) -> Sequence[Message]: ...
    @property
    def text(self) -> str:
        """The input as one text."""
        ...

    @property
    def history(self) -> Sequence[Message | StoredMessage]:
        """The rows before this turn, as they are stored; not copied, so do not keep it."""
        ...

    @property
    def deadline(self) -> float:
        """On Trio's clock."""
        ...

    def messages(self) -> list[Message]:
        """History and input as a model may be shown them; the whole is rendered at each call."""
        ...

    def emit(self, event: AgentEvent) -> None:
        """Tell what happens. Raises `TurnClosed` once the turn is over."""
        ...

    def steered(self) -> list[Message]:
        """Input that came meanwhile and asks to be heard now; call it between tool calls."""
        ...


class Agent(Protocol):
    """What answers. `aclose()`, where there is one, is called exactly once, never under a turn."""

    async def run(self, turn: Turn, /) -> TurnResult: ...


Build: TypeAlias = Callable[[AgentSpec], Agent | Awaitable[Agent]]
Describe: TypeAlias = Callable[[str, Source], AgentSpec]


@attrs.frozen(kw_only=True)
class SummaryRequest:
    """What a compressor is given: the messages to sum up, and an earlier summary to update."""

    session_id: str
    messages: Sequence[Message | StoredMessage]
    previous: str | None
    focus: str | None
    max_tokens: int


@attrs.frozen
class Summary:
    """What a compressor answers."""

    text: str
    usage: Sequence[Usage] = ()


class Compressor(Protocol):
    """Sums messages up. What is kept beside the summary is not its business."""

    async def summarize(self, request: SummaryRequest, /) -> Summary: ...


class Adapter(Protocol):
    """A platform. `send` returns once the platform has the message.

    `Unsendable` where the chat is gone for good; any other error is tried again.
    """

    @property
    def platform(self) -> str: ...

    async def send(self, row: OutboxRow, /) -> None: ...


class Store(Protocol):
    """Durable conversations. Each call is one transaction, on disk when it returns."""

    deliver: Callable[[Delivery], None] | None
    """Hears of each new message, in inbox order, after COMMIT."""
    send: Callable[[Sequence[OutboxRow]], None] | None
    """Hears of the replies that were written, in commit order, after COMMIT."""

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store has stopped, if it has."""
        ...

    async def accept(
        self, inbound: Inbound, *, policy: ExpiryPolicy = ..., max_open: int = ...
    ) -> Accepted: ...
    def commit_turn(self, turn: TurnCommit) -> Awaitable[Committed | Discarded]: ...
    def answer(self, answer: Answer | None) -> Awaitable[None]: ...
    def open_inbox(
        self, session_key: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[InboxRow]]: ...
    def waiting_keys(
        self, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[tuple[str, int]]]: ...
    def start_inbox(self, inbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def park_inbox(
        self, inbox_ids: Sequence[int], note: str, *, answer: Answer | None = None
    ) -> Awaitable[int]: ...

    def load(self, session_id: str) -> Awaitable[Transcript]: ...
    def head(self, session_id: str) -> Awaitable[Head]: ...
    def get_messages(
        self, session_id: str, *, include_rewound: bool = False, limit: int = -1, offset: int = 0
    ) -> Awaitable[list[StoredMessage]]: ...
    def rewind(
        self, session_id: str, message_id: int, *, answer: Answer | None = None
    ) -> Awaitable[list[StoredMessage]]: ...

    def get_route(self, session_key: str) -> Awaitable[Route | None]: ...
    def route_head(self, session_key: str) -> Awaitable[tuple[Route, Head] | None]: ...
    def new_session(
        self,
        session_key: str,
        *,
        reason: str = "session_reset",
        title: str | None = None,
        platform: str | None = None,
        answer: Answer | None = None,
    ) -> Awaitable[Route]: ...
    def close_session(self, session_key: str, *, reason: str = ...) -> Awaitable[str | None]: ...
    def finalize(self, session_key: str, *, reason: str = ...) -> Awaitable[str | None]: ...
    def switch(
        self, session_key: str, target: str, *, answer: Answer | None = None
    ) -> Awaitable[Route]: ...
    def branch(
        self,
        session_id: str,
        *,
        title: str | None = None,
        session_key: str | None = None,
        answer: Answer | None = None,
    ) -> Awaitable[str]: ...

    def get_session(self, session_id: str) -> Awaitable[Session | None]: ...
    def list_sessions(
        self, *, session_key: str | None = None, limit: int = 20, offset: int = 0
    ) -> Awaitable[list[Listed]]: ...
    def set_session_title(self, session_id: str, title: str | None) -> Awaitable[bool]: ...
    def set_pending_title(self, session_key: str, title: str | None) -> Awaitable[None]: ...
    def apply_pending_title(self, session_key: str) -> Awaitable[str | None]: ...

    def forget_runtimes(self) -> Awaitable[int]: ...
    def acquire_lease(
        self, session_id: str, holder: str, ttl_seconds: float = ...
    ) -> Awaitable[Lease | None]: ...
    def refresh_compression_lock(
        self, session_id: str, holder: str, ttl_seconds: float = ...
    ) -> Awaitable[bool]: ...
    def release_compression_lock(self, session_id: str, holder: str) -> Awaitable[bool]: ...
    def get_compression_lock_holder(self, session_id: str) -> Awaitable[str | None]: ...
    def get_compression_tip(self, session_id: str) -> Awaitable[str]: ...
    def rotate(self, rotation: Rotation) -> Awaitable[Rotated | Skipped]: ...

    def update_token_counts(
        self, session_id: str, usage: Usage, *, turn_id: int | None = None
    ) -> Awaitable[None]: ...
    def get_usage(self, session_id: str) -> Awaitable[list[Usage]]: ...
    def get_meta(self, name: str) -> Awaitable[str | None]: ...
    def set_meta(self, name: str, value: str | None) -> Awaitable[None]: ...

    def pending_outbox(
        self, lane: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[OutboxRow]]: ...
    def mark_sending(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_sent(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_unsent(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_dead(self, outbox_ids: Sequence[int], note: str) -> Awaitable[None]: ...
    def recover_outbox(self) -> Awaitable[int]: ...
    async def wait_boundaries(self) -> None: ...


Hook: TypeAlias = Callable[..., Any]
