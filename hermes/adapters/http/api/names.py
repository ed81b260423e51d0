"""How a request names a conversation: by session key, or by id in the caller's namespace."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hermes.adapters.http.credentials import Caller
from hermes.adapters.http.endpoints import Call
from hermes.adapters.http.errors import ApiError, not_found
from hermes.sanitize import scrub
from hermes.session_keys import MAX_LENGTH

MAX_DIGITS = 18
WHAT = "such conversation"
_ID = re.compile(r"conv_[0-9a-f]{32}|name:.{1,500}", re.DOTALL)
_WILDCARD = re.compile(r"[*?\[]")


def resolve(call: Call, name: str) -> str:
    """Return the session key of the conversation with this name.

    Raises `ApiError` (404) if it does not belong to the caller.
    """
    key = call.caller.key(name) if _ID.fullmatch(name) else name
    if not key or len(key) > MAX_LENGTH or not key.isprintable() or scrub(key) != key:
        raise not_found(WHAT)
    if not is_visible(call.caller, key):
        raise not_found(WHAT)
    return key


def is_visible(caller: Caller, key: str) -> bool:
    """Whether the caller may use a conversation: an operator may use all."""
    return caller.has_role("operator") or caller.owns(key)


def number(text: str) -> int:
    """Return a number in a path; 0, which names nothing, if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else 0


def require_id(name: str) -> str:
    """Return the id of a new conversation. Raises `ApiError` if it is not valid."""
    if not _ID.fullmatch(name) or scrub(name) != name:
        text = "An id is `conv_` and 32 hexadecimal digits, or `name:` and a text."
        raise ApiError(400, text, code="invalid_value", param="id")
    return name


def id_of(caller: Caller, key: str) -> str | None:
    """Return the id of a conversation in the caller's namespace; None for other conversations."""
    prefix = namespace(caller)
    name = unquote(key[len(prefix) :], errors="surrogateescape") if key.startswith(prefix) else ""
    return name if _ID.fullmatch(name) and caller.key(name) == key else None


def namespace(caller: Caller) -> str:
    """Return how the session keys of a namespace begin."""
    return caller.key("x")[:-1]


def prefixes(caller: Caller) -> list[str] | None:
    """Return how the keys that the caller may use begin; None if it may use all.

    A pattern of the token may be narrower than its beginning, so `is_visible` decides.
    """
    if caller.has_role("operator"):
        return None
    return [namespace(caller), *(_WILDCARD.split(key, maxsplit=1)[0] for key in caller.token.keys)]
