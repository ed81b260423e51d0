"""What clients send to the API, and what it returns. Bodies with unknown fields are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from hermes.actors.views.health import RuntimeHealth
from hermes.adapters.jsonrpc.types import Parts as Parts, Row
from hermes.messages import (
    ActorInfo,
    Approval,
    ConversationSettings,
    ConversationSummary,
    JsonObject,
    Pairing,
    Principal,
    Reply,
    SearchHit,
    SessionSummary,
    TurnUsage,
    WhenBusy,
)
from hermes.telemetry.metrics import HostStatus

Title: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=500)]
RowId: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A JSON body."""


# Conversations


class Conversation(ConversationSummary, frozen=True, kw_only=True):
    """A conversation of a list. `id` is its name in the caller's namespace; null for others."""

    id: str | None
    turn_id: int | None
    """The running turn."""


class ConversationDetails(Conversation, frozen=True, kw_only=True):
    """A conversation with its settings."""

    settings: ConversationSettings


class ListQuery(msgspec.Struct, kw_only=True):
    """Which conversations to list."""

    q: Annotated[str, Meta(max_length=1000)] | None = None
    """A part of the title."""
    archived: bool = False
    """Lists archived conversations only."""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    before: Annotated[str, Meta(max_length=2000)] | None = None
    """The `next` of the page before."""


class ConversationList(msgspec.Struct):
    """Conversations, most recently active first; `next` is null on the last page."""

    conversations: list[Conversation]
    next: str | None


class CreateBody(Body):
    """A new conversation, or with `id` one that may exist.

    Nothing is stored before the first message, except for a title and settings.
    """

    id: Annotated[str, Meta(min_length=1, max_length=505)] | None = None
    title: Title | None = None
    agent: Name | None = None
    model: Name | None = None
    metadata: JsonObject | None = None


class UpdateBody(Body):
    """What to change; null restores the default of a setting."""

    title: Title | UnsetType = UNSET
    archived: bool | UnsetType = UNSET
    agent: Name | UnsetType | None = UNSET
    model: Name | UnsetType | None = UNSET
    metadata: JsonObject | UnsetType | None = UNSET


class Deleted(msgspec.Struct):
    """How many messages were deleted."""

    messages: int


class HistoryQuery(msgspec.Struct, kw_only=True):
    """The page to return: the latest messages, or those before or after one.

    `session_id` is another session of the conversation. With `lineage`, the sessions before
    compressions come first. With `rendered`, messages have their text as nodes, and
    the ids of their turns.
    """

    limit: Count = 100
    before: RowId | None = None
    after: RowId | None = None
    lineage: bool = False
    session_id: Annotated[str, Meta(max_length=200)] | None = None
    rendered: bool = False


class HistoryPage(msgspec.Struct):
    """Messages of a transcript, oldest first."""

    messages: Sequence[Row]


class SessionsQuery(msgspec.Struct, kw_only=True):
    """The page of the list to return."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    offset: Annotated[int, Meta(ge=0, le=10**9)] = 0
    archived: bool = True


class SessionList(msgspec.Struct):
    """Sessions, most recently active first."""

    sessions: list[SessionSummary]


class SearchQuery(msgspec.Struct, kw_only=True):
    """What to search: words, quoted phrases, AND, OR, NOT, and a trailing `*`."""

    q: Annotated[str, Meta(min_length=1, max_length=1000)]
    role: Annotated[str, Meta(max_length=50)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class FoundMessage(SearchHit, frozen=True, kw_only=True):
    """A message that matches, and the conversation that it belongs to."""

    session_key: str | None


class SearchResult(msgspec.Struct):
    """Messages that match, best first."""

    hits: list[FoundMessage]


# Messages


class MessageBody(Body):
    """A message or a command.

    With `background`, the response is sent when the message is stored; otherwise with its reply.
    """

    text: str = ""
    parts: Parts = []
    when_busy: WhenBusy | None = None
    background: bool = False
    commands: bool = True
    metadata: JsonObject | None = None


class EditBody(Body, kw_only=True):
    """A new version of a message of the user. The conversation goes on in a branch before it."""

    message: RowId
    text: str = ""
    parts: Parts = []
    background: bool = False


class SteerBody(Body):
    """A message for the running turn."""

    text: str = ""
    parts: Parts = []


class RetryBody(Body):
    """Whether to wait for the new reply."""

    background: bool = False


class SentMessage(msgspec.Struct, kw_only=True):
    """An accepted message, and its reply if there is one.

    `state`: "open" until it is answered, "done", or "parked" if its turns failed too often.
    """

    message_id: int
    session_key: str
    session_id: str
    state: Literal["open", "done", "parked"]
    reply: Reply | None = None


class Interrupted(msgspec.Struct):
    """Whether a turn was running."""

    interrupted: bool


class Withdrawn(msgspec.Struct):
    """False if the turn of the message has begun or ended."""

    withdrawn: bool


# Verbs


class VerbBody(Body):
    """The session that the client believes to be the current one; another one is an error (409).

    With it, a request that is sent twice changes nothing the second time.
    """

    session_id: Annotated[str, Meta(max_length=200)] | None = None


class NewBody(VerbBody):
    """The title of the new session."""

    title: Title | None = None


class SwitchBody(VerbBody, kw_only=True):
    """The session to continue with: an id, a unique prefix of one, or a title."""

    target: Title


class BranchBody(VerbBody):
    """What to copy: all, or what precedes a message. With `to`, into another conversation."""

    title: Title | None = None
    before: RowId | None = None
    to: Annotated[str, Meta(min_length=1, max_length=505)] | None = None


class UndoBody(VerbBody):
    """How many messages of the user to take back.

    With `last`, nothing is taken back if the last message has another id.
    """

    exchanges: Annotated[int, Meta(ge=1, le=10_000)] = 1
    last: RowId | None = None


class CompressBody(VerbBody):
    """What matters for the summary, and how many exchanges are kept as they are."""

    focus: Annotated[str, Meta(max_length=10_000)] | None = None
    keep_exchanges: Annotated[int, Meta(ge=1, le=1000)] | None = None


# Approvals, usage, status


class ApprovalList(msgspec.Struct):
    """The tool calls that wait for a decision."""

    approvals: list[Approval]


class WaitingQuery(msgspec.Struct, kw_only=True):
    """The page of the list to return."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 100
    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """The `next` of the page before."""


class WaitingApprovals(msgspec.Struct):
    """Tool calls that wait for a decision, oldest first; `next` is null on the last page.

    A call is decided in the conversation `asked_of`.
    """

    approvals: list[Approval]
    next: int | None


class DecideBody(Body):
    """The decision; with `always`, the tool is allowed in this conversation from now on."""

    approve: bool
    always: bool = False


class ToolList(msgspec.Struct):
    """The tools that are allowed without a question."""

    tools: list[str]


class Revoked(msgspec.Struct):
    """Whether the tool was allowed."""

    revoked: bool


class UsageQuery(msgspec.Struct, kw_only=True):
    """How many turns to list."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ConversationUsage(msgspec.Struct):
    """What a conversation has used, turn by turn, the latest first."""

    turns: list[TurnUsage]
    cost: float
    """Of the whole conversation, including turns that are not listed."""


class Today(msgspec.Struct):
    """Costs since midnight; `everybody` is for operators."""

    caller: float
    everybody: float | None


class ServerStatus(msgspec.Struct, kw_only=True):
    """The HTTP server."""

    requests: int
    """Requests and streams that are open."""
    failed_logins: int
    """Requests since the start with a token that is not valid."""


class RuntimeStatus(RuntimeHealth, frozen=True, kw_only=True):
    """The state of the runtime, its conversations in memory, its host, and the HTTP server."""

    actors: list[ActorInfo]
    actor_count: int
    """All of them, if not all are listed."""
    host: HostStatus
    http: ServerStatus


class StatusQuery(msgspec.Struct, kw_only=True):
    """How many actors to list."""

    limit: Annotated[int, Meta(ge=0, le=10_000)] = 1000


class PairingList(msgspec.Struct):
    """Users who ask to be let in, and those who were."""

    requests: list[Pairing]
    users: list[Principal]


class PairBody(Body):
    """The code that a user was shown, and its role."""

    code: Annotated[str, Meta(max_length=50)]
    role: Literal["user", "operator"] = "user"


class Unpaired(msgspec.Struct):
    """How many entries were removed."""

    removed: int
