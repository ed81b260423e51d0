"""What a web page may send: the checks of Host, Origin and Sec-Fetch-Site, and CORS.

A page of another site can send requests to a server on loopback, and with a DNS name that changes
its address it can even read the answers. So `Host` must be a name of this server, and a page must
come from this server or from a configured origin. Headers of proxies, such as `Forwarded`, are
ignored: anybody can send them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from starlette.responses import Response
from starlette.types import Message, Scope, Send

from hermes.adapters.http.config import HttpConfig
from hermes.adapters.http.errors import ApiError

Header: TypeAlias = tuple[bytes, bytes]

LOOPBACK_NAMES = (b"127.0.0.1", b"localhost", b"[::1]")
WILDCARDS = ("", "0.0.0.0", "::")
MAX_DIGITS = 5
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PREFLIGHT_SECONDS = 600
BUFFERED = 16_384
"""Bytes that a socket takes without waiting for the client."""
STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
SECURITY_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
"""On every response, unless its endpoint sets them."""


class Browsers:
    """Checks requests before anything of them is considered."""

    def __init__(self, config: HttpConfig) -> None:
        own = [] if config.host in WILDCARDS else [_literal(config.host.lower())]
        self._names = frozenset((*LOOPBACK_NAMES, *own))
        self._port = config.port
        self._hosts = frozenset(name.lower().encode() for name in config.hosts)
        self._origins = frozenset(origin.encode() for origin in config.origins)

    def check(self, scope: Scope) -> bytes | None:
        """Raise `ApiError` for a request that a foreign page could have sent.

        Returns its origin if that may read the answer (CORS).
        """
        hosts, origins, sites = _values(scope, b"host", b"origin", b"sec-fetch-site")
        host = hosts[0].lower() if len(hosts) == 1 else b""
        if not scope["path"].startswith("/") or not self._is_our_name(host, scope):
            raise ApiError(
                421,
                "The Host header is not a name of this server; if it should be, add it to `hosts` "
                "in [http].",
                code="unknown_host",
            )
        foreign = self._foreign_origin(host, origins, scope)
        safe = scope["type"] == "http" and scope["method"] in SAFE_METHODS
        if foreign is None and not safe and any(s not in {b"same-origin", b"none"} for s in sites):
            raise ApiError(403, "A page of another site sent the request.", code="cross_site")
        return foreign

    def _is_our_name(self, host: bytes, scope: Scope) -> bool:
        name, colon, port = host.rpartition(b":")
        if not (colon and port.isdigit() and len(port) <= MAX_DIGITS):  # "[::1]" has no port
            name, port = host, b""
        if host in self._hosts or name in self._hosts:
            return True
        server = scope.get("server")
        own = self._port if server is None or server[1] is None else server[1]
        return name in self._names and int(port or _default_port(scope)) == own

    def _foreign_origin(self, host: bytes, origins: list[bytes], scope: Scope) -> bytes | None:
        """Return a configured origin; None without one, or if it is ours. Else refuse."""
        if not origins or origins in ([b"http://" + host], [b"https://" + host]):
            return None
        if len(origins) == 1 and origins[0] in self._origins and is_openai_path(scope):
            return origins[0]
        raise ApiError(403, "Pages of this origin may not send requests.", code="unknown_origin")


def _default_port(scope: Scope) -> int:
    return 443 if scope.get("scheme") in {"https", "wss"} else 80


def _literal(host: str) -> bytes:
    """Return an address as it is in a URL."""
    return f"[{host}]".encode() if ":" in host and not host.startswith("[") else host.encode()


def _values(scope: Scope, *names: bytes) -> list[list[bytes]]:
    found: dict[bytes, list[bytes]] = {name: [] for name in names}
    for name, value in scope["headers"]:
        if name in found:
            found[name].append(value)
    return list(found.values())


def is_openai_path(scope: Scope) -> bool:
    """Whether the path is below `/v1`, which web pages of configured origins may call."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")).startswith("/v1/")


def preflight(scope: Scope) -> Response | None:
    """Return the answer to a browser that asks whether a page may send a request, if this is one.

    The origin is a configured one. The token is in a header that only the page itself can set, so
    all headers may be sent.
    """
    method, headers = _values(
        scope, b"access-control-request-method", b"access-control-request-headers"
    )
    if scope["type"] != "http" or scope["method"] != "OPTIONS" or not method:
        return None
    allowed = {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": b", ".join(headers).decode("latin-1"),
        "access-control-max-age": str(PREFLIGHT_SECONDS),
    }
    return Response(None, 204, allowed)


def cors_headers(origin: bytes | None) -> tuple[Header, ...]:
    """Return the headers that let pages of an origin read an answer."""
    if origin is None:
        return ()
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"retry-after, x-request-id"),
        (b"vary", b"Origin"),
    )


class Outgoing:
    """The messages to the client: adds headers to its response."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers = SECURITY_HEADERS
        self.route: str = "other"
        """The path with names of parameters, once it is known."""
        self.started: bool = False
        """Whether the response has begun, so that another one cannot be sent."""
        self.status: int | str = "none"
        """The status of the response, once it has begun."""
        self.on_written: Callable[[], None] | None = None
        """Called when the response is written in full."""

    def add_headers(self, headers: Iterable[Header]) -> None:
        """Add headers to the response."""
        self._headers = (*self._headers, *headers)

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        if message["type"] in STARTS:
            self.status = message["status"]
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            given += [header for header in self._headers if header[0] not in names]
            message = {**message, "headers": given}
        self.started = True
        written = self.on_written if is_last(message) else None
        if written is None:
            await self._send(message)
            return
        if len(message.get("body", b"")) <= BUFFERED:  # it is written at once, and may be answered
            written()
        await self._send(message)
        written()


def is_last(message: Message) -> bool:
    """Whether a message is the end of a response."""
    return message["type"] == "http.response.body" and not message.get("more_body")
