"""Session keys: which conversation a message belongs to."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote, unquote

from hermes.messages import Source
from hermes.sanitize import scrub
from hermes.validation import require_string

CLIENT_PLATFORM = "rpc"
"""The platform of JSON-RPC clients. Their connections show them what happens, not an adapter."""
API_PLATFORM = "http"
"""The platform of API clients. Their responses show them what happens, not an adapter."""
WEB_PLATFORM = "web"
"""The platform of people who are signed in to the web page, which uses the API."""
API_PLATFORMS: frozenset[str] = frozenset({API_PLATFORM, WEB_PLATFORM})
MAX_LENGTH = 1000
"""The maximum length of a key in the store."""

_CUT = "%sha256="
"""Precedes the digest of a key that was too long."""
MIN_PARTS = 5
"""The parts of the key of a chat: "agent", a profile, the platform, the type and the chat."""

EPHEMERAL = "temp"
"""How the names of conversations begin that have one turn and leave no transcript."""
_EPHEMERAL = re.compile(rf"agent:main:http:dm:[^:]*:{EPHEMERAL}_[0-9a-f]{{32}}")
_BACKGROUND = re.compile(r"(.+):background:([0-9]{1,18})", re.DOTALL)

# Visible ASCII without the separator and the escape character. `str.isprintable` would not do: its
# result changes with Unicode, but a key must stay the same after an upgrade of Python.
_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace(":", "").replace("%", "")
_NEEDS_NO_ESCAPE = re.compile(f"[{re.escape(_PLAIN)}]*")


def session_key(
    source: Source,
    *,
    profile: str | None = None,
    shared: bool = False,
    threads_per_user: bool = False,
) -> str:
    """Return the key of the conversation that a message from this source belongs to.

    For a direct message it is `agent:<profile or main>:<platform>:dm[:<chat>[:<thread>]]`, with the
    user's id if the chat has none. For all others it is `agent:…:<chat_type>`, followed by nothing,
    `:<chat>`, `:<chat>:<participant>`, or `:<chat>:<thread>:<participant>`. A missing part before
    or between others is empty: a thread that all participants share is
    `…:group:<chat>:<thread>:`, which is never the key of a participant.

    The participant is part of the key unless the chat is `shared`; in a thread only with
    `threads_per_user`. An empty id counts as missing. Everything except visible ASCII is
    percent-encoded, and so are `:` and `%`: two keys are equal only if all their parts are. A key
    that would be too long is cut and ends with `%sha256=` and a digest, which no other key has.
    """
    prefix = [profile or "main", source.platform, source.chat_type]
    if source.chat_type == "dm":
        partner = _direct(source)
    else:
        alone = not shared and (threads_per_user or not source.thread_id)
        partner = _grouped(source, source.user_id if alone else None)
    return _bounded(":".join(["agent", *(_escaped(part or "") for part in (*prefix, *partner))]))


def chat_of(key: str) -> Source:
    """Return the chat that a key of `session_key` names. Raises `ValueError` for other keys."""
    parts = [unquote(part, errors="surrogatepass") for part in key.split(":")]
    if len(parts) < MIN_PARTS or parts[0] != "agent" or _CUT in key or not all(parts[1:5]):
        raise ValueError(f"{key[:100]!r} is not the session key of a chat")
    _, _, platform, chat_type, chat, *rest = parts
    threads = rest[:1] if chat_type == "dm" or len(rest) > 1 else []
    source = Source(platform, "", chat, chat_type, threads[0] if threads else None)
    if len(rest) > (1 if chat_type == "dm" else 2):
        raise ValueError(f"{key[:100]!r} is not the session key of a chat")
    return source


def is_client_key(key: str) -> bool:
    """Whether a key is that of a conversation of a JSON-RPC client."""
    return key.startswith(f"agent:main:{CLIENT_PLATFORM}:")


def is_ephemeral_key(key: str) -> bool:
    """Whether a key is that of a request whose turn belongs to no conversation."""
    return _EPHEMERAL.fullmatch(key) is not None


def background_key(key: str, inbox_id: int) -> str:
    """Return the key of the background conversation that a message started."""
    return f"{key}:background:{inbox_id}"


def background_origin(key: str) -> tuple[str, int] | None:
    """Return the conversation and the inbox id that a background key names; None for other keys.

    A user can choose an id that looks like one, so the caller must check the inbox row.
    """
    found = _BACKGROUND.fullmatch(key)
    return None if found is None else (found[1], int(found[2]))


def _direct(source: Source) -> list[str | None]:
    partner = source.chat_id or source.user_id
    if source.thread_id:
        return [partner, source.thread_id]
    return [partner] if partner else []


def _grouped(source: Source, participant: str | None) -> list[str | None]:
    if source.thread_id:
        return [source.chat_id, source.thread_id, participant]
    if participant:
        return [source.chat_id, participant]
    return [source.chat_id] if source.chat_id else []


def _escaped(part: str) -> str:
    if _NEEDS_NO_ESCAPE.fullmatch(part):
        return part
    # Lone surrogates, which platforms that use UTF-16 may send, stay distinct as well.
    return quote(part, safe=_PLAIN, errors="surrogatepass")


def _bounded(key: str) -> str:
    if len(key) <= MAX_LENGTH:
        return key
    # "%s" starts no percent escape, so no id can imitate a digest.
    tail = f"{_CUT}{hashlib.sha256(key.encode()).hexdigest()}"
    return key[: MAX_LENGTH - len(tail)] + tail


def payer_of(platform: str, user_id: str | None) -> str:
    """Return the name of the account whose budget is charged."""
    return f"{platform}/{user_id or ''}"


def require_encodable(session_key: str) -> None:
    """Raise `ValueError` for a key with lone surrogates: it would be another key in the store.

    Raises `TypeError` if it is not a string.
    """
    require_string("session_key", session_key)
    if session_key != scrub(session_key):
        raise ValueError(f"a session_key cannot have lone surrogates: {session_key[:50]!r}")
