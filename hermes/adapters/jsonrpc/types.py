"""Params and results of the methods. Params with unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta

from hermes.adapters.jsonrpc.events import FilePart, MessageComplete
from hermes.messages import WhenBusy
from hermes.session_keys import MAX_LENGTH

NAME_PATTERN = "[!-$&-9;-~]{1,200}"
"""Names of conversations: visible ASCII without ":" and "%", so that session keys contain them."""
MAX_CHUNK = 512 * 1024
"""Bytes of a file in one request or response: 700 kB in base64."""
HandleId: TypeAlias = Annotated[str, Meta(max_length=200)]
Name: TypeAlias = Annotated[str, Meta(max_length=1000)]
# "$" alone would also match before a newline at the end.
ConversationName: TypeAlias = Annotated[str, Meta(pattern=rf"^{NAME_PATTERN}(?!\n)$")]
MessageId: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Offset: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
SubmitStatus: TypeAlias = Literal["streaming", "queued", "steered", "answered"]


class Params(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No params."""


class CreateParams(Params):
    """An optional title for a new conversation; it is applied after the first turn.

    `conversation` is a name that the client chooses: 1 to 200 visible ASCII characters other than
    ":" and "%". The same name always opens the same conversation, also after a restart.
    """

    title: Name | None = None
    conversation: ConversationName | None = None


class AttachParams(Params):
    """The session key of a conversation, of any platform."""

    session_key: Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]


class ResumeParams(Params):
    """A handle, a stored session id, a unique prefix of one, or a title."""

    session_id: Name = ""
    title: Name | None = None
    limit: Count = 500


class ListParams(Params):
    """The page of the list to return, and whether it has archived and subagents' sessions.

    With a handle as `session_id`, only the sessions of its conversation are listed.
    """

    limit: Count = 20
    offset: Annotated[int, Meta(ge=0, le=10**9)] = 0
    include_archived: bool = False
    include_subagents: bool = False
    session_id: HandleId | None = None


class SessionParams(Params):
    """A handle."""

    session_id: HandleId = ""


class TitleParams(SessionParams):
    """The new title; without it the current one is returned."""

    title: Name | None = None


class HistoryParams(SessionParams):
    """An open session, or any stored one, such as the parent that a compression left behind.

    The page has the last messages, or the last ones before the message with the id `before`.
    """

    stored_session_id: Name | None = None
    limit: Count = 500
    before: MessageId | None = None


class BranchParams(SessionParams):
    """An optional title for the copy."""

    name: Name | None = None


class UndoParams(SessionParams):
    """How many user messages to undo, together with their answers."""

    exchanges: Annotated[int, Meta(ge=1, le=10_000)] = 1


class CompressParams(SessionParams):
    """An optional topic for the summary to focus on."""

    focus_topic: Annotated[str, Meta(max_length=10_000)] | None = None


class Part(msgspec.Struct, omit_defaults=True):
    """A file or image of a message: exactly one of `file`, `data` and `url`.

    `file` is the id of a file of the conversation, `data` a content in base64, with an optional
    `name`, and `url` an image on the web, which Hermes never fetches. Other fields are ignored: the
    type of a file is recognized by its bytes. `path` is refused.
    """

    file: str | None = None
    data: str | None = None
    url: str | None = None
    name: Name | None = None
    type: str | None = None
    path: Any = UNSET


Parts: TypeAlias = Annotated[list[Part], Meta(max_length=1000)]


class SteerParams(SessionParams, omit_defaults=True):
    """A message for the running answer, with or without files."""

    text: str = ""
    parts: Parts = []


class DeleteParams(Params):
    """The id of a stored session."""

    session_id: Name = ""


class SubmitParams(SteerParams, omit_defaults=True):
    """A message or a command, and its files. `event_id` identifies it within its conversation.

    A message that is sent again with the same `event_id` is processed once. `busy` says what to do
    while an answer is running; the default comes from the configuration.
    """

    event_id: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    busy: WhenBusy | None = None


class BeginParams(SessionParams, omit_defaults=True):
    """The name of a file to upload, and its size in bytes if it is known."""

    name: Name | None = None
    size: Offset | None = None


class UploadParams(Params):
    """An upload."""

    upload: HandleId


class ChunkParams(UploadParams):
    """The next bytes of a file, in base64: at most 524,288. `offset` is the number before them."""

    offset: Offset
    data: str


class ReadParams(SessionParams, omit_defaults=True, kw_only=True):
    """The range of a file to return: `size` bytes from `offset` on, as far as there are any."""

    file: HandleId
    offset: Offset = 0
    size: Annotated[int, Meta(ge=1, le=MAX_CHUNK)] = MAX_CHUNK


class ReplayParams(Params):
    """The last `seq` that the client has seen, and its epoch."""

    after: Annotated[int, Meta(ge=0, le=2**53)]
    epoch: HandleId | None = None


class Row(msgspec.Struct, omit_defaults=True):
    """A message of a transcript; `parts` are its files."""

    id: int
    role: str
    text: str | None
    timestamp: float
    tool_calls: list[dict[str, str]] = []
    tool_call_id: str | None = None
    tool_name: str | None = None
    reasoning: str | None = None
    parts: list[FilePart] = []


class CreateResult(msgspec.Struct):
    """The handle. Nothing is stored before the first message.

    `conversation` is the name of the conversation: the given one, or a new one.
    """

    session_id: str
    stored_session_id: str | None
    pending_title: str | None
    conversation: str


class Inflight(msgspec.Struct):
    """The running answer, and its text so far."""

    turn_id: int
    text: str


class AttachResult(msgspec.Struct):
    """The handle; the deltas that follow continue the text in `inflight`."""

    session_id: str
    stored_session_id: str | None
    inflight: Inflight | None


class StatusResult(msgspec.Struct):
    """The state of a conversation; `window` is the size of the context window, in tokens."""

    stored_session_id: str | None
    title: str | None
    message_count: int
    running: bool
    waiting: int
    context_tokens: int
    window: int
    model: str | None
    cost: float


class ResumeResult(msgspec.Struct):
    """The state of a session; the deltas that follow continue the text in `inflight`."""

    session_id: str
    stored_session_id: str | None
    title: str | None
    message_count: int
    messages: list[Row]
    running: bool
    inflight: Inflight | None
    conversation: str


class ListedSession(msgspec.Struct):
    """A stored conversation; `live` is its handle on this connection.

    `archived` and `subagent` can only be true if the list was asked for such sessions.
    """

    session_id: str
    title: str | None
    preview: str
    started_at: float
    last_active: float
    message_count: int
    source: str
    live: str | None
    archived: bool = False
    subagent: bool = False


class ListResult(msgspec.Struct):
    """Stored conversations, most recently active first."""

    sessions: list[ListedSession]


class TitleResult(msgspec.Struct):
    """The title; `pending` until the session is stored."""

    title: str | None
    pending: bool
    stored_session_id: str | None


class HistoryResult(msgspec.Struct):
    """A page of `count` messages; `parent_session_id` has the messages before a compression."""

    stored_session_id: str | None
    parent_session_id: str | None
    count: int
    messages: list[Row]


class BranchResult(msgspec.Struct):
    """The copy, with its own handle; the original does not change."""

    session_id: str
    stored_session_id: str
    title: str | None
    parent: str
    conversation: str


class UndoResult(msgspec.Struct):
    """How many rows of the transcript were undone."""

    removed: int


class CompressResult(msgspec.Struct):
    """The outcome; `before` and `after` are estimated tokens."""

    status: Literal["compressed", "skipped", "failed"]
    text: str
    stored_session_id: str | None
    before: int | None = None
    after: int | None = None


class InterruptResult(msgspec.Struct):
    """`idle` if nothing was running or waiting."""

    status: Literal["interrupted", "idle"]


class CloseResult(msgspec.Struct):
    """The session that ended; null if nothing was stored, or if it belongs to another platform."""

    closed: bool
    stored_session_id: str | None


class DeleteResult(msgspec.Struct):
    """How many messages were deleted, including those before compressions."""

    deleted: bool
    messages: int


class SubmitResult(msgspec.Struct, omit_defaults=True):
    """The message is on disk; `message_id` identifies it in events.

    `answered`: it was submitted before and was answered. `reply` is that answer, in the form of
    `message.complete`; it is missing if the answer is older than 30 days or was not stored.
    """

    status: SubmitStatus
    message_id: int
    stored_session_id: str | None
    reply: MessageComplete | None = None


class BeginResult(msgspec.Struct):
    """The upload, for `file.chunk` and `file.end`. It ends with the connection."""

    upload: str


class ChunkResult(msgspec.Struct):
    """How many bytes of the file have arrived."""

    received: int


class CancelResult(msgspec.Struct):
    """Nothing of the upload is kept."""

    cancelled: bool


class ReadResult(FilePart, kw_only=True):
    """Bytes of a file, in base64, and what is known of the file; `size` is that of the file."""

    data: bytes


class ReplayResult(msgspec.Struct):
    """The frames after the requested number, unchanged.

    If not `complete`, the oldest are gone; `session.resume` returns the current state.
    """

    frames: list[Any]
    complete: bool
    last: int
    epoch: str
