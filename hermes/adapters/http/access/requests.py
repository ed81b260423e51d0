"""The open requests of each token: limited in number and rate, and ended with their token."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import attrs
import trio
from starlette.types import Scope

from hermes.actors.admin import ApiRecords
from hermes.actors.admission.rate_limit import RateLimiter
from hermes.adapters.http.config import HttpConfig
from hermes.adapters.http.errors import ApiError
from hermes.background import cancel, set_event
from hermes.user_code import contained

REPLACEABLE = "hermes.replaceable"
"""The key in the scope of our own server, which may close a connection for a new one."""
CHECK_SECONDS = 1.0
"""Seconds between two looks at the tokens of open requests: another process can revoke them."""


def set_replaceable(scope: Scope, value: bool) -> None:
    """Say whether the server may close the connection of a request for a new one.

    It may do so until the caller is known. Otherwise anybody could occupy all connections.
    """
    server = scope.get(REPLACEABLE)
    if server is not None:
        server(value)


@attrs.define(eq=False)
class OpenRequest:
    """A request that is being answered."""

    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    """Cancelled if its token is revoked."""
    content: tuple[str, str] | None = None
    """Its path and the hash of its body, if a retry may attach to it."""
    beside: Collection[OpenRequest] = ()
    """The open requests of its token, of which it is one."""
    ending_since: float | None = None
    """When the last part of its answer began to be written; None before, and after that."""
    answered: bool = False
    """Whether its answer was written. Then it no longer counts; its end may not be recorded yet."""

    def equals(self) -> list[OpenRequest]:
        """Return the other open requests with the same content."""
        if self.content is None or len(self.beside) == 1:
            return []
        return [each for each in self.beside if each.content == self.content and each is not self]

    def note_answered(self) -> None:
        """Note that its answer was written."""
        self.answered = True


class OpenRequests:
    """The requests that are being answered, by token."""

    def __init__(self, config: HttpConfig, records: ApiRecords) -> None:
        self._limit = config.max_streams
        self._records = records
        self._rates = RateLimiter(config.rates)
        self._wait = str(max(1, round(60 / config.rates.per_minute)))
        self._open: dict[str, set[OpenRequest]] = {}
        self._opened = trio.Event()
        self.ended: trio.Event = trio.Event()
        """Set when the next request ends to which a retry could attach."""

    def count(self) -> int:
        """Return the number of open requests."""
        return sum(map(_unanswered, self._open.values()))

    def equals(self, token_id: str, content: tuple[str, str]) -> set[OpenRequest]:
        """Return the open requests of a token with this path and body."""
        return {each for each in self._open.get(token_id, ()) if each.content == content}

    def note_end(self) -> None:
        """Wake those that wait for the end of a request."""
        set_event(self.ended)
        self.ended = trio.Event()

    @contextmanager
    def opened(self, token_id: str) -> Iterator[OpenRequest]:
        """Count a request during the block, which is cancelled if its token is revoked.

        Raises `ApiError` if the token has too many requests.
        """
        if not self._rates.take(self._rates.bucket(token_id)):
            raise self._refusal("The token has sent too many requests", "rate_limit_exceeded")
        requests = self._open.setdefault(token_id, set())
        if len(requests) >= self._limit and _unanswered(requests) >= self._limit:
            text = f"The token has {self._limit} requests at the same time"
            raise self._refusal(text, "too_many_streams")
        set_event(self._opened)
        request = OpenRequest(beside=requests)
        with request.scope:
            requests.add(request)
            try:
                yield request
            finally:
                requests.discard(request)
                if not requests:
                    del self._open[token_id]
                if request.content is not None:
                    self.note_end()

    def _refusal(self, text: str, code: str) -> ApiError:
        return ApiError(429, f"{text}.", code=code, headers={"Retry-After": self._wait})

    async def watch(self) -> None:
        """Cancel the requests of tokens that are revoked or expire, until cancelled."""
        seen = 0
        while True:
            if not self._open:
                self._opened = trio.Event()
                await self._opened.wait()
            with trio.move_on_after(CHECK_SECONDS):
                seen = await self._records.wait_revoked(seen)
            if not self._open:
                continue
            with contained():  # the store may be busy; the next look counts
                self._cancel_except(await self._records.valid_tokens())

    def _cancel_except(self, valid: list[str]) -> None:
        for token_id in self._open.keys() - set(valid):
            for request in self._open[token_id]:
                cancel(request.scope)


def _unanswered(requests: Iterable[OpenRequest]) -> int:
    return sum(not request.answered for request in requests)
