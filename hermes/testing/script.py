"""What a test tells a loopback model to say, and how to fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

from hermes.messages import ToolCall

Finish: TypeAlias = Literal["stop", "length", "tool_calls"]
Why: TypeAlias = Literal[
    "rate_limit", "server_error", "overloaded", "bad_key", "no_quota", "payment", "too_long"
]


@attrs.frozen
class ModelAnswer:
    """What the model says; it comes in pieces of so many characters."""

    text: str = ""
    reasoning: str = attrs.field(default="", kw_only=True)
    calls: Sequence[ToolCall] = attrs.field(default=(), kw_only=True)
    finish: Finish | None = attrs.field(default=None, kw_only=True)
    piece: int = attrs.field(default=16, kw_only=True)

    @property
    def ending(self) -> Finish:
        """Why the answer is over."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    def pieces(self, text: str) -> Iterator[str]:
        """A text as it is streamed."""
        return (text[at : at + self.piece] for at in range(0, len(text), self.piece))


@attrs.frozen
class Refuse:
    """An error instead of an answer, in the provider's own words and with its own status."""

    why: Why
    retry_after: float | None = None


@attrs.frozen
class HangUp:
    """The connection ends before the answer begins."""


@attrs.frozen
class Disconnect:
    """The connection ends after so many pieces."""

    after: int = 1


@attrs.frozen
class CutOff:
    """The answer ends after so many pieces as if it were whole, as behind some proxies."""

    after: int = 1


@attrs.frozen
class Drip:
    """So many seconds pass before each piece."""

    seconds: float


@attrs.frozen
class Garbage:
    """Events without sense stand behind each of the first pieces."""

    events: int = 3


@attrs.frozen
class OnlyGarbage:
    """Nothing but events without sense."""

    events: int = 30


@attrs.frozen
class ErrorEvent:
    """An answer that began well goes on, after so many pieces, with an error."""

    after: int = 1
    why: Why = "overloaded"


Fault: TypeAlias = Refuse | HangUp | Disconnect | CutOff | Drip | Garbage | OnlyGarbage | ErrorEvent
"""What happens to one request. One that is not answered to its end uses up nothing of a script."""

NONSENSE = (
    b'data: {"choices": [{"delta": {"cont\n\n',
    b'data: {"type": "\xff\xfe"}\n\n',
    b"data: 42\n\n",
    b"data: <html>502</html>\n\n",
    b": still here\nretry: 5\nid\n\n",
)


def nonsense(events: int) -> Iterator[bytes]:
    """So many events that mean nothing."""
    return (NONSENSE[number % len(NONSENSE)] for number in range(events))
