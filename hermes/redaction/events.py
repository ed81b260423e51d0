"""Redaction of the events and messages of a turn."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec.structs import replace

from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import Message, TurnResult
from hermes.redaction.stream import Redact, Redactor
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)


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
        self.published: list[TextDelta | ToolStarted | ToolFinished] = []
        """The text of the answer that was published so far, and the tools that ran."""

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
                if isinstance(event, ToolStarted | ToolFinished):
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
            self._publish(ReasoningDelta(text))


def redact_message(message: Message, redact: Redact) -> Message:
    """Return the message without secrets in its content, reasoning and tool arguments."""
    calls = tuple(replace(call, arguments=redact(call.arguments)) for call in message.tool_calls)
    return replace(
        message,
        content=redact_optional(message.content, redact),
        reasoning=redact_optional(message.reasoning, redact),
        tool_calls=calls,
    )


def redact_result(result: TurnResult, redact: Redact) -> TurnResult:
    """Return the result of a turn without secrets in its text, error and data."""
    return replace(
        result,
        text=redact_optional(result.text, redact),
        error=redact_optional(result.error, redact),
        data=redact_json(result.data, redact),
    )


def redact_json(value: object, redact: Redact) -> object:
    """Return a JSON value without secrets in its strings, keys included."""
    match value:
        case str():
            return redact(value)
        case dict():
            return {redact(key): redact_json(each, redact) for key, each in value.items()}
        case list() | tuple():
            return [redact_json(each, redact) for each in value]
        case _:
            return value


def redact_optional(text: str | None, redact: Redact) -> str | None:
    """Return the text without secrets, or None if there is no text."""
    return None if text is None else redact(text)


def _redact_event(event: RuntimeEvent, redact: Redact) -> RuntimeEvent:
    match event:
        case AssistantMessage(message):
            return AssistantMessage(redact_message(message, redact))
        case ToolStarted(call):
            return ToolStarted(replace(call, arguments=redact(call.arguments)))
        case ToolFinished(content=content):
            return replace(event, content=redact(content))
        case ApprovalAsked(approval):
            return ApprovalAsked(replace(approval, arguments=redact(approval.arguments)))
        case _:
            return event
