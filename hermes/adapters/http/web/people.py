"""Who is at the page: the secrets of visitors, their rate limits, and the names of browsers."""

from __future__ import annotations

import hashlib
import time

import attrs

from hermes.actors.admission.rate_limit import RateLimiter
from hermes.adapters.http.credentials import Caller, new_id
from hermes.config import RateLimit
from hermes.messages import Person, Role, Token

SESSION_SECONDS = 30 * 86_400
"""How long a session lasts."""
LINK_PREFIX, REQUEST_PREFIX = "hml_", "hmr_"
OPERATOR = Person(namespace="operator", name="Operator", role="operator")
"""Whoever can use the command `hermes` on the machine of the bot."""
ASKING = RateLimit(per_minute=2, burst=5)
"""Requests for access of one address. The store has a limit for all addresses together."""
CHECKING = RateLimit(per_minute=60, burst=20)
"""How often a visitor may ask whether it was let in."""
_USER_ID_DIGITS = 32
_BROWSERS = (
    ("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("FxiOS", "Firefox"),
    ("Chrome/", "Chrome"), ("CriOS", "Chrome"), ("Safari/", "Safari"),
)  # fmt: skip
_SYSTEMS = (
    ("Windows", "Windows"), ("Android", "Android"), ("iPhone", "iOS"), ("iPad", "iPadOS"),
    ("Mac OS X", "macOS"), ("CrOS", "ChromeOS"), ("Linux", "Linux"),
)  # fmt: skip


@attrs.frozen
class Visitors:
    """The rate limits of people who are not signed in."""

    asking: RateLimiter = attrs.Factory(lambda: RateLimiter(ASKING))
    checking: RateLimiter = attrs.Factory(lambda: RateLimiter(CHECKING))


def user_id_of(request: str) -> str:
    """Return the id of the visitor who has the secret of a request for access."""
    return f"usr_{hashlib.sha256(request.encode()).hexdigest()[:_USER_ID_DIGITS]}"


def new_session(user_agent: str) -> Token:
    """Return a session that belongs to nobody yet."""
    return Token(
        id=new_id("web"), name="", namespace="", roles=(), created_at=0.0,
        expires_at=time.time() + SESSION_SECONDS, client=browser_of(user_agent),
    )  # fmt: skip


def person_of(caller: Caller) -> Person:
    """Return who is signed in."""
    role: Role = "operator" if caller.has_role("operator") else "user"
    return Person(namespace=caller.token.namespace, name=caller.token.name, role=role)


def browser_of(user_agent: str) -> str | None:
    """Return a browser and its system in words, such as "Firefox on Linux"; None if unknown."""
    found = [
        next((name for mark, name in names if mark in user_agent), None)
        for names in (_BROWSERS, _SYSTEMS)
    ]
    return " on ".join(name for name in found if name is not None) or None
