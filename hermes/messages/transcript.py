"""Messages, and the transcript they form."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as Python values."""

SUMMARY = "summary"
"""The value of `provider_data["hermes"]` in a message that replaces others after a compression."""


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A tool call as the model requested it; `arguments` is the model's own JSON text."""

    id: str
    name: str
    arguments: str = "{}"


class Extra(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that only some messages have. They are stored in one column, as JSON."""

    parts: tuple[JsonObject, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    tool_name: str | None = None
    reasoning: str | None = None
    reasoning_details: tuple[JsonObject, ...] = ()
    finish_reason: str | None = None
    token_count: int | None = None
    provider_data: JsonObject | None = None
    edits: str | None = None
    """The platform id of the message that this one is a new version of; both stay stored."""
    chat: str | None = None
    """The account and chat in which the platform ids of this message are unique."""


class Message(Extra, frozen=True):
    """A message to be stored; `content` is its text, `parts` its structured form."""

    role: str
    content: str | None = None
    timestamp: float | None = None
    platform_message_id: str | None = None


class StoredMessage(Extra, frozen=True, gc=False):
    """A message as the store keeps it; ids increase within a session."""

    id: int
    role: str
    content: str | None
    timestamp: float
    platform_message_id: str | None = None


class WaitingMessage(StoredMessage, frozen=True, gc=False, kw_only=True):
    """A message that is accepted but not answered.

    It is not in the transcript yet; its `id` is the negative `inbox_id`, and can be passed as
    `before` or `after` like that of any other message.
    """

    inbox_id: int


class Head(msgspec.Struct, frozen=True, gc=False):
    """The state of a transcript: `revision` grows with every change to its rows.

    `rewrites` counts the changes that are not appends.
    """

    session_id: str
    message_count: int = 0
    revision: int = 0
    rewrites: int = 0


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Result of `append_message`; `duplicate` if the platform message id was already stored."""

    message_id: int
    head: Head
    duplicate: bool = False


class Posted(msgspec.Struct, frozen=True):
    """A message that the agent sent unasked is on disk."""

    message: StoredMessage
    before: Head
    """The state of the transcript before it."""
    head: Head
    epoch: int
    title: str | None = None
    """The pending title, if the session got it with this message."""


class Transcript(msgspec.Struct, frozen=True):
    """The live rows of a session and their head, read in one transaction."""

    head: Head
    messages: list[StoredMessage]


class SearchHit(msgspec.Struct, frozen=True):
    """A message that matches a search, with the messages before and after it."""

    message_id: int
    session_id: str
    role: str
    snippet: str
    timestamp: float
    source: str
    """The platform of the session."""
    title: str | None
    before: str | None
    after: str | None
    compacted: bool = False
    """Whether hermes-agent had replaced the message by a summary; transcripts do not show it."""
    subagent: bool = False
    """Whether the session belongs to a subagent."""
