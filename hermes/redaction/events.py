"""Redaction of the events and messages of a turn."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec.structs import asdict, replace

from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    ReasoningDelta,
    Retrying,
    RuntimeEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import JsonObject, Message, TurnResult
from hermes.redaction.slices import prepare
from hermes.redaction.stream import Redact, Redactor
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class EventRedactor:
    """Redacts the events of one turn and publishes them in their order.

    The end of a text delta is withheld while later deltas could complete it to a secret. Any other
    event ends the text and releases what was withheld.
    """

    def __init__(self, redactor: Redactor, publish: Callable[[RuntimeEvent], None]) -> None:
        self._redactor = redactor
        self._publish = publish
        self._text = redactor.stream()
        self._reasoning = redactor.stream()
        self.published: list[RuntimeEvent] = []
        """What was published so far."""

    def publish(self, event: RuntimeEvent) -> None:
        """Publish an event without secrets; withhold the part of a delta that may become one."""
        match event:
            case TextDelta(text, restart) if restart:
                self._publish_text(self._text.finish())
                self._publish_text(self._redactor(f"{text}"), restart=True)
            case TextDelta(text):
                self._publish_text(self._text.feed(f"{text}"))
            case ReasoningDelta(text):
                self._publish_reasoning(self._reasoning.feed(f"{text}"))
            case _:
                self.flush()
                event = _redact_event(event, self._redactor)
                self.published.append(event)
                self._publish(event)

    def flush(self) -> None:
        """Publish what was withheld: the text has ended."""
        self._publish_reasoning(self._reasoning.finish())
        self._publish_text(self._text.finish())

    def close(self) -> None:
        """Flush at the end of a run of the agent; a failing redactor is logged, not raised.

        Text that could not be redacted is not published.
        """
        with contained() as caught:
            self.flush()
        if caught.error is not None:
            log.error(
                "redaction failed; the end of a text was not published", exc_info=caught.error
            )

    def restart(self) -> None:
        """Close this run of the agent and start the answer again."""
        self.close()
        self.published.clear()

    def _publish_text(self, text: str, *, restart: bool = False) -> None:
        if text or restart:
            event = TextDelta(text, restart)
            self.published.append(event)
            self._publish(event)

    def _publish_reasoning(self, text: str) -> None:
        if text:
            event = ReasoningDelta(text)
            self.published.append(event)
            self._publish(event)


def redact_message(message: Message, redact: Redact) -> Message:
    """Return the message without secrets in any of its strings.

    A signed part of the reasoning is dropped if it contains one: the provider would reject it with
    another text.
    """
    details = tuple(filter(None, (_redact_detail(d, redact) for d in message.reasoning_details)))
    return redact_all(replace(message, reasoning_details=details), redact)


async def redact_messages(messages: Sequence[Message], redact: Redact) -> list[Message]:
    """Return the messages without secrets. It is a checkpoint if they have long texts."""
    await prepare(messages, redact)
    return [redact_message(message, redact) for message in messages]


def _redact_detail(detail: JsonObject, redact: Redact) -> JsonObject | None:
    redacted = redact_all(detail, redact)
    return None if redacted != detail and "signature" in detail else redacted


async def redact_result(result: TurnResult, redact: Redact) -> TurnResult:
    """Return the result of a turn without secrets in its text, error and data.

    The long texts of its rows are prepared. It is a checkpoint if there are any.
    """
    await prepare(result, redact)
    return replace(
        result,
        text=redact_optional(result.text, redact),
        error=redact_optional(result.error, redact),
        error_kind=redact_optional(result.error_kind, redact),
        data=redact_all(result.data, redact),
        calls=redact_all(result.calls, redact),
    )


def redact_all(value: T, redact: Redact) -> T:
    """Return a struct or JSON value without secrets in any of its strings, keys included.

    What does not change stays the same object.
    """
    return cast("T", _redact_all(value, redact))


def _redact_all(value: object, redact: Redact) -> object:
    match value:
        case str():
            text = redact(value)
            return value if text == value else text
        case dict():
            items = {_redact_all(k, redact): _redact_all(v, redact) for k, v in value.items()}
            return value if items == value else items
        case list() | tuple():
            each = [_redact_all(item, redact) for item in value]
            return value if all(map(operator.is_, each, value)) else type(value)(each)
        case msgspec.Struct():
            fields = asdict(value)
            redacted = {name: _redact_all(field, redact) for name, field in fields.items()}
            same = all(redacted[name] is field for name, field in fields.items())
            return value if same else replace(value, **redacted)
        case _:
            return value


def redact_optional(text: str | None, redact: Redact) -> str | None:
    """Return the text without secrets, or None if there is no text."""
    return None if text is None else redact(text)


def _redact_event(event: RuntimeEvent, redact: Redact) -> RuntimeEvent:
    match event:
        case AssistantMessage(message):
            return AssistantMessage(redact_message(message, redact))
        case ToolStarted() | ToolFinished() | ApprovalAsked() | Retrying():
            return redact_all(event, redact)
        case _:
            return event
