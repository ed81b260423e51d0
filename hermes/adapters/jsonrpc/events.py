"""The events that a client hears; the schema is made of `EVENTS`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["complete", "interrupted", "error"]


class Ready(msgspec.Struct):
    """`gateway.ready`: the first frame of a connection. Numbers are of this `epoch` only."""

    epoch: str
    protocol: int


class Spent(msgspec.Struct):
    """What an answer took, in tokens, and in money where that is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None


class MessageStart(msgspec.Struct):
    """An answer begins; a second one of the same turn begins it anew."""

    turn_id: int
    message_ids: list[int]
    stored_session_id: str


class Delta(msgspec.Struct):
    """A piece of the answer, or of what the model thinks before it."""

    turn_id: int | None
    text: str


class MessageComplete(msgspec.Struct):
    """What became of the messages with these ids; the whole text, however it was streamed."""

    turn_id: int
    message_ids: list[int]
    text: str
    status: Status
    usage: Spent
    stored_session_id: str
    error: str | None = None


class ToolStart(msgspec.Struct):
    """A tool runs; `arguments` is the model's own JSON text."""

    call_id: str
    name: str
    arguments: str


class ToolComplete(msgspec.Struct):
    """A tool has answered."""

    call_id: str
    content: str
    failed: bool


class StatusUpdate(msgspec.Struct):
    """Something the user should know that is not part of an answer."""

    kind: Literal["notice", "steered", "compressing", "ready", "shed"]
    text: str


class SessionInfo(msgspec.Struct):
    """The live session goes on in another stored one, and its handle with it."""

    stored_session_id: str
    old_session_id: str | None
    reason: str


class SessionTitle(msgspec.Struct):
    """The stored session has this title now."""

    stored_session_id: str
    title: str


class ApprovalRequest(msgspec.Struct):
    """A tool waits for the user: `/approve <number>` or `/deny <number>` by `prompt.submit`."""

    number: int
    tool: str
    arguments: str
    expires_at: float


class Error(msgspec.Struct):
    """A notification, which has no id to answer to, was not done."""

    code: int
    message: str


EVENTS: Mapping[str, type[msgspec.Struct]] = {
    "gateway.ready": Ready,
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
