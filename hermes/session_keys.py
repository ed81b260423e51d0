"""The address of a conversation partner, made of where a message comes from."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

from hermes.messages import Source

MAX_LENGTH = 1000
"""As long as the store takes a key."""

_BACKGROUND = re.compile(r"(.+):background:([0-9]{1,18})", re.DOTALL)

# Visible ASCII, but for the separator and the sign of an escape. Not all that Python calls
# printable: that grows with Unicode, and a key must outlive an upgrade of Python.
_PLAIN = "".join(map(chr, range(0x21, 0x7F))).replace(":", "").replace("%", "")


def session_key(
    source: Source,
    *,
    profile: str | None = None,
    shared: bool = False,
    threads_per_user: bool = False,
) -> str:
    """The key of the conversation that a message from this source belongs to.

    `agent:<profile or main>:<platform>:dm[:<chat>[:<thread>]]` for a direct message, where the user
    stands in for a chat without an id. Everywhere else the number of parts says what they are:
    `agent:…:<chat_type>`, and then nothing, `:<chat>`, `:<chat>:<participant>`, or
    `:<chat>:<thread>:<participant>`. A part that is missing before or among them is left empty, so
    a thread that all share is `…:group:<chat>:<thread>:`, and never what a participant's key is.

    The participant counts unless the chat is `shared`, and in a thread only with
    `threads_per_user`. An empty id is a missing one. All but visible ASCII, and `:` and `%`, is
    percent-encoded, so two keys are equal only if every part that counts is. A key that would be
    too long ends in `%sha256=` and its digest, which no other key contains.
    """
    place = [profile or "main", source.platform, source.chat_type]
    if source.chat_type == "dm":
        partner = _direct(source)
    else:
        alone = not shared and (threads_per_user or not source.thread_id)
        partner = _grouped(source, source.user_id if alone else None)
    return _bounded(":".join(["agent", *(_escaped(part or "") for part in (*place, *partner))]))


def background_key(key: str, inbox_id: int) -> str:
    """The conversation that a message has begun in the background."""
    return f"{key}:background:{inbox_id}"


def begun_by(key: str) -> tuple[str, int] | None:
    """The conversation and the message that may have begun this one; only the inbox can tell."""
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
    # Halves of characters are kept apart too: they come from platforms that count in UTF-16.
    return quote(part, safe=_PLAIN, errors="surrogatepass")


def _bounded(key: str) -> str:
    if len(key) <= MAX_LENGTH:
        return key
    # "%s" begins no escape, so nobody can choose an id that looks like somebody's digest.
    tail = f"%sha256={hashlib.sha256(key.encode()).hexdigest()}"
    return key[: MAX_LENGTH - len(tail)] + tail


def payer_of(platform: str, user_id: str | None) -> str:
    """Whose budget it is."""
    return f"{platform}/{user_id or ''}"
