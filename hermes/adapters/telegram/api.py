"""The Bot API over HTTP: a method in, its result out, and a named error for whatever goes wrong.

The token is part of every address. It is put in where the bytes are made, so that no URL, log line
or error of the HTTP client has ever seen it; and our errors are raised outside of its own, so that
nothing of them hangs behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import httpx2
import msgspec
import trio

from hermes.adapters.telegram.bot_api_types import MALFORMED, Int
from hermes.errors import HermesError, OutcomeUnknown, RetryAfter
from hermes.redaction.keys import Secret

BASE = "https://api.telegram.org"
CONNECT_SECONDS = 10.0
CALL_SECONDS = 30.0
_TOKEN = re.compile(r"([0-9]{1,20}):[\w-]{1,200}", re.ASCII)
_SHOWN = 300
_SURELY_NOT = (
    httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol,
    httpx2.ProxyError,
)  # fmt: skip
_FAILED = (httpx2.TransportError, httpx2.DecodingError, httpx2.InvalidURL, trio.TooSlowError)
BAD_TOKEN = (
    "Telegram does not accept the bot's token ({}): it is wrong or was revoked. Get a new one from "
    "@BotFather, set it, and start again."
)
NO_TOKEN = "there is no Telegram token; get one from @BotFather and set it"
POLLED = (
    "Another program receives this Telegram bot's messages, so this one does not: end the other "
    "one, or give each a bot of its own."
)
HOOKED = (
    "This Telegram bot has a webhook, so its messages go there and not here: remove it with the "
    "method deleteWebhook of the Bot API, or use another bot."
)


class Unreachable(HermesError):
    """The request surely never arrived."""


class Revoked(HermesError):
    """The token is not good, or not any more: nothing works until there is another."""


class Conflict(HermesError):
    """Somebody else receives this bot's updates."""


class Refused(HermesError):
    """Telegram does not do this; `migrate_to` is where a group has moved."""

    def __init__(self, method: str, code: int, why: str, migrate_to: int | None = None) -> None:
        super().__init__(f"Telegram refused {method} ({code}: {why})")
        self.code = code
        self.why = why.lower()
        self.migrate_to = migrate_to


class Unreadable(OutcomeUnknown):
    """An answer that cannot be read; what came of the call is unknown."""

    def __init__(self, text: str, body: bytes) -> None:
        super().__init__(text)
        self.body = body


class _Parameters(msgspec.Struct):
    retry_after: float | None = None
    migrate_to_chat_id: Int | None = None


class _Answer(msgspec.Struct):
    ok: bool = False
    result: msgspec.Raw = msgspec.Raw(b"null")
    description: str = ""
    parameters: _Parameters | None = None


_read = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class BotApi:
    """One bot. Close it when nobody calls any more."""

    def __init__(self, token: Secret, base_url: str = BASE) -> None:
        self._token = token
        self._base = httpx2.URL(base_url)
        # Certificates take a while to load; without TLS there is nothing to verify.
        self._client = httpx2.AsyncClient(verify=self._base.scheme == "https")

    @property
    def bot_id(self) -> str:
        """Who the bot is; the token begins with it. Empty where it is no token."""
        found = _TOKEN.fullmatch(self._token.reveal() or "")
        return "" if found is None else found[1]

    async def aclose(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def call(
        self, method: str, params: Mapping[str, object], *, wait: float = 0.0
    ) -> msgspec.Raw:
        """Call a method; `wait` is for how long the server may keep us waiting on purpose."""
        token = self._token.reveal()
        if not self.bot_id:
            raise Revoked(BAD_TOKEN.format("it is not a token") if token else NO_TOKEN)
        prefix = self._base.raw_path.rstrip(b"/")
        target = b"%s/bot%s/%s" % (prefix, (token or "").encode("ascii"), method.encode("ascii"))
        seconds = CALL_SECONDS + wait
        try:
            with trio.fail_after(seconds):
                answer = await self._client.post(
                    self._base.copy_with(path=f"/{method}"),
                    content=_encode({k: v for k, v in params.items() if v is not None}),
                    headers={"content-type": "application/json"},
                    timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS),
                    extensions={"target": target},
                )
        except _FAILED as error:
            failure = self._failed(error)
        else:
            return self._result(method, answer)
        raise failure

    def _failed(self, error: Exception) -> HermesError:
        why = self._token.redact(str(error))[:_SHOWN] or type(error).__name__
        if isinstance(error, _SURELY_NOT):
            return Unreachable(f"Telegram cannot be reached: {why}")
        return OutcomeUnknown(f"the connection to Telegram ended before its answer: {why}")

    def _result(self, method: str, answer: httpx2.Response) -> msgspec.Raw:
        status = answer.status_code
        try:
            said: _Answer | None = _read(answer.content)
        except MALFORMED:
            said = None
        if said is None and status < httpx2.codes.BAD_REQUEST:
            raise Unreadable(f"Telegram's answer to {method} cannot be read", answer.content)
        if said is not None and said.ok:
            return said.result
        raise self._refusal(method, status, said or _Answer())

    def _refusal(self, method: str, status: int, said: _Answer) -> HermesError:
        why = self._token.redact(said.description)[:_SHOWN] or "no reason given"
        parameters = said.parameters or _Parameters()
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            seconds = max(0.0, parameters.retry_after or 1.0)
            return RetryAfter(f"Telegram asks to wait {seconds:g} s", seconds)
        if status in {httpx2.codes.UNAUTHORIZED, httpx2.codes.NOT_FOUND}:
            return Revoked(BAD_TOKEN.format(why))
        if status == httpx2.codes.CONFLICT:
            return Conflict(HOOKED if "webhook" in why.lower() else POLLED)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
            return OutcomeUnknown(f"Telegram has a problem ({status}: {why})")
        return Refused(method, status, why, parameters.migrate_to_chat_id)
