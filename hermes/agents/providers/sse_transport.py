"""One streamed request over HTTP: events in, and a named error for whatever goes wrong."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Callable, Mapping

import attrs
import httpx2
import msgspec
import trio

from hermes.agents.providers.base import (
    Endpoint,
    NotAllowed,
    OutOfQuota,
    ProviderError,
    RequestRefused,
    Unavailable,
)
from hermes.errors import ContextOverflow, HermesError
from hermes.transcript.overflow import LONG_HISTORY, is_overflow

MAX_EVENT = 16 * 2**20
MAX_ERROR = 4000
_SHOWN = 300
_QUOTA = ("billing", "credit", "payment", "quota")
# Who asks for fewer requests may speak of money too, and still takes them in a while.
_RATE = ("rate limit", "rate_limit", "per min", "per sec", "try again in", "retry in")
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON raises where it is none: broken off, not text, or nested without end."""
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


async def post(
    client: httpx2.AsyncClient,
    endpoint: Endpoint,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    hear: Callable[[bytes], None],
) -> None:
    """Send a request, and hand on the data of each event that answers it."""
    url = endpoint.base_url.rstrip("/") + path
    # A connection is waited for while others use them all: that is no fault of the provider.
    timeout = httpx2.Timeout(
        endpoint.silence_seconds, connect=endpoint.connect_seconds, pool=endpoint.call_seconds
    )
    every = {"content-type": "application/json", "accept-encoding": "identity", **headers}
    every.update(endpoint.headers)
    _check(endpoint, every)
    try:
        with trio.fail_after(endpoint.call_seconds):
            async with client.stream(
                "POST", url, content=body, headers=every, timeout=timeout
            ) as response:
                if not response.is_success:
                    text = (await _beginning(response, MAX_ERROR)).decode(errors="replace")
                    raise error_of(endpoint, response.status_code, text, response.headers)
                if _is_whole(response):
                    hear(await _beginning(response, MAX_EVENT))
                else:
                    await _hear_events(response, hear)
    except trio.TooSlowError:
        raise Unavailable(
            f"{endpoint.name} did not finish within {endpoint.call_seconds:g} seconds"
        ) from None
    except httpx2.TimeoutException:
        raise Unavailable(f"{endpoint.name} does not answer") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        why = endpoint.redact(str(error))
        raise RequestRefused(f"the address of {endpoint.name} cannot be used: {why}") from None
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        why = endpoint.redact(str(error)) or type(error).__name__
        raise Unavailable(f"the connection to {endpoint.name} failed: {why}") from None


def _check(endpoint: Endpoint, headers: Mapping[str, str]) -> None:
    """Refuse what HTTP cannot carry ourselves: an error of the client's would show the value."""
    for value in headers.values():
        if not (value.isascii() and value.isprintable()):
            raise NotAllowed(
                f"the key or a header of {endpoint.name} has a character in it that cannot be "
                "sent, such as a line end; check them"
            )


def _is_whole(response: httpx2.Response) -> bool:
    """Whether an endpoint that cannot stream has answered with all at once."""
    kind: str = response.headers.get("content-type", "")
    return kind.split(";", maxsplit=1)[0].strip().lower() == "application/json"


async def _beginning(response: httpx2.Response, most: int) -> bytes:
    """The body up to this length: more of an error helps nobody, and some bodies never end."""
    read = bytearray()

    def take(piece: bytes) -> bool:
        read.extend(piece)
        return len(read) < most

    await _read(response, take)
    return bytes(read[:most])


async def _hear_events(response: httpx2.Response, hear: Callable[[bytes], None]) -> None:
    """The data of server-sent events, whatever pieces they come in."""
    events = _Events(hear)
    await _read(response, events.take)
    # The last event may end with the answer, without a line of its own for it.
    events.take(b"\n\n")
    if events.failure is not None:
        raise events.failure


async def _read(response: httpx2.Response, take: Callable[[bytes], bool]) -> None:
    """Hand on what comes, until there is no more of it or `take` has enough."""
    enough = False
    with trio.CancelScope() as scope:
        async for piece in response.aiter_bytes():
            if not enough and not take(piece):
                enough = True
                # Not by leaving the loop: the client's generators would be left half done, which
                # Trio minds. Cancelled, they end by themselves.
                scope.cancel()


@attrs.define
class _Events:
    """Puts events together from pieces, until one of them raises."""

    hear: Callable[[bytes], None]
    failure: HermesError | None = None
    rest: bytes = b""
    data: list[bytes] = attrs.Factory(list)
    size: int = 0

    def take(self, piece: bytes) -> bool:
        """The next piece; False where there is no use in more."""
        if self.failure is None:
            try:
                self._take(piece)
            except HermesError as error:
                self.failure = error
        return self.failure is None

    def _take(self, piece: bytes) -> None:
        *lines, self.rest = (self.rest + piece).split(b"\n")
        for line in lines:
            self._line(line.rstrip(b"\r"))
        if len(self.rest) + self.size > MAX_EVENT:
            raise Unavailable("the provider sends an event without end")

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self.data.append(line[5:].lstrip())
            self.size += len(line)
        elif not line and self.data:
            whole, self.data, self.size = b"\n".join(self.data), [], 0
            self.hear(whole)


def error_of(
    endpoint: Endpoint, status: int, text: str, headers: Mapping[str, str]
) -> ProviderError | ContextOverflow:
    """What an answer that is none means, in one sentence without secrets."""
    # Hidden before it is cut: half a key is too much.
    reason = endpoint.redact(_message(text))[:_SHOWN]
    said = reason or "no reason given"
    name = endpoint.name
    if _is_about_money(status, said.lower()):
        return OutOfQuota(f"the account at {name} has no quota left ({said}); top it up")
    if status in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
        return NotAllowed(f"{name} does not accept the key ({said}); check it")
    if is_overflow(f"HTTP {status}: {said}", 0):
        return ContextOverflow(f"{name}: {said}")
    if status in _BUSY or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        what = "is busy" if status == httpx2.codes.TOO_MANY_REQUESTS else "has a problem"
        return Unavailable(f"{name} {what} ({status}: {said})", retry_after(headers))
    if status == httpx2.codes.NOT_FOUND:
        return RequestRefused(
            f"{name} has no model {endpoint.model!r} at this address ({said}); check both"
        )
    bare = is_overflow(f"HTTP {status}: {reason}", LONG_HISTORY + 1)
    return RequestRefused(f"{name} refused the request ({status}: {said})", bare=bare)


def _is_about_money(status: int, said: str) -> bool:
    """Whether the account is empty, which some say with the status of another problem."""
    if status == httpx2.codes.BAD_REQUEST:
        return "credit balance" in said
    if status in {httpx2.codes.FORBIDDEN, httpx2.codes.TOO_MANY_REQUESTS}:
        if "insufficient_quota" in said:
            return True
        return any(word in said for word in _QUOTA) and not any(word in said for word in _RATE)
    return status == httpx2.codes.PAYMENT_REQUIRED


def _message(text: str) -> str:
    """The sentence inside of an error's JSON; all of it where there is none."""
    try:
        found: object = msgspec.json.decode(text)
    except MALFORMED:
        return " ".join(text.split())
    for name in ("error", "message"):
        while isinstance(found, dict) and name in found:
            code = found.get("code")
            found = found[name]
            if isinstance(code, str) and isinstance(found, str):
                found = f"{found} ({code})"
    if isinstance(found, dict):
        found = found.get("detail") or text
    return " ".join(str(found).split())


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How long to wait, in seconds, where the provider says so: a number, a date, milliseconds."""
    if (milliseconds := headers.get("retry-after-ms")) is not None:
        return _number(milliseconds, 1000.0)
    said = headers.get("retry-after")
    if said is None:
        return None
    seconds = _number(said, 1.0)
    if seconds is not None:
        return seconds
    try:
        at = email.utils.parsedate_to_datetime(said).timestamp()
    except (TypeError, ValueError):
        return None
    return max(0.0, at - time.time())


def _number(text: str, unit: float) -> float | None:
    try:
        seconds = float(text) / unit
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
