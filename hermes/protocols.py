"""The seams: what the runtime asks of agents, compressors, adapters and its store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from hermes.errors import StoreFailed
from hermes.events import AgentEvent
from hermes.messages import (
    Accepted,
    AgentSpec,
    Approval,
    Committed,
    CostTotals,
    Delivery,
    Discarded,
    ExpiryPolicy,
    Head,
    Inbound,
    InboxReply,
    InboxRow,
    Lease,
    Message,
    Outbound,
    OutboxRow,
    OutboxStats,
    Pairing,
    PairingRejected,
    Principal,
    Role,
    Rotated,
    Rotation,
    Route,
    SearchHit,
    Session,
    SessionMatch,
    SessionSummary,
    Skipped,
    Source,
    StoredMessage,
    StoreStats,
    ToolCallRecord,
    Transcript,
    TurnCommit,
    TurnResult,
    Usage,
)


class ToolRecords(Protocol):
    """What tools leave on disk. Each call is one transaction; arguments are canonical JSON."""

    def begin_once(
        self,
        turn_id: int,
        tool: str,
        arguments: str,
        ordinal: int = 0,
        *,
        approved_for: str | None = None,
    ) -> Awaitable[ToolCallRecord | None]:
        """Record a call before it is made; None where it may be made now, else the earlier one.

        With `approved_for`, a session_key, it takes an approval as well, or raises `NotApproved`.
        `TurnClosed` where the turn is over.
        """
        ...

    def end_once(self, call: ToolCallRecord) -> Awaitable[None]:
        """Record what came of a call; the first result stays."""
        ...

    def ask_approval(
        self,
        session_key: str,
        tool: str,
        arguments: str,
        *,
        seconds: float = ...,
        say: Callable[[Approval], Sequence[Outbound]] | None = None,
    ) -> Awaitable[Approval]:
        """Ask a user to allow a call, and say so in the same transaction.

        Where the same question waits already, it is that one, and nothing is said again.
        """
        ...

    def take_approval(self, session_key: str, tool: str, arguments: str) -> Awaitable[bool]:
        """Use up an approval of exactly this call; False where there is none."""
        ...

    def get_approval(self, session_key: str, approval_id: int) -> Awaitable[Approval | None]: ...
    def pending_approvals(self, session_key: str) -> Awaitable[list[Approval]]:
        """What this conversation's user is asked to decide, oldest first."""
        ...

    def decide_approval(
        self,
        session_key: str,
        approval_id: int | None,
        *,
        approve: bool,
        answer: InboxReply | None = None,
        then: Inbound | None = None,
        policy: ExpiryPolicy = ...,
    ) -> Awaitable[Approval | None]:
        """Allow or refuse a call; without a number the latest that waits.

        The answer is written and the message `then` accepted in the same transaction. None, and
        nothing is written, where no such question waits.
        """
        ...


class Principals(Protocol):
    """Who was let in, and who asks to be. Each call is one transaction."""

    def find_principal(
        self, platform: str, account: str, user_id: str
    ) -> Awaitable[Role | None]: ...
    def principals(self, limit: int = ...) -> Awaitable[list[Principal]]: ...
    def pairings(self) -> Awaitable[list[Pairing]]: ...
    def request_pairing(
        self,
        source: Source,
        session_key: str,
        code: str,
        *,
        salt: str,
        say: Sequence[Outbound] = (),
    ) -> Awaitable[bool]:
        """Let a stranger wait with a code, and tell it to him; False where he may not wait now."""
        ...

    def approve_pairing(
        self,
        code: str,
        role: Role,
        by: Source,
        *,
        answer: Callable[[Pairing | PairingRejected], InboxReply] | None = None,
        welcome: Callable[[Pairing], Sequence[Outbound]] | None = None,
    ) -> Awaitable[Pairing | PairingRejected]:
        """Let the stranger in who waits with this code; answer and tell him at once with it."""
        ...

    def unpair(
        self, platform: str, user_id: str, *, answer: Callable[[int], InboxReply] | None = None
    ) -> Awaitable[int]:
        """Take back what somebody was let in by, and his request; says how many rows."""
        ...


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

    @property
    def records(self) -> ToolRecords | None:
        """Where tools leave what must outlive a crash; None where nothing is kept."""
        ...

    def ordinal(self, tool: str, arguments: str) -> int:
        """How often the same call came before in this run; counts this one.

        Raises `TurnClosed` once the turn is over.
        """
        ...

    def messages(self) -> list[Message]:
        """History and input as a model may be shown them; the whole is rendered at each call."""
        ...

    def emit(self, event: AgentEvent) -> None:
        """Tell what happens. Raises `TurnClosed` once the turn is over."""
        ...

    def charge(self, usage: Usage) -> None:
        """A provider was called: this is on the bill, whatever becomes of the turn.

        What is charged is not to be told once more as the usage of a `TurnResult`.
        """
        ...

    async def spent(self) -> CostTotals:
        """What this conversation has cost, and this day, with the turns that run."""
        ...

    def steered(self) -> list[Message]:
        """Input that came meanwhile and asks to be heard now; call it between tool calls."""
        ...


class Agent(Protocol):
    """What answers. `aclose()`, where there is one, is called exactly once, never under a turn.

    Where it has `abandoned`, and that is true after a turn, something of it still runs and it is
    not used again. Where it has `on_trio`, it runs on Trio in a host on asyncio too.
    """

    async def run(self, turn: Turn, /) -> TurnResult: ...


Build: TypeAlias = Callable[[AgentSpec], Agent | Awaitable[Agent]]
Describe: TypeAlias = Callable[[str, Source], AgentSpec]


SpentSoFar: TypeAlias = Callable[[], Awaitable[CostTotals]]
"""Asks what a conversation, its principal and the day have cost; for budgets, before each call."""


async def _nothing() -> CostTotals:
    return CostTotals()


def _free(_: Usage) -> None:
    pass


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a compressor is given: the messages to sum up, and an earlier summary to update."""

    session_id: str
    messages: Sequence[Message | StoredMessage]
    previous: str | None
    focus: str | None
    max_tokens: int
    spent: SpentSoFar = _nothing
    charge: Callable[[Usage], object] = _free
    """A call was made: it is on the bill, whatever becomes of the summary, and not in its usage."""


class Summary(msgspec.Struct, frozen=True):
    """A text that was written about a conversation, and what the calls for it cost."""

    text: str
    usage: Sequence[Usage] = ()


class Compressor(Protocol):
    """Sums messages up. What is kept beside the summary is not its business.

    Where it has `on_trio`, it runs on Trio in a host on asyncio too.
    """

    async def summarize(self, request: SummaryRequest, /) -> Summary: ...


class TitleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a titler is given: an exchange from the beginning of a conversation."""

    session_id: str
    messages: Sequence[Message | StoredMessage]
    spent: SpentSoFar


class Titler(Protocol):
    """Names conversations. Whether and where the name is used is not its business.

    Where it has `on_trio`, it runs on Trio in a host on asyncio too.
    """

    async def title(self, request: TitleRequest, /) -> Summary: ...


class Adapter(Protocol):
    """A platform. `send` returns once the platform has the message, which it sends once.

    It raises `Unsendable` where the chat is gone, `RetryAfter` where the platform took nothing for
    now, `MessageRefused` where it took nothing and this message is the reason. `OutcomeUnknown`
    and any other error mean that it may have it or not: it is sent again, and marked as recovered.
    `send` is called for many chats at once, but for one chat and thread only once at a time. It
    bounds the time of its own requests.

    Where it has `ready`, that is awaited before each `send` with the same row, and waits until the
    platform would take it: a process that ends meanwhile has surely not sent it, whatever `ready`
    raises. `send` may be called without it too.

    Where it has `limit`, longer texts come in parts of at most so many UTF-16 units. Where it has
    `account`, it sends only what is for that account of its platform.
    """

    @property
    def platform(self) -> str: ...

    async def send(self, row: OutboxRow, /) -> None: ...


Ready: TypeAlias = Callable[[OutboxRow], Awaitable[None]]
"""Waits until an adapter's platform would take a reply."""


class Store(ToolRecords, Principals, Protocol):
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
        self, inbound: Inbound, *, policy: ExpiryPolicy = ..., max_queued: int = ...
    ) -> Accepted: ...
    def commit_turn(self, turn: TurnCommit) -> Awaitable[Committed | Discarded]: ...
    def answer(self, answer: InboxReply | None) -> Awaitable[None]: ...
    def open_inbox(
        self, session_key: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[InboxRow]]: ...
    def waiting_keys(
        self, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[tuple[str, int]]]: ...
    def start_inbox(self, inbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def park_inbox(
        self, inbox_ids: Sequence[int], note: str, *, answer: InboxReply | None = None
    ) -> Awaitable[int]: ...

    def load(self, session_id: str) -> Awaitable[Transcript]: ...
    def head(self, session_id: str) -> Awaitable[Head]: ...
    def get_messages(
        self, session_id: str, *, include_rewound: bool = False, limit: int = -1, offset: int = 0
    ) -> Awaitable[list[StoredMessage]]: ...
    def rewind(
        self, session_id: str, message_id: int, *, answer: InboxReply | None = None
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
        answer: InboxReply | None = None,
    ) -> Awaitable[Route]: ...
    def close_session(self, session_key: str, *, reason: str = ...) -> Awaitable[str | None]: ...
    def finalize(self, session_key: str, *, reason: str = ...) -> Awaitable[str | None]: ...
    def switch(
        self, session_key: str, target: str, *, answer: InboxReply | None = None
    ) -> Awaitable[Route]: ...
    def branch(
        self,
        session_id: str,
        *,
        title: str | None = None,
        session_key: str | None = None,
        answer: InboxReply | None = None,
    ) -> Awaitable[str]: ...

    def get_session(self, session_id: str) -> Awaitable[Session | None]: ...
    def find(self, target: str) -> Awaitable[SessionMatch | None]: ...
    def delete_session(self, session_id: str) -> Awaitable[int]: ...
    def list_sessions(
        self, *, session_key: str | None = None, limit: int = 20, offset: int = 0
    ) -> Awaitable[list[SessionSummary]]: ...
    def set_session_title(self, session_id: str, title: str | None) -> Awaitable[bool]: ...
    def set_auto_title_if_empty(self, session_id: str, title: str) -> Awaitable[bool]: ...
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

    def search_messages(
        self,
        query: str,
        *,
        session_key: str | None = None,
        role: str | None = None,
        limit: int = 20,
    ) -> Awaitable[list[SearchHit]]: ...
    def book(self, session_id: str, calls: Sequence[Usage]) -> Awaitable[None]: ...
    def get_usage(self, session_id: str) -> Awaitable[list[Usage]]: ...
    def spent(
        self, session_id: str, platform: str, user_id: str | None
    ) -> Awaitable[CostTotals]: ...
    def get_meta(self, name: str) -> Awaitable[str | None]: ...
    def set_meta(self, name: str, value: str | None) -> Awaitable[None]: ...

    def pending_outbox(
        self, lane: str | None = None, *, after: int = 0, limit: int = 1000
    ) -> Awaitable[list[OutboxRow]]: ...
    def mark_sending(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_part(self, outbox_id: int, part: int) -> Awaitable[None]: ...
    def mark_sent(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_unsent(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_unknown(self, outbox_ids: Sequence[int]) -> Awaitable[None]: ...
    def mark_dead(self, outbox_ids: Sequence[int], note: str) -> Awaitable[None]: ...
    def mark_lane_dead(
        self, lane: str, note: str, *, since: int = 0
    ) -> Awaitable[Sequence[int]]: ...
    def recover_outbox(self) -> Awaitable[int]: ...
    def outbox_facts(self) -> Awaitable[Sequence[OutboxStats]]: ...
    def facts(self) -> Awaitable[StoreStats]: ...
    async def wait_hooks(self) -> None: ...


Hook: TypeAlias = Callable[..., Any]
