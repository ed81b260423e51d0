"""One streaming HTTP request to a provider, with every failure mapped to a `ProviderError`."""

from __future__ import annotations

import email.utils
import math
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import NoReturn
from urllib.parse import urlsplit

import attrs
import httpx2
import msgspec
import trio

from hermes.agents.providers.base import (
    AuthenticationFailed,
    Endpoint,
    FileBody,
    OutOfQuota,
    ProviderError,
    RequestRejected,
    Unavailable,
)
from hermes.agents.providers.file_body import BodyStream, open_body
from hermes.agents.providers.stream_events import JSON_ERRORS
from hermes.background import cancel
from hermes.errors import ContextOverflow, HermesError
from hermes.sanitize import one_line
from hermes.transcript.overflow import LONG_HISTORY, is_overflow

MAX_EVENT = 16 * 2**20
MAX_READ = 2**13
"""How many bytes of a body are read before other tasks may run."""
MAX_ERROR_BODY = 4000
MAX_REASON = 300
_QUOTA_WORDS = ("billing", "credit", "payment", "quota")
# A rate limit message may also mention billing, but the same request succeeds later.
_RATE_LIMIT_WORDS = ("rate limit", "rate_limit", "per min", "per sec", "try again in", "retry in")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WITHOUT_TEXT = (b"", b"id", b"retry")
"""Names of fields that contain nothing of an answer. A comment has an empty name."""
_NUMBER = re.compile(r"\[Errno -?\d+\] ")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{100,}={0,2}")
"""The content of an attachment, which some servers repeat in their errors."""
_TEMPORARY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


async def post(
    client: httpx2.AsyncClient,
    endpoint: Endpoint,
    path: str,
    body: bytes | FileBody | BodyStream,
    headers: Mapping[str, str],
    on_event: Callable[[bytes], None],
) -> None:
    """POST a request and call `on_event` with the data of each server-sent event of the answer.

    Raises `ProviderError` or `ContextOverflow`; messages contain no secrets.
    """
    url = endpoint.base_url.rstrip("/") + path
    # Waiting for a free connection of the pool is not a failure of the provider.
    timeout = httpx2.Timeout(
        endpoint.read_timeout, connect=endpoint.connect_timeout, pool=endpoint.call_timeout
    )
    all_headers = {"content-type": "application/json", "accept-encoding": "identity", **headers}
    all_headers.update(endpoint.headers)
    _check_headers(endpoint, all_headers)
    try:
        with trio.fail_after(endpoint.call_timeout):
            content = await open_body(body) if isinstance(body, FileBody) else body
            if not isinstance(content, bytes):
                all_headers["content-length"] = str(content.size)
            async with client.stream(
                "POST", url, content=content, headers=all_headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    text = (await _read_start(response, MAX_ERROR_BODY)).decode(errors="replace")
                    raise response_error(endpoint, response.status_code, text, response.headers)
                if _is_json(response):  # the endpoint does not stream
                    on_event(await _read_start(response, MAX_EVENT))
                else:
                    await _read_events(response, _EventParser(endpoint, on_event))
    except trio.TooSlowError:
        raise Unavailable(
            f"{endpoint.title} did not finish within {endpoint.call_timeout:g} seconds"
        ) from None
    except httpx2.TimeoutException:
        raise Unavailable(f"{endpoint.title} did not respond in time") from None
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        why = endpoint.redact(str(error))
        raise RequestRejected(f"the URL of {endpoint.title} is invalid: {why}") from None
    except (httpx2.TransportError, httpx2.DecodingError) as error:
        why = endpoint.redact(_reason(error, url))
        raise Unavailable(f"the connection to {endpoint.title} failed: {why}") from None


def _reason(error: Exception, url: str) -> str:
    """Return why a request failed, without numbers of the operating system."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        return f"the host {urlsplit(url).hostname} was not found; check the URL and the network"
    return _NUMBER.sub("", str(error)) or type(error).__name__


def _check_headers(endpoint: Endpoint, headers: Mapping[str, str]) -> None:
    """Reject invalid header values here: the exception of the HTTP client would quote them."""
    for value in headers.values():
        if not (value.isascii() and value.isprintable()):
            raise AuthenticationFailed(
                f"the API key or a header of {endpoint.title} contains a character that HTTP "
                "cannot send, such as a line break"
            )


def _is_json(response: httpx2.Response) -> bool:
    content_type: str = response.headers.get("content-type", "")
    return content_type.split(";", maxsplit=1)[0].strip().lower() == "application/json"


async def _read_start(response: httpx2.Response, limit: int) -> bytes:
    """Return at most the first `limit` bytes of the body; a body may be endless."""
    read = bytearray()

    def feed(chunk: bytes) -> bool:
        read.extend(chunk)
        return len(read) < limit

    await _read(response, feed)
    return bytes(read[:limit])


async def _read_events(response: httpx2.Response, parser: _EventParser) -> None:
    await _read(response, parser.feed)
    # Some servers do not send the blank line after the last event.
    parser.feed(b"\n\n")
    if parser.error is not None:
        raise parser.error


async def _read(response: httpx2.Response, feed: Callable[[bytes], bool]) -> None:
    """Pass chunks of the body to `feed` until the body ends or `feed` returns False.

    A long chunk may contain many events, so it is passed on in parts with a checkpoint after each.
    """
    enough = False
    with trio.CancelScope() as scope:
        async for chunk in response.aiter_bytes():
            for start in range(0, len(chunk), MAX_READ):
                if not enough and not feed(chunk[start : start + MAX_READ]):
                    enough = True
                    # Leaving the loop would abandon the client's async generators half way, about
                    # which Trio warns. Cancelled, they finish.
                    cancel(scope)
                if len(chunk) > MAX_READ:  # a cancellation here would abandon the generators too
                    await trio.lowlevel.cancel_shielded_checkpoint()


@attrs.define
class _EventParser:
    """Parses server-sent events out of chunks of bytes.

    No line is dropped silently. One that is no field of an event is passed to `on_event`, which
    counts it as lost if it cannot be decoded. An event that is named `error` raises an error.

    It is three times faster than `httpx2.AsyncClient.sse` (3.6 instead of 11.0 µs for each chunk of
    a streamed answer; the `agents` benchmark measures both).
    """

    endpoint: Endpoint
    on_event: Callable[[bytes], None]
    error: HermesError | None = None
    """What `on_event` raised; nothing is parsed after it."""
    _rest: bytearray = attrs.Factory(bytearray)
    """The beginning of a line that has not ended yet."""
    _after_return: bool = False
    """Whether the last chunk ended with a carriage return; a line feed may follow."""
    _data: list[bytearray] = attrs.Factory(list)
    _size: int = 0
    _is_error: bool = False
    """Whether the name of the current event is `error`."""

    def feed(self, chunk: bytes) -> bool:
        """Parse a chunk. Returns False after an error."""
        if self.error is None:
            try:
                self._parse(chunk)
            except HermesError as error:
                self.error = error
        return self.error is None

    def _parse(self, chunk: bytes) -> None:
        if self._after_return or b"\r" in chunk:
            chunk = self._with_line_feeds(chunk)
        self._rest += chunk
        if b"\n" in chunk:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                self._parse_line(line)
        if len(self._rest) + self._size > MAX_EVENT:
            raise Unavailable("the provider sent an event that is too large")

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """Return a chunk with line feeds alone; a carriage return ends a line too."""
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _parse_line(self, line: bytearray) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].lstrip())
            self._size += len(line)
        elif line:
            self._parse_other(line)
        elif self._is_error:
            self._fail()
        elif self._data:
            self.on_event(self._take_data())

    def _parse_other(self, line: bytearray) -> None:
        """Parse a line that does not begin with `data:`."""
        if line.startswith(_BYTE_ORDER_MARK):
            self._parse_line(line.removeprefix(_BYTE_ORDER_MARK))
            return
        name, _, value = line.partition(b":")
        if name == b"event":
            self._is_error = value.strip() == b"error"
        elif line != b"data" and name not in _WITHOUT_TEXT:
            self.on_event(bytes(line))

    def _take_data(self) -> bytes:
        """Return the data of the current event. The next line begins another one."""
        data, self._data, self._size = b"\n".join(self._data), [], 0
        return data

    def _fail(self) -> NoReturn:
        """Raise the error that the current event reports."""
        data = self._take_data()
        self.on_event(data)  # raises a more specific one, if it knows how to read it
        status = httpx2.codes.INTERNAL_SERVER_ERROR
        raise response_error(self.endpoint, status, data.decode(errors="replace"), {})


def response_error(
    endpoint: Endpoint, status: int, text: str, headers: Mapping[str, str]
) -> ProviderError | ContextOverflow:
    """Return the exception for an error response, with a message of one sentence."""
    # Redact first: a key that is cut, or whose line breaks are spaces, would not be recognised.
    given = one_line(_BASE64.sub("…", endpoint.redact(_error_message(text))))[:MAX_REASON]
    reason = given or "no reason given"
    name = endpoint.title
    if _is_quota_error(status, reason.lower()):
        return OutOfQuota(f"the account at {name} has no quota left ({reason}); add credit")
    if status in {httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN}:
        return AuthenticationFailed(f"{name} rejected the API key ({reason}); check the key")
    if is_overflow(f"HTTP {status}: {reason}", 0):
        return ContextOverflow(f"{name}: {reason}")
    if status in _TEMPORARY or status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        limited = status == httpx2.codes.TOO_MANY_REQUESTS
        text = f"{name} {'is busy' if limited else 'is unavailable'} ({status}: {reason})"
        return Unavailable(text, retry_after(headers), rate_limited=limited)
    if status == httpx2.codes.NOT_FOUND:
        return RequestRejected(
            f"{name} has no model {endpoint.model!r} at this URL ({reason}); "
            "check the model name and the URL"
        )
    unexplained = is_overflow(f"HTTP {status}: {given}", LONG_HISTORY + 1)
    return RequestRejected(
        f"{name} rejected the request ({status}: {reason})", unexplained=unexplained
    )


def _is_quota_error(status: int, reason: str) -> bool:
    """Whether the account has run out of credit; providers use various statuses for that."""
    if status == httpx2.codes.BAD_REQUEST:
        return "credit balance" in reason
    if status in {httpx2.codes.FORBIDDEN, httpx2.codes.TOO_MANY_REQUESTS}:
        if "insufficient_quota" in reason:
            return True
        return any(word in reason for word in _QUOTA_WORDS) and not any(
            word in reason for word in _RATE_LIMIT_WORDS
        )
    return status == httpx2.codes.PAYMENT_REQUIRED


def _error_message(text: str) -> str:
    """Return the message inside an error body; all of the body if it is not JSON."""
    try:
        found: object = msgspec.json.decode(text)
    except JSON_ERRORS:
        return text
    for name in ("error", "message"):
        while isinstance(found, dict) and name in found:
            code = found.get("code")
            found = found[name]
            if isinstance(code, str) and isinstance(found, str):
                found = f"{found.rstrip('.')}, code {code}"
    if isinstance(found, dict):
        found = found.get("detail") or text
    return str(found)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds that a provider asks for, or None.

    Reads `retry-after-ms`, and `retry-after` with a number of seconds or a date.
    """
    if (milliseconds := headers.get("retry-after-ms")) is not None:
        return _seconds(milliseconds, 1000.0)
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _seconds(value, 1.0)
    if seconds is not None:
        return seconds
    try:
        at = email.utils.parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError):
        return None
    return max(0.0, at - time.time())


def _seconds(text: str, units_per_second: float) -> float | None:
    try:
        seconds = float(text) / units_per_second
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
