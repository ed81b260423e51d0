"""Transcript rows from the events of a turn."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from msgspec.structs import replace

from hermes.events import (
    AgentEvent,
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import Message, ToolCall, ToolProgress

INTERRUPTED = "[interrupted before it answered]"
"""The stored result of a tool call that did not finish."""


@attrs.define
class _Block:
    """An assistant message under construction, with the results of its tool calls."""

    text: list[str] = attrs.Factory(list)
    reasoning: list[str] = attrs.Factory(list)
    message: Message | None = None
    """The whole message, if the agent emitted it."""
    calls: list[ToolCall] = attrs.Factory(list)
    results: dict[str, ToolFinished] = attrs.Factory(dict)
    steered: list[Message] = attrs.Factory(list)
    """Input that arrived while its tools ran; it follows their results."""

    @property
    def complete(self) -> bool:
        """Whether all its tools have finished, so that what follows is another message."""
        return bool(self.calls) and len(self.results) == len(self.calls)

    def rows(self) -> list[Message]:
        """Return the message and the results of its calls; missing results were interrupted."""
        text = "".join(self.text)
        if not text and not self.calls:
            return self.steered
        message = self.message or Message(
            "assistant",
            text or None,
            tool_calls=tuple(self.calls),
            reasoning="".join(self.reasoning) or None,
        )
        return [message, *map(self._result, self.calls), *self.steered]

    def _result(self, call: ToolCall) -> Message:
        result = self.results.get(call.id) or ToolFinished(call.id, INTERRUPTED)
        return Message(
            "tool",
            result.content,
            tool_call_id=call.id,
            tool_name=call.name,
            parts=result.parts or None,
        )

    def add(self, event: AgentEvent | Steered) -> None:
        match event:
            case TextDelta(_, restart) if restart:
                self.text.clear()
            case TextDelta(text):
                self.text.append(_checked(text))
            case ReasoningDelta(text):
                self.reasoning.append(_checked(text))
            case AssistantMessage(message):
                self.message = message
            case ToolStarted(call):
                self.calls.append(call)
            case ToolFinished(call_id):
                self.results[call_id] = event
            case Steered(message, _):
                self.steered.append(message)


def _checked(text: object) -> str:
    """Return the text of a delta. Raises `TypeError` if an agent emitted something else."""
    if not isinstance(text, str):
        raise TypeError(f"the text of a delta must be a string, not {type(text).__name__}")
    return text


def rows_from_events(events: Sequence[AgentEvent | Steered], text: str | None) -> list[Message]:
    """Return the rows of what an agent emitted; `text`, if given, is its final answer."""
    if text and all(_is_text(event) for event in events):
        return [Message("assistant", text)]
    return _rows_with_tools(events, text)


def _is_text(event: AgentEvent | Steered) -> bool:
    return isinstance(event, TextDelta) and isinstance(event.text, str)


def _rows_with_tools(events: Sequence[AgentEvent | Steered], text: str | None) -> list[Message]:
    rows: list[Message] = []
    block = _Block()
    for event in events:
        if block.complete and not isinstance(event, ToolFinished | Steered):
            rows += block.rows()
            block = _Block()
        block.add(event)
        if isinstance(event, Steered) and not block.calls:
            rows += block.rows()
            block = _Block()
    if text is not None:
        if block.complete:
            rows += block.rows()
            block = _Block()
        block.text = [text]
    return rows + block.rows()


def tools_of(events: Sequence[RuntimeEvent]) -> tuple[ToolProgress, ...]:
    """Return the tool calls among the events of a turn, in order, with their results."""
    tools: dict[str, ToolProgress] = {}
    for event in events:
        match event:
            case ToolStarted(call):
                tools[call.id] = ToolProgress(call=call)
            case ToolFinished(call_id, content, failed) if call_id in tools:
                tools[call_id] = replace(
                    tools[call_id], finished=True, failed=failed, content=content
                )
    return tuple(tools.values())
