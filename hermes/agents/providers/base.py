"""What a model's provider is to an agent: bytes out, pieces in, and errors in one sentence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs

from hermes.errors import HermesError
from hermes.messages import Message, Usage
from hermes.redaction.keys import HIDDEN as HIDDEN, Secret as Secret, hide_keys as hide_keys

SHORTEST_SECRET = 6


class ProviderError(HermesError):
    """The provider did not answer; the text says why, and what to do."""


class NotAllowed(ProviderError):
    """The key is missing, wrong, or not good for this model."""


class OutOfQuota(ProviderError):
    """The account has no money or quota left; trying again does not help."""


class RequestRefused(ProviderError):
    """The provider does not take this request as it is; `bare` where it gives no reason."""

    def __init__(self, text: str, *, bare: bool = False) -> None:
        super().__init__(text)
        self.bare = bare


class Unavailable(ProviderError):
    """It may work in a while: busy, broken, unreachable, or cut off in the middle."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where a model answers, and as whom we ask."""

    base_url: str
    model: str
    key: Secret = attrs.Factory(Secret)
    name: str = "model"
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    max_tokens: int | None = None
    parameters: tuple[tuple[str, object], ...] = ()
    """What else goes into each request, such as a temperature."""
    alternate: bool = False
    """Whether user and assistant must take turns, as the templates of some local models insist."""
    connect_seconds: float = 10.0
    silence_seconds: float = 120.0
    """How long the provider may say nothing before it counts as gone."""
    call_seconds: float = 600.0

    def redact(self, text: str) -> str:
        """The text without the key, the values of the headers, and what looks like a key."""
        for _, value in self.headers:
            if len(value) >= SHORTEST_SECRET:
                text = text.replace(value, HIDDEN)
        return self.key.redact(text)


@attrs.frozen
class Text:
    """A piece of the answer."""

    text: str


@attrs.frozen
class Reasoning:
    """A piece of what the model thinks."""

    text: str


@attrs.frozen
class Said:
    """The whole answer, and what it cost as the provider counts; `cut` where a limit ended it."""

    message: Message
    usage: Usage | None = None
    cut: bool = False


Piece: TypeAlias = Text | Reasoning


class Provider(Protocol):
    """A protocol that models are spoken to in. It keeps nothing between calls."""

    @property
    def endpoint(self) -> Endpoint: ...

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Messages as they go over the wire; the same bytes for the same messages."""
        ...

    def body(self, history: bytes, fresh: Sequence[bytes], tail: Sequence[Message]) -> bytes:
        """A request: encoded history, the messages of this turn, and what is true only now."""
        ...

    async def ask(self, body: bytes, hear: Callable[[Piece], None]) -> Said:
        """Ask, and hand each piece of the answer on as it comes. Raises a `ProviderError`."""
        ...
