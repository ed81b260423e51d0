"""What the rendered streams send. Other fields and events are those of the plain streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from hermes.adapters.http.api.streams.rendered.patches import Patch
from hermes.adapters.http.api.streams.state import (
    Changes,
    ConversationEvent,
    History,
    Snapshot,
)
from hermes.adapters.http.markdown.nodes import Element
from hermes.adapters.jsonrpc.types import Row
from hermes.messages import TurnProgress


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A text of a running turn: blocks that are finished, and those that may still change."""

    number: int
    finished: list[Element]
    open: list[Element]


class ReasoningPart(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning of the model, between other parts."""

    number: int
    text: str


class ToolPart(msgspec.Struct, frozen=True, tag_field="type", tag="tool"):
    """The place of a tool call among the parts; the call is in `tools`."""

    number: int
    call_id: str


Part: TypeAlias = TextPart | ReasoningPart | ToolPart


class RenderedTurn(TurnProgress, frozen=True, kw_only=True):
    """A running turn with its parts, in order."""

    parts: list[Part]


class TextUpdate(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Changes the open blocks of a text. Then the first `finished` of them will not change again.

    A text with another number than those before begins, without blocks.
    """

    number: int
    patch: Patch
    finished: int


class ReasoningUpdate(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Text that is appended to a reasoning, or begins it."""

    number: int
    text: str


Update: TypeAlias = TextUpdate | ReasoningUpdate


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has been said since the last event `progress`, at most ten times a second.

    With `restart`, the texts of the turn are discarded before.
    """

    session_key: str
    turn_id: int | None
    restart: bool = False
    parts: list[Update] = []


class RenderedRow(Row, omit_defaults=True):
    """A message with its text as blocks.

    Instead of `nodes`, it has the number of a `part` if its text is one of the turn that has just
    ended, as clients know it. If its turn was recorded, it has the id of it, and the result of a
    tool call says how long it took, in milliseconds, and whether it failed.
    """

    nodes: list[Element] | UnsetType = UNSET
    part: int | UnsetType = UNSET
    turn_id: int | UnsetType = UNSET
    duration: int | UnsetType = UNSET
    failed: bool | UnsetType = UNSET


class RenderedHistory(History, frozen=True):
    """Messages of a transcript, rendered."""

    messages: Sequence[RenderedRow]


class RenderedSnapshot(Snapshot, frozen=True, kw_only=True):
    """The state of a conversation, rendered."""

    history: RenderedHistory
    turn: RenderedTurn | None


class RenderedChanges(Changes, frozen=True, kw_only=True):
    """What has changed in the stored state of a conversation, rendered."""

    history: RenderedHistory | UnsetType = UNSET
    turn: RenderedTurn | UnsetType | None = UNSET


class RenderedEvent(ConversationEvent, frozen=True, kw_only=True):
    """Something happened in a conversation; its texts are in events `progress`."""

    changes: RenderedChanges | UnsetType = UNSET
