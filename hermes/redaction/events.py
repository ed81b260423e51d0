"""What a turn tells while it runs, freed of secrets as what is stored of it will be."""

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
from hermes.messages import Message
from hermes.redaction.keys import Redact, pieces_of

log = logging.getLogger(__name__)


class EventRedactor:
    """Publishes the events of one turn without secrets, in their order.

    Pieces of a text are held back for as long as they may become a part of one; any event but
    another piece ends the text.
    """

    def __init__(self, redact: Redact, publish: Callable[[RuntimeEvent], None]) -> None:
        self._redact = redact
        self._publish = publish
        self._text = pieces_of(redact)
        self._thoughts = pieces_of(redact)
        self._told: list[str] = []

    @property
    def said(self) -> str:
        """What was told of the answer."""
        return "".join(self._told)

    def publish(self, event: RuntimeEvent) -> None:
        """Tell an event, or what of it can be told now."""
        match event:
            case TextDelta(text, restart) if restart:
                self._say(self._text.end())
                self._say(self._redact(f"{text}"), restart=True)
            case TextDelta(text):
                self._say(self._text.add(f"{text}"))
            case ReasoningDelta(text):
                self._think(self._thoughts.add(f"{text}"))
            case _:
                self.end()
                self._publish(_discreet(event, self._redact))

    def end(self) -> None:
        """The text is over: tell what was held back."""
        self._think(self._thoughts.end())
        self._say(self._text.end())

    def close(self) -> None:
        """This run of the agent is over, and must not fail by that."""
        try:
            self.end()
        except Exception:  # foreign code: what it could not hide is not told
            log.exception("the end of a text was not told")

    def restart(self) -> None:
        """The answer begins once more."""
        self.close()
        self._told.clear()

    def _say(self, text: str, *, restart: bool = False) -> None:
        if text or restart:
            self._told.append(text)
            self._publish(TextDelta(text, restart))

    def _think(self, text: str) -> None:
        if text:
            self._publish(ReasoningDelta(text))


def without_secrets(message: Message, redact: Redact) -> Message:
    """The message without secrets."""
    calls = tuple(replace(each, arguments=redact(each.arguments)) for each in message.tool_calls)
    return replace(
        message,
        content=hidden(message.content, redact),
        reasoning=hidden(message.reasoning, redact),
        tool_calls=calls,
    )


def hidden(text: str | None, redact: Redact) -> str | None:
    """The text without secrets, where there is one."""
    return None if text is None else redact(text)


def _discreet(event: RuntimeEvent, redact: Redact) -> RuntimeEvent:
    match event:
        case AssistantMessage(message):
            return AssistantMessage(without_secrets(message, redact))
        case ToolStarted(call):
            return ToolStarted(replace(call, arguments=redact(call.arguments)))
        case ToolFinished(content=content):
            return replace(event, content=redact(content))
        case ApprovalAsked(approval):
            return ApprovalAsked(replace(approval, arguments=redact(approval.arguments)))
        case _:
            return event
