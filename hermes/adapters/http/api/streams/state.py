"""The state of a conversation as a client keeps it: a snapshot, and what changes it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from hermes.adapters.jsonrpc.types import Row
from hermes.events import RuntimeEvent
from hermes.messages import (
    Approval,
    ConversationSettings,
    ConversationSummary,
    OpenMessage,
    TurnProgress,
)


class History(msgspec.Struct, frozen=True):
    """Messages of a transcript."""

    messages: Sequence[Row]
    replace: bool = False
    """Whether they replace the messages before; otherwise they follow them."""
    earlier: bool = False
    """Whether the session has messages before these, which `history` returns."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a conversation. The events after its `id` continue it.

    `waiting` are all messages without an answer, including those of the running turn.
    """

    id: str
    session_key: str
    session_id: str | None
    title: str | None
    archived: bool
    settings: ConversationSettings
    history: History
    waiting: list[OpenMessage]
    turn: TurnProgress | None
    approvals: list[Approval]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed in the stored state of a conversation; other fields are left out.

    A client applies it after the event that it comes with.
    """

    session_id: str | UnsetType | None = UNSET
    title: str | UnsetType | None = UNSET
    archived: bool | UnsetType = UNSET
    settings: ConversationSettings | UnsetType = UNSET
    history: History | UnsetType = UNSET
    waiting: list[OpenMessage] | UnsetType = UNSET
    turn: TurnProgress | UnsetType | None = UNSET
    approvals: list[Approval] | UnsetType = UNSET


class ConversationEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened in a conversation: an event of the runtime, changes, or both."""

    session_key: str
    turn_id: int | None = None
    event: RuntimeEvent | UnsetType = UNSET
    changes: Changes | UnsetType = UNSET


class ListSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The most recently active conversations of the caller, and the running turn of each."""

    id: str
    conversations: list[ConversationSummary]
    turns: dict[str, int]


class ListEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as it is listed now; `conversation` is null if it is not listed any more."""

    session_key: str
    conversation: ConversationSummary | None
    turn_id: int | None
