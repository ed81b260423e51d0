"""The cookie of a web session: its name, its attributes, and the requests that it may be used for.

Browsers send cookies to every port of a host, so the name contains the port. A page of another port
belongs to the same site for a browser: `SameSite` does not stop its requests, so those with a
cookie must come from our own page.
"""

from __future__ import annotations

import re

from starlette.types import Scope

from hermes.adapters.http.access.browsers import SAFE_METHODS
from hermes.adapters.http.credentials import SESSION_PREFIX
from hermes.adapters.http.errors import ApiError

_SECRET = re.compile(rf"{SESSION_PREFIX}[A-Za-z0-9_-]{{43}}")
_PORT = re.compile(rb":(\d{1,5})$")
TLS_PREFIX = "__Host-"
"""Browsers take a cookie with such a name over TLS only."""
_OURS = (b"same-origin", b"none")
CROSS_SITE = "The request did not come from the page of this server."


def session_secret(scope: Scope) -> str | None:
    """Return the secret in the cookie of a request; None without one, or if there are several.

    Raises `ApiError` if the request may have been sent by another page.
    """
    _, secrets = _sent(scope)
    if len(secrets) != 1:
        return None
    _require_own_page(scope)
    return secrets.pop()


def _sent(scope: Scope) -> tuple[str, set[str]]:
    """Return the name of the cookie that a request has, and what could be its secret."""
    plain, secure = _names(scope)
    found: dict[str, set[str]] = {plain: set(), secure: set()}
    for header in _values(scope, b"cookie"):
        for each in header.decode("latin-1").split(";"):
            name, _, value = each.strip().partition("=")
            if name in found and _SECRET.fullmatch(value):
                found[name].add(value)
    name = secure if found[secure] else plain  # no page of plain HTTP can set the first
    return name, found[name]


def _require_own_page(scope: Scope) -> None:
    """Raise `ApiError` unless the page of this server sent a request, or the user did by a link."""
    sites = _values(scope, b"sec-fetch-site")
    safe = scope["method"] in SAFE_METHODS
    # An `Origin` that is there is ours; see `Browsers`. Browsers send one with every change.
    proven = safe or b"origin" in dict(scope["headers"]) or sites == [b"same-origin"]
    if not proven or any(site not in _OURS for site in sites):
        raise ApiError(403, CROSS_SITE, code="cross_site")


def session_cookie(scope: Scope, secret: str, seconds: int) -> str:
    """Return the header that sets the cookie. Behind TLS, it is sent over TLS only."""
    plain, secure = _names(scope)
    tls = _is_tls(scope)
    return _cookie(secure if tls else plain, secret, seconds, tls=tls)


def expired_cookie(scope: Scope) -> str:
    """Return the header that removes the cookie of a request."""
    name, _ = _sent(scope)
    return _cookie(name, "", 0, tls=name.startswith(TLS_PREFIX))


def _is_tls(scope: Scope) -> bool:
    """Whether the page came over TLS, which a proxy ends. Browsers say so with every change."""
    return any(origin.startswith(b"https://") for origin in _values(scope, b"origin"))


def _cookie(name: str, value: str, seconds: int, *, tls: bool) -> str:
    end = "; Secure" if tls else ""
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{end}"


def _names(scope: Scope) -> tuple[str, str]:
    """Return the name of the cookie, and that of the one for TLS."""
    [host] = _values(scope, b"host") or [b""]
    port = _PORT.search(host)
    name = "hermes" if port is None else f"hermes-{port[1].decode()}"
    return name, TLS_PREFIX + name


def _values(scope: Scope, wanted: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == wanted]
