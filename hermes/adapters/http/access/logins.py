"""Bearer tokens and session cookies of requests, and the limit on failed attempts.

A secret has 256 random bits: nobody guesses one. The limit keeps wrong ones from occupying the
store. A query parameter is never considered, and a cookie for `/api` only.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import trio
from starlette.types import Scope

from hermes.actors.admission.rate_limit import RateLimiter
from hermes.adapters.http.access.cookies import expired_cookie, session_secret
from hermes.adapters.http.credentials import Caller, digest_of
from hermes.adapters.http.errors import ApiError
from hermes.background import holding
from hermes.config import RateLimit
from hermes.messages import Token
from hermes.session_keys import API_PLATFORM, WEB_PLATFORM

FAILED = RateLimit(per_minute=10, burst=20)
"""Failed attempts of one address."""
REMEMBERED = 10_000
"""Addresses with attempts, and tokens that were valid."""
MAX_SECRET = 200
NOT_VALID = "The bearer token is not valid"
NETWORK_BITS = 64
"""An IPv6 client has a whole network of addresses."""
MAPPED = "::ffff:"

LIST_SECONDS = 1.0
"""How long the list of valid tokens is used."""

T = TypeVar("T")
Find: TypeAlias = Callable[[str], Awaitable[Token | None]]
Digests: TypeAlias = Callable[[], Awaitable[list[str]]]


class Logins:
    """Finds the caller of each request. Whether its token is valid is checked every time.

    An address with too many failed attempts is refused without a lookup, unless the secret is in a
    list of all valid ones that is read at most once a second: behind a proxy all clients have the
    same address, and one that guesses must not lock the others out.
    """

    def __init__(self, find: Find, digests: Digests, *, remembered: int = REMEMBERED) -> None:
        self._find = find
        self._digests = digests
        self._valid: frozenset[str] = frozenset()
        self._read_at = -math.inf
        self._reading = trio.Lock()
        self._remembered = remembered
        self._failed = RateLimiter(FAILED, limit=remembered)
        self._known: OrderedDict[str, Token] = OrderedDict()
        self.failures: int = 0
        """Failed attempts since the start."""

    def known(self, scope: Scope, *, cookies: bool = False) -> Caller | None:
        """Return the holder of a token that was valid before; whether it still is, is not checked.

        Only for requests that the store checks: nothing is done for one whose token is not valid.
        """
        platform, secret = _given(scope, cookies=cookies)
        token = None if secret is None else self._known.get(digest_of(secret))
        return None if token is None or token.platform != platform else Caller(token)

    async def caller(self, scope: Scope, *, cookies: bool = False) -> Caller:
        """Return the holder of the token, or with `cookies` the one who is signed in.

        Raises `ApiError` if there is none that is valid.
        """
        platform, secret = _given(scope, cookies=cookies)
        if secret is None:
            raise _refusal("The request has no bearer token")
        digest = digest_of(secret)
        known = digest in self._known
        bucket = self._failed.bucket(network_of(scope))
        counted = not known and self._failed.take(bucket)
        if not (known or counted or await self._is_listed(digest)):
            raise self._too_many()
        token = await self._find(digest)
        if token is None or token.platform != platform:
            self.failures += 1
            self._known.pop(digest, None)
            raise _session_ended(scope) if platform == WEB_PLATFORM else _refusal(NOT_VALID)
        bucket.left += counted
        if not known:
            self._remember(digest, token)
        return Caller(token)

    async def attempt(self, scope: Scope, find: Callable[[], Awaitable[T | None]]) -> T | None:
        """Return what is found for a secret in a body; finding nothing is a failed attempt.

        Raises `ApiError` if the address of the client has too many.
        """
        bucket = self._failed.bucket(network_of(scope))
        if not self._failed.take(bucket):
            raise self._too_many()
        found = await find()
        if found is None:
            self.failures += 1
        else:
            bucket.left += 1
        return found

    def _too_many(self) -> ApiError:
        self.failures += 1
        return ApiError(
            429,
            "There were too many attempts with tokens that are not valid.",
            code="too_many_failed_logins",
            headers={"Retry-After": str(round(60 / FAILED.per_minute))},
        )

    async def _is_listed(self, digest: str) -> bool:
        async with holding(self._reading):
            if trio.current_time() - self._read_at >= LIST_SECONDS:
                self._valid = frozenset(await self._digests())
                self._read_at = trio.current_time()
        return digest in self._valid

    def _remember(self, digest: str, token: Token) -> None:
        self._known[digest] = token
        if len(self._known) > self._remembered:
            self._known.popitem(last=False)


def _given(scope: Scope, *, cookies: bool) -> tuple[str, str | None]:
    """Return the platform and the secret of a request: of its token, or else of its cookie."""
    bearer = any(name == b"authorization" for name, _ in scope["headers"])
    if cookies and not bearer:
        return WEB_PLATFORM, session_secret(scope)
    return API_PLATFORM, _secret(scope)


def _secret(scope: Scope) -> str | None:
    """Return the secret in the header, if there is exactly one."""
    headers: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(headers) != 1:
        return None
    scheme, _, secret = headers[0].partition(b" ")
    secret = secret.strip()
    if scheme.lower() != b"bearer" or not 0 < len(secret) <= MAX_SECRET:
        return None
    return secret.decode("latin-1")


def _refusal(reason: str) -> ApiError:
    return ApiError(
        401,
        f"{reason}; `hermes tokens create` makes one.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _session_ended(scope: Scope) -> ApiError:
    return ApiError(
        401,
        "The session has ended; sign in again.",
        code="session_ended",
        headers={"Set-Cookie": expired_cookie(scope)},
    )


def network_of(scope: Scope) -> str:
    """Return the address of the client; of IPv6 addresses the network only."""
    client = scope.get("client")
    address: str = "" if client is None else client[0]
    if ":" not in address or address.startswith(MAPPED):
        return address
    try:
        whole = int(ipaddress.IPv6Address(address.partition("%")[0]))
    except ValueError:
        return address
    return f"{whole >> NETWORK_BITS:x}"
