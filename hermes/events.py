"""Events of a turn: agents emit them, subscribers receive them."""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

from hermes.messages import (
    Approval,
    BuildReason,
    JsonObject,
    Message,
    Reply,
    StoredMessage,
    ToolCall,
)


def _snake_case(name: str) -> str:
    return "_".join(re.findall("[A-Z][a-z]+", name)).lower()


class Event(msgspec.Struct, frozen=True, tag_field="type", tag=_snake_case):
    """Base class of all events. As JSON, `type` names the class: `text_delta`, `turn_ended`.

    `msgspec.json.decode(line, type=hermes.events.Envelope)` reads them back.
    """


class TextDelta(Event, frozen=True):
    """A piece of the answer."""

    text: str
    restart: bool = False
    """The answer starts again: discard this text and everything received before it."""


class ReasoningDelta(Event, frozen=True):
    """A piece of the model's reasoning."""

    text: str


class AssistantMessage(Event, frozen=True):
    """A complete assistant message with tool calls. It is stored whatever becomes of the turn."""

    message: Message


class ToolStarted(Event, frozen=True):
    """A tool that the model requested has started."""

    call: ToolCall


class ToolFinished(Event, frozen=True):
    """A tool has finished."""

    call_id: str
    content: str
    failed: bool = False
    parts: tuple[JsonObject, ...] = ()
    """The files that the tool has returned to the model, as parts of the row with the result."""


class Retrying(Event, frozen=True):
    """A call of the model failed and is made again, `seconds` from now."""

    seconds: float
    text: str
    """Says so to the user, with the reason."""


class ApprovalAsked(Event, frozen=True):
    """A tool needs the user's approval before it runs."""

    approval: Approval
    again: bool = False
    """Whether the same call was waiting already. Then no adapter sends the question again."""


class MessageWaiting(Event, frozen=True):
    """A message was accepted and waits for its turn. Only followers receive it."""

    message: Message
    inbox_id: int


class MessageAccepted(Event, frozen=True):
    """A message or command is on disk. Only subscribers with `messages=True` receive it.

    It precedes the events of its turn, and may be repeated.
    """

    text: str
    inbox_id: int
    event_id: str = ""
    platform: str = "embedded"
    decided_call: int | None = None
    """The number of a tool call: Hermes itself tells the agent that the user has decided about it,
    and `text` is empty."""
    parts: tuple[JsonObject, ...] = ()
    """The structured form of the message; its files are among them."""


class TurnStarted(Event, frozen=True):
    """The agent starts.

    `build_reason` says why it had to be built; None if the cached agent is reused. `waited` is the
    time in seconds since the first message was accepted. `metadata` is that of the messages.
    `attempt` is greater than 1 if the turn was begun before, by a process that crashed.
    """

    turn_id: int
    session_id: str
    build_reason: BuildReason | None
    inbox_ids: tuple[int, ...] = ()
    waited: float = 0.0
    metadata: JsonObject = msgspec.field(default_factory=dict)
    attempt: int = 1


class Steered(Event, frozen=True):
    """The agent took input that arrived during the turn."""

    message: Message
    inbox_ids: tuple[int, ...] = ()


class Notice(Event, frozen=True):
    """Information for the user that is not part of the answer."""

    text: str


class SessionMoved(Event, frozen=True):
    """The conversation continues in another session."""

    old: str | None
    new: str
    reason: str


class TitleChanged(Event, frozen=True):
    """The session has a new title."""

    session_id: str
    title: str


class MessagePosted(Event, frozen=True):
    """The agent sent a message unasked. It is on disk."""

    session_id: str
    message: StoredMessage


class TurnEnded(Event, frozen=True):
    """The turn is on disk, or was refused."""

    reply: Reply
    inbox_ids: tuple[int, ...] = ()
    platform: str = "embedded"
    dropped_by: int | None = None
    """The command that cancelled these messages before their turn."""

    @property
    def metadata(self) -> JsonObject:
        """The metadata of the messages."""
        return self.reply.metadata


AgentEvent: TypeAlias = (
    TextDelta
    | ReasoningDelta
    | AssistantMessage
    | ToolStarted
    | ToolFinished
    | Retrying
    | ApprovalAsked
)
"""What an agent can emit during a turn."""
RuntimeEvent: TypeAlias = (
    AgentEvent
    | MessageWaiting
    | MessageAccepted
    | TurnStarted
    | Steered
    | Notice
    | SessionMoved
    | TitleChanged
    | MessagePosted
    | TurnEnded
)
"""What a stream or a subscription yields."""


class Envelope(msgspec.Struct, frozen=True):
    """An event with its conversation; `seq` counts the events of one runtime, without gaps.

    What only a follower receives has the number of the last event before it.
    """

    seq: int
    session_key: str
    turn_id: int | None
    event: RuntimeEvent
