"""Payloads of the events that a client receives. The schema is generated from `EVENTS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from hermes.messages import JsonObject, ReplyStatus, StoredFile, file_id_of

Status: TypeAlias = Literal["complete", "interrupted", "error"]


class FilePart(msgspec.Struct, omit_defaults=True):
    """A file of a message, as the store knows it, or an image on the web.

    `file` is the id for `file.read` and for the parts of messages to the same conversation. Fields
    that are not known are left out.
    """

    type: str
    file: str | None = None
    media_type: str | None = None
    size: int | None = None
    name: str | None = None
    width: int | None = None
    height: int | None = None
    url: str | None = None

    @property
    def stored(self) -> StoredFile:
        """The file that it names."""
        return StoredFile(
            id=self.file or "",
            media_type=self.media_type or "application/octet-stream",
            size=self.size or 0,
            name=self.name,
            width=self.width,
            height=self.height,
        )


def file_parts(parts: Sequence[JsonObject] | None) -> list[FilePart]:
    """Return those parts that name files or URLs. Parts in other forms may have content."""
    found = []
    for part in parts or ():
        url = part.get("url")
        if file_id_of(part) or (isinstance(url, str) and url.startswith(("http://", "https://"))):
            with suppress(msgspec.ValidationError):  # a part of a host may have anything
                found.append(msgspec.convert(part, FilePart))
    return found


class Ready(msgspec.Struct):
    """First frame of a connection. `seq` numbers are valid within this `epoch` only."""

    epoch: str
    protocol: int


class TokenUsage(msgspec.Struct):
    """The tokens of an answer, and its cost if known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None


class MessageAccepted(msgspec.Struct, omit_defaults=True):
    """Somebody else has sent a message or command to the conversation, from this platform.

    It precedes the other events with its id, and may be repeated. `parts` are its files. If it has
    a `decided_call`, the text is empty: Hermes itself tells the agent that the user has decided
    about this call.
    """

    message_id: int
    text: str
    platform: str
    decided_call: int | None = None
    parts: list[FilePart] = []


class MessageStart(msgspec.Struct):
    """An answer starts. A second one for the same turn restarts it."""

    turn_id: int
    message_ids: list[int]
    stored_session_id: str


class Delta(msgspec.Struct):
    """A piece of the answer (`message.delta`) or of the reasoning before it (`reasoning.delta`)."""

    turn_id: int | None
    text: str


class MessageComplete(msgspec.Struct):
    """The answer to the messages with these ids, or what there was of it at an interrupt.

    `reply_status` is the status in the words of the runtime, if it says more: "command", "partial",
    "withdrawn", "failed" or "refused". `dropped_by` is the id of the command that cancelled the
    messages before their turn; the answer to that command reports it, too. `files` are those of the
    answer.
    """

    turn_id: int
    message_ids: list[int]
    text: str
    status: Status
    usage: TokenUsage
    stored_session_id: str
    error: str | None = None
    reply_status: ReplyStatus | UnsetType = UNSET
    dropped_by: int | UnsetType = UNSET
    files: list[FilePart] | UnsetType = UNSET


class ToolStart(msgspec.Struct):
    """A tool call starts; `arguments` is the JSON text of the model."""

    call_id: str
    name: str
    arguments: str


class ToolComplete(msgspec.Struct):
    """A tool call has ended."""

    call_id: str
    content: str
    failed: bool


class StatusUpdate(msgspec.Struct, omit_defaults=True):
    """Information for the user that is not part of an answer.

    For "steered", `message_ids` are the messages that the agent has received.
    """

    kind: Literal["notice", "retrying", "steered", "compressing", "ready", "shed"]
    text: str
    message_ids: list[int] = []


class SessionInfo(msgspec.Struct):
    """The conversation continues in another stored session, under the same handle."""

    stored_session_id: str
    old_session_id: str | None
    reason: str


class SessionTitle(msgspec.Struct):
    """The stored session has a new title."""

    stored_session_id: str
    title: str


class ApprovalRequest(msgspec.Struct):
    """A tool needs approval: submit `/approve <number>` or `/deny <number>`.

    `arguments` is JSON on one line; what a reader might not see is written as `\\uXXXX`.
    """

    number: int
    tool: str
    arguments: str
    expires_at: float


class Error(msgspec.Struct):
    """A notification failed; it has no id for an error response."""

    code: int
    message: str


EVENTS: Mapping[str, type[msgspec.Struct]] = {
    "gateway.ready": Ready,
    "message.accepted": MessageAccepted,
    "message.start": MessageStart,
    "message.delta": Delta,
    "reasoning.delta": Delta,
    "message.complete": MessageComplete,
    "tool.start": ToolStart,
    "tool.complete": ToolComplete,
    "status.update": StatusUpdate,
    "session.info": SessionInfo,
    "session.title": SessionTitle,
    "approval.request": ApprovalRequest,
    "error": Error,
}
