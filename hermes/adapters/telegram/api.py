"""HTTP client of the Bot API: calls a method, returns its result or raises a specific error.

The token is part of every request path. It is inserted as raw bytes when the request is sent, so
URLs, log lines and errors of the HTTP client never contain it. Our own errors are raised outside of
the `except` block, so they have no context that could contain it either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import quote

import httpx2
import msgspec
import trio

from hermes.adapters.telegram.bot_api_types import MALFORMED, Int
from hermes.errors import HermesError, OutcomeUnknown, RetryAfter
from hermes.redaction import Secret

BASE = "https://api.telegram.org"
CONNECT_TIMEOUT = 10.0
CALL_TIMEOUT = 30.0
READ_TIMEOUT = 30.0
"""How long a download may pause, in seconds."""
SLOWEST_UPLOAD = 64 * 1024
"""The slowest upload that is waited for, in bytes per second."""
MAX_PATH = 300
_TOKEN = re.compile(r"([0-9]{1,20}):[\w-]{1,200}", re.ASCII)
_ELSEWHERE = re.compile(r"^/|\.\.|[\\\x00-\x1f\x7f]|:")
"""Matches a path that does not name a file below the folder of the bot."""
_MAX_REASON = 300
_NOT_SENT = (
    httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol,
    httpx2.ProxyError,
)  # fmt: skip
FAILED = (httpx2.TransportError, httpx2.DecodingError, httpx2.InvalidURL, trio.TooSlowError)
GONE = (
    "chat not found", "thread not found", "topic_closed", "topic_deleted", "no rights to send",
    "not enough rights", "chat_write_forbidden",
)  # fmt: skip
"""Error descriptions, besides code 403, if nothing can be sent to a chat or topic."""
BAD_TOKEN = (
    "Telegram rejected the bot token ({}). It is wrong or was revoked: get a new one from "
    "@BotFather, configure it and restart."
)
NO_TOKEN = "No Telegram token is configured. Get one from @BotFather."
CONFLICT = (
    "Another program is receiving the messages of this Telegram bot. Stop it, or use a separate "
    "bot for each program."
)
WEBHOOK = (
    "This Telegram bot has a webhook, so its messages are sent there. Remove it with the Bot API "
    "method deleteWebhook, or use another bot."
)


class Unreachable(HermesError):
    """The request was certainly not received."""


class Revoked(HermesError):
    """The token is missing or invalid; no call works until there is another one."""


class Conflict(HermesError):
    """Another program or a webhook receives the updates of this bot."""


class Refused(HermesError):
    """Telegram refused a call. `migrate_to` is the new id of a group that has moved."""

    def __init__(self, method: str, code: int, why: str, migrate_to: int | None = None) -> None:
        super().__init__(f"Telegram refused {method} ({code}: {why})")
        self.code = code
        self.why: str = why.lower()
        self.migrate_to = migrate_to

    @property
    def is_gone(self) -> bool:
        """Whether nothing can be sent to the chat or topic."""
        return self.code == httpx2.codes.FORBIDDEN or any(text in self.why for text in GONE)


class Unreadable(OutcomeUnknown):
    """The response cannot be decoded, so the outcome of the call is unknown."""

    def __init__(self, text: str, body: bytes) -> None:
        super().__init__(text)
        self.body = body


class _Parameters(msgspec.Struct):
    retry_after: float | None = None
    migrate_to_chat_id: Int | None = None


class _Response(msgspec.Struct):
    ok: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")
    description: str = ""
    parameters: _Parameters | None = None


class UploadBody(Protocol):
    """The body of a request with a file."""

    content_type: str
    length: int
    """The number of bytes."""
    complete: bool
    """Whether all of them were read for the request."""

    def as_stream(self) -> httpx2.AsyncByteStream:
        """Return the bytes."""
        ...


_decode = msgspec.json.Decoder(_Response).decode
_encode = msgspec.json.Encoder().encode


class BotApi:
    """The HTTP client of one bot. Close it after use."""

    def __init__(self, token: Secret, base_url: str = BASE) -> None:
        self._token = token
        self._base = httpx2.URL(base_url)
        # Loading certificates is slow; without TLS there is nothing to verify.
        self._client = httpx2.AsyncClient(verify=self._base.scheme == "https")

    @property
    def bot_id(self) -> str:
        """The id of the bot, which is the first part of the token; "" if the token is invalid."""
        found = _TOKEN.fullmatch(self._token.reveal() or "")
        return "" if found is None else found[1]

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def call(
        self, method: str, params: Mapping[str, object], *, wait: float = 0.0
    ) -> msgspec.Raw:
        """Call a method and return its result.

        `wait` is how long the server may delay its response on purpose (long polling), in seconds.
        Raises `Refused`, `RetryAfter`, `Revoked` and `Conflict` as Telegram answers, `Unreachable`
        if the request was not sent, and `OutcomeUnknown` if there is no readable response.
        """
        content = _encode({k: v for k, v in params.items() if v is not None})
        headers = {"content-type": "application/json", "content-length": str(len(content))}
        return await self._post(method, httpx2.ByteStream(content), headers, CALL_TIMEOUT + wait)

    async def upload(self, method: str, body: UploadBody) -> msgspec.Raw:
        """Call a method with a file and return its result. Raises what `call` raises.

        It raises `Unreachable` if the connection failed before all of the body was sent.
        """
        headers = {"content-type": body.content_type, "content-length": str(body.length)}
        timeout = CALL_TIMEOUT + body.length / SLOWEST_UPLOAD
        try:
            return await self._post(method, body.as_stream(), headers, timeout)
        except OutcomeUnknown as error:
            if body.complete:
                raise
            failure = Unreachable(f"the file was not sent completely: {error}")
        raise failure

    async def open_file(self, file_path: str, start: int = 0) -> httpx2.Response:
        """Request a file from a byte on, and return the response, whose body is not read yet.

        `file_path` is that of `getFile`. The response may be of any kind, and must be closed.
        Raises `Refused` if the path leads elsewhere, `Unreachable` and `OutcomeUnknown`.
        """
        if not 0 < len(file_path) <= MAX_PATH or _ELSEWHERE.search(file_path):
            raise Refused("getFile", httpx2.codes.BAD_REQUEST, "the path of the file is not valid")
        headers = {"accept-encoding": "identity"}
        if start:
            headers["range"] = f"bytes={start}-"
        target = self._target(b"/file", quote(file_path).encode("ascii"))
        request = self._request("GET", "/file", target, headers, READ_TIMEOUT)
        try:
            with trio.fail_after(CALL_TIMEOUT):
                return await self._client.send(request, stream=True, follow_redirects=False)
        except FAILED as error:
            failure = self.failure(error)
        raise failure

    def _target(self, prefix: bytes, path: bytes) -> bytes:
        """Return the path of a request, with the token."""
        token = self._token.reveal()
        if not self.bot_id:
            raise Revoked(BAD_TOKEN.format("it has the wrong format") if token else NO_TOKEN)
        base = self._base.raw_path.rstrip(b"/")
        return b"%s%s/bot%s/%s" % (base, prefix, (token or "").encode("ascii"), path)

    def _request(
        self, verb: str, path: str, target: bytes, headers: Mapping[str, str], timeout: float
    ) -> httpx2.Request:
        return self._client.build_request(
            verb,
            self._base.copy_with(path=path),
            headers=headers,
            timeout=httpx2.Timeout(timeout, connect=CONNECT_TIMEOUT, write=CALL_TIMEOUT),
            extensions={"target": target},
        )

    async def _post(
        self,
        method: str,
        content: httpx2.AsyncByteStream,
        headers: Mapping[str, str],
        timeout: float,  # noqa: ASYNC109 - it is also that of the HTTP client
    ) -> msgspec.Raw:
        target = self._target(b"", method.encode("ascii"))
        request = self._request("POST", f"/{method}", target, headers, timeout)
        request.stream = content
        try:
            with trio.fail_after(timeout):
                response = await self._client.send(request)
        except FAILED as error:
            failure = self.failure(error)
        else:
            return self._result(method, response)
        raise failure

    def failure(self, error: Exception) -> HermesError:
        """Return what a `FAILED` request or response means, without the token."""
        late = isinstance(error, httpx2.TimeoutException | trio.TooSlowError)
        reason = str(error) or ("there was no answer in time" if late else "it was closed")
        why = self._token.redact(reason)[:_MAX_REASON]
        if isinstance(error, _NOT_SENT):
            return Unreachable(f"Telegram cannot be reached: {why}")
        return OutcomeUnknown(f"the connection to Telegram failed before the response: {why}")

    def _result(self, method: str, http_response: httpx2.Response) -> msgspec.Raw:
        status = http_response.status_code
        try:
            response: _Response | None = _decode(http_response.content)
        except MALFORMED:
            response = None
        if response is None and status < httpx2.codes.BAD_REQUEST:
            text = f"the response of Telegram to {method} cannot be decoded"
            raise Unreadable(text, http_response.content)
        if response is not None and response.ok:
            return response.result
        raise self._refusal(method, status, response or _Response())

    def _refusal(self, method: str, status: int, response: _Response) -> HermesError:
        why = self._token.redact(response.description)[:_MAX_REASON] or "no reason given"
        parameters = response.parameters or _Parameters()
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            seconds = max(0.0, parameters.retry_after or 1.0)
            return RetryAfter(f"Telegram asks to wait {seconds:g} s", seconds)
        if status in {httpx2.codes.UNAUTHORIZED, httpx2.codes.NOT_FOUND}:
            return Revoked(BAD_TOKEN.format(why))
        if status == httpx2.codes.CONFLICT:
            return Conflict(WEBHOOK if "webhook" in why.lower() else CONFLICT)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return OutcomeUnknown(f"Telegram has an internal error ({status}: {why})")
        return Refused(method, status, why, parameters.migrate_to_chat_id)
