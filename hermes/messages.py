"""The values that travel: frozen, and with nothing of ours behind them.

They are `msgspec.Struct`s, because ten thousand are made at once when a conversation is loaded
(about as fast as `json.loads`; attrs classes take twice as long), and because forty attrs classes
cost a program that imports Hermes forty milliseconds. Those of which many are made, and which
cannot be part of a cycle, are none of the garbage collector's business.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
import msgspec

JsonObject: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["new", "compression", "branch", "fork", "import"]
InboxState: TypeAlias = Literal["open", "done", "parked"]
OutboxState: TypeAlias = Literal["pending", "sending", "sent", "dead"]
Event: TypeAlias = Literal["on_session_finalize", "on_session_reset", "on_session_switch"]
Busy: TypeAlias = Literal["queue", "interrupt", "steer", "reject"]
BuildReason: TypeAlias = Literal["cold", "signature", "foreign-write", "evicted", "abandoned"]
ApprovalState: TypeAlias = Literal["pending", "approved", "denied", "used", "expired"]
ReplyStatus: TypeAlias = Literal["complete", "failed", "interrupted", "refused", "command"]
Role: TypeAlias = Literal["guest", "user", "operator"]
ROLES: tuple[Role, ...] = ("guest", "user", "operator")
"""Each may do what those before it may."""


def may(role: Role, needed: Role) -> bool:
    """Whether a role is enough."""
    return ROLES.index(role) >= ROLES.index(needed)


def _whole(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"the name of a message is made of texts, not {text!r}")  # noqa: TRY004
    return text if text.isascii() else text.encode(errors="replace").decode()


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call as the model asked for it; `arguments` is the model's own JSON text."""

    id: str
    name: str
    arguments: str = "{}"


class Extra(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What only some messages have; kept in one column, and absent there when empty."""

    parts: tuple[JsonObject, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool_name: str | None = None
    reasoning: str | None = None
    reasoning_details: tuple[JsonObject, ...] = ()
    finish_reason: str | None = None
    token_count: int | None = None
    provider_data: JsonObject | None = None


class Message(Extra, frozen=True):
    """A message on its way into a transcript; `content` is text, `parts` the structured form."""

    role: str
    content: str | None = None
    timestamp: float | None = None
    platform_message_id: str | None = None


class StoredMessage(Extra, frozen=True, gc=False):
    """A message as the store keeps it; `id` orders it among all messages of its session."""

    id: int
    role: str
    content: str | None
    timestamp: float
    platform_message_id: str | None = None


class Source(msgspec.Struct, frozen=True):
    """Where an inbound message comes from."""

    platform: str = "embedded"
    account: str = ""
    chat_id: str | None = None
    chat_type: str = "dm"
    thread_id: str | None = None
    user_id: str | None = None
    user_name: str | None = None


class Inbound(msgspec.Struct, frozen=True):
    """A message or command as it arrives; (platform, account, event_id) names it for ever.

    `busy` says what to do with it while a turn runs; without it the configuration does. `linger` is
    how many seconds its turn waits for more, where a platform sends in pieces what is said at once.
    `sent_at` is when it was said, by the platform's clock: rates go by that, so that nobody is too
    fast because the bot was away. A platform tells it always or never.
    """

    session_key: str
    event_id: str
    text: str
    source: Source = msgspec.field(default_factory=Source)
    command: bool = False
    parts: tuple[JsonObject, ...] | None = None
    platform_message_id: str | None = None
    busy: Busy | None = None
    linger: float = 0.0
    sent_at: float | None = None

    @property
    def identity(self) -> tuple[str, str, str]:
        """Its name, as the store can hold it."""
        source = self.source
        return _whole(source.platform), _whole(source.account), _whole(self.event_id)


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a transcript is at: `revision` grows with every change, so the newest has the most."""

    session_id: str
    message_count: int = 0
    revision: int = 0
    rewrites: int = 0


class Receipt(msgspec.Struct, frozen=True):
    """Proof that an inbound message is on disk; the same event gets the same receipt again."""

    inbox_id: int
    session_key: str
    session_id: str
    epoch: int
    accepted_at: float


class InboxRow(msgspec.Struct, frozen=True):
    """An accepted message that no turn has finished yet."""

    inbox_id: int
    inbound: Inbound
    attempts: int
    accepted_at: float


class Outbound(msgspec.Struct, frozen=True):
    """A reply on its way out; `lane` is the chat whose order is kept."""

    lane: str
    body: JsonObject


class OutboxRow(msgspec.Struct, frozen=True):
    """A reply that is not yet known to be sent; `recovered` when a send may have been lost.

    A long one is sent in `parts`; an adapter is given one of them as the text of the body.
    """

    outbox_id: int
    session_key: str
    turn_id: int
    lane: str
    body: JsonObject
    state: OutboxState
    attempts: int
    recovered: bool
    part: int = 0
    """How many parts the platform has; so this is the one to be sent, counted from 0."""
    parts: int = 1


class OutboxStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the replies to one platform are doing."""

    platform: str
    pending: int = 0
    sending: int = 0
    recovered: int = 0
    """Those of them that will be sent again although the platform may have them."""
    oldest_seconds: float = 0.0
    """How long the first of them has waited."""
    dead: int = 0
    """Given up within the last day."""


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is doing, by its tables."""

    inbox_open: int = 0
    """Accepted messages that no turn has finished."""
    inbox_oldest_seconds: float = 0.0
    outbox: tuple[OutboxStats, ...] = ()
    hooks_open: int = 0
    """Boundaries that the hooks have not all heard of."""
    cost_today: float = 0.0


class Usage(msgspec.Struct, frozen=True):
    """One provider call."""

    purpose: str = "turn"
    model: str | None = None
    provider: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None


class CostTotals(msgspec.Struct, frozen=True):
    """What was spent: in a conversation, and since midnight by its principal and by everybody."""

    session: float = 0.0
    principal: float = 0.0
    day: float = 0.0
    payer: str = ""
    """Who the principal is, where that matters to whoever asks."""


class TurnCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A finished turn: what `commit_turn` makes durable at once, or not at all."""

    session_key: str
    session_id: str
    epoch: int
    revision: int
    inbox_ids: Sequence[int]
    rows: Sequence[Message] = ()
    outbox: Sequence[Outbound] = ()
    usage: Sequence[Usage] = ()
    next_inbox_ids: Sequence[int] = ()
    rotated_to: str | None = None
    upto: int | None = None
    """The last message that was known when the turn began; what came after it is foreign."""
    rewind_to: int | None = None
    """A message that is taken back, with all after it up to `upto`, before the rows are added."""
    policy: ExpiryPolicy | None = None
    """When the conversation is over by itself, counted from now on."""


class Committed(msgspec.Struct, frozen=True):
    """The turn is on disk. `foreign`: rows of somebody else stand before ours."""

    head: Head
    epoch: int
    foreign: bool = False
    moved: bool = False
    rows: Sequence[StoredMessage] = ()
    """What was added, as it is stored."""


class InboxReply(msgspec.Struct, frozen=True, kw_only=True):
    """The end of inbox rows that need no turn: what is said to them, in the same transaction."""

    session_key: str
    inbox_ids: Sequence[int]
    outbox: Sequence[Outbound] = ()


class ToolCallRecord(msgspec.Struct, frozen=True):
    """A call that must not be made twice; `result` is None where its end was never recorded.

    `arguments` is canonical JSON, `ordinal` counts the same calls within one run of the turn.
    """

    turn_id: int
    tool: str
    arguments: str
    ordinal: int = 0
    result: str | None = None
    failed: bool = False


class Approval(msgspec.Struct, frozen=True):
    """A call that a user is asked to allow: good for exactly these arguments, and for one run.

    `asked_of` is the conversation whose user decides: that of the call, or the one that began it.
    """

    approval_id: int
    asked_of: str
    session_key: str
    tool: str
    arguments: str
    state: ApprovalState
    asked_at: float
    expires_at: float


class Principal(msgspec.Struct, frozen=True):
    """Somebody an operator has let in; what he calls himself proves nothing."""

    platform: str
    account: str
    user_id: str
    role: Role
    name: str | None
    paired_at: float


class Pairing(msgspec.Struct, frozen=True):
    """A stranger who was given a code, and waits for an operator to let him in."""

    source: Source
    session_key: str
    asked_at: float
    expires_at: float


class PairingRejected(msgspec.Struct, frozen=True):
    """Nobody waits with this code; `left` more may be tried, or none for so many `seconds`."""

    left: int
    seconds: float = 0.0


class Discarded(msgspec.Struct, frozen=True):
    """Nothing was written: the fence had moved. The inbox rows that are open run again here."""

    reason: str
    session_id: str | None
    epoch: int


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """A finished compression: what to show instead of the rows up to `upto`.

    `rewrites` is the session's when the summary was begun, `rotation_id` makes a retry safe.
    """

    session_id: str
    messages: Sequence[Message]
    rotation_id: str
    rewrites: int
    upto: int
    session_key: str | None = None
    epoch: int | None = None
    lease: Lease | None = None
    child_session_id: str | None = None
    system_prompt: str | None = None
    answer: InboxReply | None = None
    """What is said to the command that asked for it, in the same transaction."""


class Rotated(msgspec.Struct, frozen=True):
    """The session goes on in `session_id`; `repeated`: an earlier try had already done it."""

    session_id: str
    head: Head
    epoch: int | None
    carried: int = 0
    repeated: bool = False


class Skipped(msgspec.Struct, frozen=True):
    """Nothing was rotated; `winner` or `holder` says who was quicker."""

    reason: str
    winner: str | None = None
    holder: str | None = None


SUMMARY = "summary"
"""What `provider_data["hermes"]` says of a message that stands for others since a compression."""

RUNTIME_HOLDER = "runtime:"
"""How the names of runtimes begin that hold leases. A file has one at a time."""


class Lease(msgspec.Struct, frozen=True):
    """The right to try a compression; `token` grows with every new holder."""

    session_id: str
    holder: str
    token: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Answer of `append_message`."""

    message_id: int
    head: Head
    duplicate: bool = False


class Transcript(msgspec.Struct, frozen=True):
    """A session's live rows and the head they belong to, from one read transaction."""

    head: Head
    messages: list[StoredMessage]


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session row."""

    id: str
    source: str
    kind: Kind
    parent_session_id: str | None
    title: str | None
    model: str | None
    user_id: str | None
    session_key: str | None
    chat_id: str | None
    chat_type: str | None
    thread_id: str | None
    cwd: str | None
    profile: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    last_active: float
    message_count: int
    tool_call_count: int
    revision: int
    rewrites: int
    api_call_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float
    system_prompt: str | None = None
    model_config: JsonObject | None = None

    @property
    def head(self) -> Head:
        return Head(self.id, self.message_count, self.revision, self.rewrites)


class SessionSummary(msgspec.Struct, frozen=True):
    """A line of `list_sessions`: a conversation at its tip."""

    session: Session
    root_session_id: str
    started_at: float
    preview: str


class SessionMatch(msgspec.Struct, frozen=True):
    """A conversation that somebody has named: its line to the tip, and the keys that lead there.

    `session` is the tip's row; None while the first turn of the conversation has not ended.
    """

    session: Session | None
    lineage: tuple[str, ...]
    session_keys: tuple[str, ...] = ()

    @property
    def session_id(self) -> str:
        """The tip."""
        return self.lineage[-1]


class SearchHit(msgspec.Struct, frozen=True):
    """A message that a search found, with the messages around it."""

    message_id: int
    session_id: str
    role: str
    snippet: str
    timestamp: float
    source: str
    title: str | None
    before: str | None
    after: str | None


class Route(msgspec.Struct, frozen=True):
    """Where a session_key leads; the fields are in the order of the columns."""

    session_key: str
    session_id: str
    epoch: int
    platform: str
    chat_type: str
    user_id: str | None
    pending_title: str | None
    notice: str | None
    expires_at: float | None
    last_active: float


class Accepted(msgspec.Struct, frozen=True):
    """Answer of `accept`; `expired` is the session that was over when the message came.

    `waiting` messages of the same key were open before it; `route` is where the key leads now.
    """

    receipt: Receipt
    head: Head
    duplicate: bool = False
    expired: str | None = None
    waiting: int = 0
    route: Route | None = None
    inbound: Inbound | None = None
    """The message as it was stored."""


class Delivery(msgspec.Struct, frozen=True):
    """What the runtime gets for each new message, in inbox order, after COMMIT."""

    receipt: Receipt
    inbound: Inbound
    head: Head
    waiting: int = 0
    route: Route | None = None


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A session is finalized, begun or left, and hooks hear of it; `boundary_id` is its name."""

    boundary_id: int
    event: Event
    session_key: str
    session_id: str
    platform: str
    reason: str
    old_session_id: str | None
    new_session_id: str | None


class ExpiryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a conversation is over by itself; hours are local time."""

    mode: Literal["none", "idle", "daily", "both"] = "none"
    idle_minutes: float = 1440
    at_hour: int = 4


class Imported(msgspec.Struct, frozen=True):
    """What `import_sessions` did."""

    sessions: int
    messages: int
    skipped: tuple[str, ...] = ()
    forks: tuple[str, ...] = ()


class Pruned(msgspec.Struct, frozen=True):
    """What `prune_sessions` deleted, or would delete in a dry run."""

    session_ids: tuple[str, ...]
    messages: int
    dry_run: bool


Hooks: TypeAlias = Mapping[Event, Sequence[Any]]


@attrs.frozen(kw_only=True)
class AgentSpec:
    """What an agent is built from. Two agents with one signature are interchangeable."""

    session_key: str
    platform: str = "embedded"
    user_id: str | None = None
    model: str | None = None
    endpoint: str | None = None
    credential: str | None = attrs.field(default=None, repr=False)
    toolset: tuple[str, ...] = ()
    system_prompt: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """What else an agent cannot change once it is built, such as compression settings."""

    @functools.cached_property
    def signature(self) -> str:
        """A fingerprint of all that a rebuild is needed for; the credential only as a hash."""
        secret = hashlib.sha256((self.credential or "").encode()).hexdigest()
        parts = (
            self.model, self.endpoint, secret, sorted(self.toolset), self.system_prompt,
            sorted(self.settings), self.user_id,
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent answers. Without `rows` they are made of what it emitted and its text.

    Input that it took by `steered` stands where the agent has put it among the rows, else first.
    `session_id` is for agents that compress by themselves: the id they go on in.
    """

    text: str | None = None
    rows: Sequence[Message] | None = None
    session_id: str | None = None
    usage: Sequence[Usage] = ()
    api_calls: int = 1
    failed: bool = False
    partial: bool = False
    interrupted: bool = False
    error: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message, and what was said to it."""

    text: str
    session_id: str
    turn_id: int
    status: ReplyStatus = "complete"
    usage: tuple[Usage, ...] = ()
    error: str | None = None
    build_reason: BuildReason | None = None
    """Why the agent was built for this turn; None where the cached one answered."""
    error_kind: str | None = None
    """What `error` is, without its words: the class of what was raised, or who failed."""


class Snapshot(msgspec.Struct, frozen=True):
    """What is known of a cached agent; None where the count or the session is not yet known."""

    agent: Any
    signature: str
    message_count: int | None = None
    session_id: str | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a conversation is doing."""

    session_key: str
    session_id: str | None
    title: str | None
    message_count: int
    busy: bool
    waiting: int
    context_tokens: int
    compress_at: int
    window: int
    builds: Mapping[BuildReason, int]
    compression_note: str | None = None


class Title(msgspec.Struct, frozen=True):
    """A title; `pending` while it waits for the session to have a row."""

    text: str | None
    pending: bool = False


class RunningTurnInfo(msgspec.Struct, frozen=True):
    """A turn that runs, and what it has said so far."""

    turn_id: int
    text: str
