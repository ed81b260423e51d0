"""A provider whose answers contain no secrets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from hermes.agents.providers.base import Completion, Delta, Endpoint, Provider
from hermes.messages import Message
from hermes.redaction import Redact, redact_message


@attrs.frozen
class RedactingProvider:
    """Redacts every string of an answer, before anything reads it.

    The names, ids and arguments of tool calls are part of it. Deltas are redacted by the turn that
    publishes them, because a secret may begin in one and end in another.
    """

    provider: Provider
    redact: Redact

    @property
    def endpoint(self) -> Endpoint:
        """Where the model is."""
        return self.provider.endpoint

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON."""
        return self.provider.encode(messages)

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body."""
        return self.provider.body(history, new, suffix)

    async def complete(self, body: bytes, on_delta: Callable[[Delta], None]) -> Completion:
        """Send a request and return the redacted answer (see `Provider.complete`)."""
        completion = await self.provider.complete(body, on_delta)
        return attrs.evolve(completion, message=redact_message(completion.message, self.redact))
