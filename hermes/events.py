"""What happens during a turn, as agents tell it and listeners hear it."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from hermes.messages import Approval, Message, Rebuilt, Reply, ToolCall


@attrs.frozen
class TextDelta:
    """A piece of the answer."""

    text: str


@attrs.frozen
class ReasoningDelta:
    """A piece of what the model thinks before it answers."""

    text: str


@attrs.frozen
class Spoken:
    """A message that calls tools is whole: so it is kept, whatever becomes of the turn."""

    message: Message


@attrs.frozen
class ToolStarted:
    """The model asked for a tool, and it runs."""

    call: ToolCall


@attrs.frozen
class ToolFinished:
    """A tool has answered."""

    call_id: str
    content: str
    failed: bool = False


@attrs.frozen
class ApprovalAsked:
    """A tool does not run before the user allows it."""

    approval: Approval


@attrs.frozen
class TurnStarted:
    """The agent begins; `rebuilt` says why it had to be built, None that the cached one runs."""

    turn_id: int
    session_id: str
    rebuilt: Rebuilt | None
    inbox_ids: tuple[int, ...] = ()


@attrs.frozen
class Steered:
    """Input that came during the turn was handed to the agent."""

    message: Message
    inbox_ids: tuple[int, ...] = ()


@attrs.frozen
class Notice:
    """Something the user should know that is not part of the answer."""

    text: str


@attrs.frozen
class SessionMoved:
    """The key leads to another session now."""

    old: str | None
    new: str
    reason: str


@attrs.frozen
class Titled:
    """The session has this title now."""

    session_id: str
    title: str


@attrs.frozen
class TurnEnded:
    """The turn is on disk, or was refused."""

    reply: Reply
    inbox_ids: tuple[int, ...] = ()


AgentEvent: TypeAlias = (
    TextDelta | ReasoningDelta | Spoken | ToolStarted | ToolFinished | ApprovalAsked
)
RuntimeEvent: TypeAlias = (
    AgentEvent | TurnStarted | Steered | Notice | SessionMoved | Titled | TurnEnded
)


@attrs.frozen
class Envelope:
    """An event with its address; `seq` counts within one run of the runtime, without gaps."""

    seq: int
    session_key: str
    turn_id: int | None
    event: RuntimeEvent
