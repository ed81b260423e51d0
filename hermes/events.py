"""What happens during a turn, as agents tell it and listeners hear it."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hermes.messages import Approval, BuildReason, Message, Reply, ToolCall


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer."""

    text: str
    restart: bool = False
    """It only says that the answer begins once more; neither it nor what came before is kept."""


class ReasoningDelta(msgspec.Struct, frozen=True):
    """A piece of what the model thinks before it answers."""

    text: str


class AssistantMessage(msgspec.Struct, frozen=True):
    """A message that calls tools is whole: so it is kept, whatever becomes of the turn."""

    message: Message


class ToolStarted(msgspec.Struct, frozen=True):
    """The model asked for a tool, and it runs."""

    call: ToolCall


class ToolFinished(msgspec.Struct, frozen=True):
    """A tool has answered."""

    call_id: str
    content: str
    failed: bool = False


class ApprovalAsked(msgspec.Struct, frozen=True):
    """A tool does not run before the user allows it."""

    approval: Approval


class TurnStarted(msgspec.Struct, frozen=True):
    """The agent begins; `build_reason` says why it had to be built, None that the cached one runs.

    `waited` is how many seconds ago the first of the messages was accepted.
    """

    turn_id: int
    session_id: str
    build_reason: BuildReason | None
    inbox_ids: tuple[int, ...] = ()
    waited: float = 0.0


class Steered(msgspec.Struct, frozen=True):
    """Input that came during the turn was handed to the agent."""

    message: Message
    inbox_ids: tuple[int, ...] = ()


class Notice(msgspec.Struct, frozen=True):
    """Something the user should know that is not part of the answer."""

    text: str


class SessionMoved(msgspec.Struct, frozen=True):
    """The key leads to another session now."""

    old: str | None
    new: str
    reason: str


class TitleChanged(msgspec.Struct, frozen=True):
    """The session has this title now."""

    session_id: str
    title: str


class TurnEnded(msgspec.Struct, frozen=True):
    """The turn is on disk, or was refused."""

    reply: Reply
    inbox_ids: tuple[int, ...] = ()
    platform: str = "embedded"
    dropped_by: int | None = None
    """The command that ended these messages before their turn; its own end says the same."""


AgentEvent: TypeAlias = (
    TextDelta | ReasoningDelta | AssistantMessage | ToolStarted | ToolFinished | ApprovalAsked
)
RuntimeEvent: TypeAlias = (
    AgentEvent | TurnStarted | Steered | Notice | SessionMoved | TitleChanged | TurnEnded
)


class Envelope(msgspec.Struct, frozen=True):
    """An event with its address; `seq` counts within one run of the runtime, without gaps."""

    seq: int
    session_key: str
    turn_id: int | None
    event: RuntimeEvent
