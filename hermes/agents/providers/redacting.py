"""A provider whose answers contain no secrets."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs
import trio

from hermes.agents.providers.base import Completion, Delta, Endpoint, FileBody, Provider
from hermes.agents.providers.formats import RequestFormat, RequestTexts, texts_of
from hermes.errors import TurnClosed
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import Message, TurnOptions
from hermes.redaction import Redact, ValueRedactor, redact_message
from hermes.redaction.slices import SLICE, SlicingRedactor, prepare, slices
from hermes.redaction.stream import ChainedStream, RedactingStream, as_redactor


class EndpointRedactor:
    """Removes the credentials of an endpoint, and what another redactor removes.

    The credentials are read each time, because an environment variable may change. Those that the
    other redactor removes are left to it.
    """

    def __init__(self, endpoint: Endpoint, redact: Redact | None = None) -> None:
        self._endpoint = endpoint
        self._other = as_redactor(redact or str)
        self._secrets: list[str] = []
        self._own = ValueRedactor(())

    @property
    def own(self) -> ValueRedactor:
        """The redactor of the credentials."""
        if (secrets := self._endpoint.secrets) != self._secrets:
            self._secrets = secrets
            self._own = ValueRedactor(each for each in secrets if each in self._other(each))
        return self._own

    def __call__(self, text: str, /) -> str:
        """Return the text without secrets."""
        return self._other(self.own(text))

    def stream(self) -> RedactingStream:
        """Return a stream that redacts one text in chunks."""
        return ChainedStream(self.own.stream(), self._other.stream())

    def redact_slices(self, text: str) -> Iterator[None]:
        """Redact a text in slices, and remember the result."""
        own = self.own
        yield from own.redact_slices(text)
        if isinstance(self._other, SlicingRedactor):
            yield from self._other.redact_slices(own(text))


class FormattedProvider(Provider, Protocol):
    """A provider that tells how its requests are put together."""

    @property
    def request_format(self) -> RequestFormat:
        """How requests are put together."""
        ...

    def configured(self, options: TurnOptions) -> FormattedProvider:
        """Return a provider for one turn. Raises `OptionRefused`."""
        ...


@attrs.frozen
class RedactingProvider:
    """Redacts every string of an answer, before anything reads it.

    The names, ids and arguments of tool calls are part of it. Of deltas only the credentials of the
    endpoint are removed; the turn that publishes them removes what its own redactor knows.
    """

    provider: FormattedProvider
    redact: EndpointRedactor

    @property
    def endpoint(self) -> Endpoint:
        """Where the model is."""
        return self.provider.endpoint

    @functools.cached_property
    def texts(self) -> RequestTexts:
        """What each request has besides messages, without secrets."""
        return texts_of(self.provider.request_format, self.endpoint, self.redact)

    def configured(self, options: TurnOptions) -> RedactingProvider:
        """Return a provider for one turn. Raises `OptionRefused`."""
        return attrs.evolve(self, provider=self.provider.configured(options))

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON."""
        return self.provider.encode(messages)

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body."""
        return self.provider.body(history, new, suffix)

    async def complete(
        self, body: bytes | FileBody, on_delta: Callable[[Delta], None]
    ) -> Completion:
        """Send a request and return the redacted answer (see `Provider.complete`)."""
        deltas = _RedactedDeltas(on_delta, self.redact.own)
        try:
            completion = await self.provider.complete(body, deltas.feed)
            await deltas.drain()
        except BaseException:
            with contextlib.suppress(TurnClosed):
                deltas.finish()
            raise
        deltas.finish()
        await prepare(completion.message, self.redact)
        return attrs.evolve(completion, message=redact_message(completion.message, self.redact))


class _RedactedDeltas:
    """Passes on deltas without secrets. A long one is passed on in slices, when the answer is over.

    It cannot be passed on in slices at once: the code that has read it cannot wait.
    """

    def __init__(self, on_delta: Callable[[Delta], None], redactor: ValueRedactor) -> None:
        self._on_delta = on_delta
        self._streams = {TextDelta: redactor.stream(), ReasoningDelta: redactor.stream()}
        self._waiting: deque[Delta] = deque()

    def feed(self, delta: Delta) -> None:
        """Add a delta."""
        if len(delta.text) > SLICE or self._waiting:
            self._waiting.extend(type(delta)(part) for part in slices(delta.text))
        else:
            self._pass_on(delta)

    async def drain(self) -> None:
        """Pass on what waits."""
        while self._waiting:
            self._pass_on(self._waiting.popleft())
            await trio.lowlevel.checkpoint()

    def finish(self) -> None:
        """Pass on the ends of the texts, which are withheld while they may become a secret."""
        for kind, stream in self._streams.items():
            if text := stream.finish():
                self._on_delta(kind(text))

    def _pass_on(self, delta: Delta) -> None:
        if text := self._streams[type(delta)].feed(delta.text):
            self._on_delta(delta if text == delta.text else type(delta)(text))
