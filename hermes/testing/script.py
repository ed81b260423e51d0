"""Scripted answers and faults of the loopback model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

from hermes.messages import ToolCall

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
ErrorReason: TypeAlias = Literal[
    "rate_limit", "server_error", "overloaded", "bad_key", "no_quota", "payment", "too_long"
]


@attrs.frozen
class ModelAnswer:
    """An answer of the model."""

    text: str = ""
    reasoning: str = attrs.field(default="", kw_only=True)
    calls: Sequence[ToolCall] = attrs.field(default=(), kw_only=True)
    """The tools that the model calls."""
    finish: FinishReason | None = attrs.field(default=None, kw_only=True)
    """By default `"tool_calls"` if there are any, else `"stop"`."""
    chunk_size: int = attrs.field(default=16, kw_only=True)
    """The number of characters in each chunk of a streamed answer."""

    @property
    def finish_reason(self) -> FinishReason:
        """Why the answer ends."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    def chunks(self, text: str) -> Iterator[str]:
        """Split a text into chunks for streaming."""
        size = self.chunk_size
        return (text[start : start + size] for start in range(0, len(text), size))


@attrs.frozen
class Refuse:
    """An HTTP error instead of an answer, with the status and the message of the real provider."""

    reason: ErrorReason
    retry_after: float | None = None
    """The value of the `Retry-After` header in seconds."""


@attrs.frozen
class HangUp:
    """The connection is closed before the answer begins."""


@attrs.frozen
class Disconnect:
    """The connection is closed after some chunks."""

    after: int = 1


@attrs.frozen
class CutOff:
    """The answer ends properly, but after some chunks; some proxies do that."""

    after: int = 1


@attrs.frozen
class Drip:
    """A pause before each chunk."""

    seconds: float


@attrs.frozen
class Garbage:
    """Malformed events after each of the first chunks."""

    events: int = 3


@attrs.frozen
class OnlyGarbage:
    """Nothing but malformed events."""

    events: int = 30


@attrs.frozen
class ErrorEvent:
    """An error event in the middle of an answer, after some chunks."""

    after: int = 1
    reason: ErrorReason = "overloaded"


Fault: TypeAlias = Refuse | HangUp | Disconnect | CutOff | Drip | Garbage | OnlyGarbage | ErrorEvent
"""What goes wrong with one request. A request that gets no complete answer does not advance the
script."""

MALFORMED_EVENTS = (
    b'data: {"choices": [{"delta": {"cont\n\n',
    b'data: {"type": "\xff\xfe"}\n\n',
    b"data: 42\n\n",
    b"data: <html>502</html>\n\n",
    b": still here\nretry: 5\nid\n\n",
)


def malformed_events(count: int) -> Iterator[bytes]:
    """Yield `count` malformed events."""
    return (MALFORMED_EVENTS[number % len(MALFORMED_EVENTS)] for number in range(count))
