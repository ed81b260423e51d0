"""Session titles: one line of at most 100 visible characters, unique per session_key.

No key sees two conversations with one title, be they its own or shared with it. So a title is
compared with the sessions of all keys that a session belongs to. Sessions without a key share one
namespace. A title that a user asks for is refused if it is in use. A title that Hermes makes is cut
if it is too long, and gets a number if it is in use; so does the title of a session that is shared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from hermes.errors import AmbiguousTitle, TitleTaken, TitleTooLong
from hermes.messages import Title
from hermes.store.conversations import lineage
from hermes.store.transaction import Transaction

MAX_LENGTH = 100
MAX_LISTED = 10
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069"
    "\ufeff\ufff9-\ufffc\ud800-\udfff]"
)
_NUMBERED = re.compile(r"^(.*?) #(\d{1,9})$", re.DOTALL)
_NAMESPACE = "coalesce(session_key, '')"
Match: TypeAlias = tuple[str, str | None]
"""The id and the session_key of a session with a title."""


def sanitize_title(title: str | None) -> str | None:
    """Return the title on one line, without invisible characters; None if nothing is left.

    Raises `TitleTooLong`.
    """
    clean = _one_line(title)
    if len(clean) > MAX_LENGTH:
        raise TitleTooLong(len(clean), MAX_LENGTH)
    return clean or None


def _one_line(title: str | None) -> str:
    return " ".join(_INVISIBLE.sub("", title or "").split())


def set_session_title(tx: Transaction, session_id: str, title: str | None) -> bool:
    """Set or clear the title. Return False if the session does not exist.

    A title moves here from an earlier session of the same lineage. Raises `TitleTooLong`, or
    `TitleTaken` if another session has it that belongs to a key of this one.
    """
    return set_title_as(tx, [], session_id, title)


def set_title_as(
    tx: Transaction, more_keys: Sequence[str], session_id: str, title: str | None
) -> bool:
    """Set or clear the title. No other session of `more_keys` may have it, either.

    A route may name a session that another process created without a key.
    """
    clean = sanitize_title(title)
    row = tx.one("SELECT no FROM sessions WHERE id = ?", session_id)
    if row is None:
        return False
    if clean is not None:
        _release_title(tx, session_id, clean, [*keys_of(tx, row[0]), *more_keys])
    return tx.run("UPDATE sessions SET title = ? WHERE id = ?", clean, session_id) == 1


def set_auto_title_if_empty(tx: Transaction, session_id: str, title: str) -> bool:
    """Set a generated title on the tip of the lineage, if it has none. Return whether it did.

    A title that is too long is cut, and one that is already in use gets a number.
    """
    tip = lineage.get_compression_tip(tx, session_id)
    row = tx.one("SELECT title, no FROM sessions WHERE id = ?", tip)
    clean = _one_line(title)[:MAX_LENGTH].rstrip()
    if row is None or row[0] is not None or not clean:
        return False
    return set_session_title(tx, tip, title_for(tx, row[1], clean))


def get_title(tx: Transaction, session_key: str) -> Title:
    """Return the title of a conversation; `pending` if it is not stored in the session yet."""
    route = tx.one(
        "SELECT session_id, pending_title FROM routes WHERE session_key = ?", session_key
    )
    if route is None:
        return Title(None)
    if route[1] is not None:
        return Title(route[1], pending=True)
    tip = lineage.get_compression_tip(tx, route[0])
    row = tx.one("SELECT title FROM sessions WHERE id = ?", tip)
    return Title(None if row is None else row[0])


def apply_pending_title(tx: Transaction, session_key: str) -> str | None:
    """Apply the pending title to the current session, and return it as stored.

    A title that is taken by now gets a number. Returns None if there is no pending title, or if
    the session has no row yet.
    """
    route = tx.one(
        "SELECT session_id, pending_title FROM routes WHERE session_key = ?", session_key
    )
    if route is None or route[1] is None:
        return None
    tip, title = lineage.get_compression_tip(tx, route[0]), str(route[1])
    row = tx.one("SELECT no FROM sessions WHERE id = ?", tip)
    if row is None:
        return None
    try:
        set_title_as(tx, [session_key], tip, title)
    except TitleTaken:
        title = title_for(tx, row[0], title, session_key)
        set_title_as(tx, [session_key], tip, title)
    tx.run("UPDATE routes SET pending_title = NULL WHERE session_key = ?", session_key)
    return title


def sanitize_unused(tx: Transaction, title: str | None, session_key: str) -> str | None:
    """Return the clean title of a new session of a key.

    Raises `TitleTooLong`, or `TitleTaken` if a session that belongs to the key has it.
    """
    clean = sanitize_title(title)
    if clean is not None and (holder := _holder(tx, clean, [session_key])) is not None:
        raise TitleTaken(clean, holder)
    return clean


def _release_title(
    tx: Transaction, session_id: str, title: str, keys: Sequence[str | None]
) -> None:
    """Remove the title from earlier sessions of the lineage; refuse it if another has it."""
    _lock(tx, keys)
    holders = [each for each in _holders(tx, title, keys) if each != session_id]
    if not holders:
        return
    ids = lineage.get_compression_lineage(tx, session_id)
    earlier = ids[: ids.index(session_id)]
    for holder in holders:
        if holder not in earlier:
            raise TitleTaken(title, holder)
    for holder in holders:
        tx.run("UPDATE sessions SET title = NULL WHERE id = ?", holder)


def get_next_title_in_lineage(
    tx: Transaction, title: str, *, session_key: str | None = None
) -> str:
    """Return `base` if it is unused, else `base #N` with N above every number in use.

    With `session_key`, only the titles of sessions that belong to that key count.
    """
    return _next_title(tx, title, None if session_key is None else [session_key])


def resolve_session_by_title(
    tx: Transaction, title: str, *, session_key: str | None = None
) -> str | None:
    """Return the tip of the conversation with this title, else with the highest number of it.

    With `session_key`, only sessions that belong to the key are found. Raises `AmbiguousTitle` if
    several conversations match.
    """
    found = _exact(tx, title, session_key) or _highest(tx, title, session_key)
    tips = dict.fromkeys(lineage.get_compression_tip(tx, id_) for id_, _ in found)
    if len(tips) > 1:
        raise AmbiguousTitle(_ambiguous(title, found), tuple(tips))
    return next(iter(tips), None)


def resolve_session(tx: Transaction, target: str, *, session_key: str | None = None) -> str | None:
    """Return the session with this id, else the tip of a title, else by a unique prefix of its id.

    With `session_key`, only sessions that belong to the key are found. Raises `AmbiguousTitle` if
    several sessions have the title.
    """
    return (
        lineage.with_id(tx, target, session_key)
        or resolve_session_by_title(tx, target, session_key=session_key)
        or lineage.with_prefix(tx, target, session_key)
    )


def _exact(tx: Transaction, title: str, session_key: str | None) -> list[Match]:
    belongs, values = lineage.only(session_key)
    sql = f"SELECT s.id, s.session_key FROM sessions s WHERE s.title = ?{belongs} ORDER BY s.no"
    return [(row[0], row[1]) for row in tx.all(sql, title, *values)]


def _highest(tx: Transaction, title: str, session_key: str | None) -> list[Match]:
    """Return the sessions with the highest number of a title: of the key, or else of each key."""
    belongs, values = lineage.only(session_key)
    rows = tx.all(
        "SELECT s.id, s.session_key, substr(s.title, ?) FROM sessions s "
        f"WHERE s.title > ? AND s.title < ?{belongs}",
        *_numbered_range(title),
        *values,
    )
    found = [(row[0], row[1], int(row[2])) for row in rows if _is_number(row[2])]
    highest: dict[str | None, int] = {}
    for _, key, number in found:
        group = session_key or key
        highest[group] = max(number, highest.get(group, 0))
    return [(id_, key) for id_, key, number in found if number == highest[session_key or key]]


def _ambiguous(title: str, found: Sequence[Match]) -> str:
    listed = [f"{id_} (key {key})" if key else f"{id_} (no key)" for id_, key in found]
    more = [f"{len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    matches = ", ".join(listed[:MAX_LISTED] + more)
    return f"several sessions have the title {title!r}: {matches}; use an id"


def unused_title(tx: Transaction, title: str, *keys: str | None) -> str:
    """Return the title if no session of these keys has it, else with the next unused number."""
    _lock(tx, keys)
    if _holder(tx, title, keys) is None:
        return title
    name = _next_title(tx, title, keys)
    number = 2
    while _holder(tx, name, keys) is not None:  # it was shortened, and so may be in use
        suffix = f" #{number}"
        name = _base(title)[: MAX_LENGTH - len(suffix)].rstrip() + suffix
        number += 1
    return name


def title_for(tx: Transaction, no: int, title: str, *more_keys: str | None) -> str:
    """Return a title for a session: numbered if a session of its keys, or of others, has it."""
    return unused_title(tx, title, *keys_of(tx, no), *more_keys)


def continue_title(tx: Transaction, parent_no: int, child_no: int) -> None:
    """Give a compression child its parent's title with the next number."""
    row = tx.one("SELECT title FROM sessions WHERE no = ?", parent_no)
    if row is not None and row[0] is not None:
        title = title_for(tx, child_no, row[0], *keys_of(tx, parent_no))
        tx.run("UPDATE sessions SET title = ? WHERE no = ?", title, child_no)


def move_title(tx: Transaction, no: int, session_key: str) -> None:
    """Number the title of a session if the key that it is about to get has that title already."""
    row = tx.one("SELECT id FROM sessions WHERE no = ? AND session_key IS NULL", no)
    if row is not None:
        _number_titles(tx, [row[0]], session_key)


def share(tx: Transaction, session_key: str, session_id: str) -> None:
    """Make a conversation belong to a key too. The key can then find it and switch to it.

    Its title gets a number if another conversation of the key has it.
    """
    _number_titles(tx, lineage.get_compression_lineage(tx, session_id), session_key)
    lineage.share(tx, session_key, session_id)


def share_with_keys_of(tx: Transaction, no: int, session_id: str) -> None:
    """Make a conversation belong to all keys of another session, as `share` does."""
    for key in keys_of(tx, no):
        if key is not None:
            share(tx, key, session_id)


def _number_titles(tx: Transaction, ids: Sequence[str], session_key: str) -> None:
    """Number those titles of a conversation which another one of the key has."""
    for session_id in ids:
        row = tx.one("SELECT title, no FROM sessions WHERE id = ?", session_id)
        if row is None or row[0] is None or set(_holders(tx, row[0], [session_key])) <= set(ids):
            continue
        title = title_for(tx, row[1], row[0], session_key)
        tx.run("UPDATE sessions SET title = ? WHERE no = ?", title, row[1])


def keys_of(tx: Transaction, no: int) -> list[str | None]:
    """Return the key in the row of a session, which may be None, and those that share it."""
    rows = tx.all(
        "SELECT session_key FROM sessions WHERE no = ?1 "
        "UNION SELECT session_key FROM shared_sessions WHERE session_no = ?1",
        no,
    )
    return [row[0] for row in rows]


def lock_titles(tx: Transaction, session_id: str) -> None:
    """Lock the titles of all keys that a session belongs to, before the session itself."""
    row = tx.one("SELECT no FROM sessions WHERE id = ?", session_id)
    if row is not None:
        _lock(tx, keys_of(tx, row[0]))


def _lock(tx: Transaction, keys: Sequence[str | None]) -> None:
    """Lock keys, so that nobody else gives a title to one of their sessions meanwhile.

    The sessions without a key have one lock.
    """
    tx.lock_keys(key or "" for key in keys)


def _next_title(tx: Transaction, title: str, keys: Sequence[str | None] | None) -> str:
    base = _base(title)
    numbers = _numbers(tx, base, keys)
    if not numbers and _holder(tx, base, keys) is None:
        return base
    suffix = f" #{max([1, *numbers]) + 1}"
    return base[: MAX_LENGTH - len(suffix)].rstrip() + suffix


def _holder(tx: Transaction, title: str, keys: Sequence[str | None] | None) -> str | None:
    """Return a session of these keys that has the title; None stands for all keys."""
    return next(iter(_holders(tx, title, keys)), None)


def _holders(tx: Transaction, title: str, keys: Sequence[str | None] | None) -> list[str]:
    within, values = _within(keys)
    rows = tx.all(f"SELECT id FROM sessions WHERE title = ?{within}", title, *values)
    return [row[0] for row in rows]


def _numbers(tx: Transaction, base: str, keys: Sequence[str | None] | None) -> list[int]:
    within, values = _within(keys)
    rows = tx.all(
        f"SELECT substr(title, ?) FROM sessions WHERE title > ? AND title < ?{within}",
        *_numbered_range(base),
        *values,
    )
    return [int(row[0]) for row in rows if _is_number(row[0])]


def _within(keys: Sequence[str | None] | None) -> tuple[str, list[str]]:
    """Return a WHERE clause for the sessions that belong to the keys, and its values."""
    if keys is None:
        return "", []
    among = f"IN ({', '.join('?' * len(keys))})"
    shared = f"SELECT session_no FROM shared_sessions WHERE session_key {among}"
    return f" AND ({_NAMESPACE} {among} OR no IN ({shared}))", [key or "" for key in keys] * 2


def _numbered_range(base: str) -> tuple[int, str, str]:
    """Return where the number of a title starts, and the bounds of all numbered titles."""
    return len(base) + 3, f"{base} #", f"{base} $"  # "$" sorts directly after "#"


def _base(title: str) -> str:
    match = _NUMBERED.match(title)
    return match.group(1) if match else title


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}", text) is not None
