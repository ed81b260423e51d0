"""What is recorded of the calls of a turn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

import attrs
import msgspec
import trio
from msgspec.structs import replace

from hermes.agents.providers.base import Endpoint, FileBody, Provider
from hermes.agents.providers.formats import RequestTexts
from hermes.errors import TurnClosed
from hermes.messages import CallReport, Message, Usage
from hermes.protocols import RecordsCalls, Turn
from hermes.redaction import redact_all

INTERRUPTED = "interrupted"
_encode = msgspec.json.Encoder().encode


class InjectedMessage(msgspec.Struct, frozen=True):
    """A message that follows the conversation in a request, and is not stored."""

    role: str
    content: str | None


@runtime_checkable
class RecordableProvider(Provider, Protocol):
    """A provider whose requests can be rebuilt."""

    @property
    def texts(self) -> RequestTexts:
        """What its requests have besides messages, without secrets."""
        ...

    @property
    def redact(self) -> Callable[[str], str]:
        """Removes the credentials of the endpoint, and other secrets."""
        ...


@attrs.define
class RunningCall:
    """A call that is being made."""

    usage: Usage | None = None
    first: float | None = None

    def begins(self) -> None:
        """Note that the answer begins."""
        self.first = trio.current_time()


@attrs.define
class CallRecorder:
    """Reports the calls of a turn to the turn, if it records them."""

    turn: Turn
    injected: Sequence[Message] = ()
    """The messages after those of the turn."""
    rows: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: len(self.turn.input), takes_self=True)
    )
    """How many messages of the turn the next request has."""

    @contextmanager
    def call(self, provider: Provider, body: bytes | FileBody) -> Iterator[RunningCall]:
        """Record the call that is made in the block."""
        call, started, error = RunningCall(), trio.current_time(), None
        try:
            yield call
        except trio.Cancelled:
            error = INTERRUPTED
            raise
        except BaseException as problem:
            error = type(problem).__name__
            raise
        finally:
            if isinstance(self.turn, RecordsCalls) and self.turn.records_calls:
                self._record(self.turn, provider, body, call, started, error)

    def _record(
        self,
        turn: RecordsCalls,
        provider: Provider,
        body: bytes | FileBody,
        call: RunningCall,
        started: float,
        error: str | None,
    ) -> None:
        if not isinstance(provider, RecordableProvider):
            return
        texts = provider.texts
        injected = [InjectedMessage(each.role, each.content) for each in self.injected]
        kept = redact_all(injected, provider.redact)
        made = CallReport(
            settings=texts.settings,
            tools=texts.tools,
            system=texts.system,
            injected=_encode(kept).decode() if kept else None,
            rows=self.rows,
            digest=_digest(body),
            redacted=texts.redacted or kept != injected,
            hidden_files=_hidden(body) if isinstance(body, FileBody) else (),
            started=started,
            first=call.first,
            ended=trio.current_time(),
            usage=_short(call.usage, provider.endpoint),
            error=error,
        )
        with suppress(TurnClosed):
            turn.record(made)


def _digest(body: bytes | FileBody) -> str | None:
    """Return the SHA-256 of a body; None if its files were not sent to their end."""
    return body.digest.value if isinstance(body, FileBody) else hashlib.sha256(body).hexdigest()


def _hidden(body: FileBody) -> list[str]:
    """Return the files of a body that are replaced by notes."""
    return [each for each in sorted(body.hidden) if each.encode() in body.encoded]


def _short(usage: Usage | None, endpoint: Endpoint) -> Usage | None:
    """Return a usage without the names that the request has, too."""
    if usage is None:
        return None
    return replace(
        usage,
        model=None if usage.model == endpoint.model else usage.model,
        provider=None if usage.provider == endpoint.name else usage.provider,
    )
