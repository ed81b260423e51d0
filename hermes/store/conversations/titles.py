"""Session titles: one line of at most 100 visible characters, unique in the file."""

from __future__ import annotations

import re

from hermes.store.conversations import lineage, sessions
from hermes.store.transaction import Transaction

MAX_LENGTH = 100
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069"
    "\ufeff\ufff9-\ufffc\ud800-\udfff]"
)
_NUMBERED = re.compile(r"^(.*?) #(\d{1,9})$", re.DOTALL)


def sanitize_title(title: str | None) -> str | None:
    """Return the title on one line, without invisible characters; None if nothing is left.

    Raises `ValueError` if it is too long.
    """
    clean = " ".join(_INVISIBLE.sub("", title or "").split())
    if len(clean) > MAX_LENGTH:
        raise ValueError(f"Title too long ({len(clean)} chars, max {MAX_LENGTH})")
    return clean or None


def set_session_title(tx: Transaction, session_id: str, title: str | None) -> bool:
    """Set or clear the title. Return False if the session does not exist.

    A title moves here from an earlier session of the same lineage. Raises `ValueError` if it
    is too long, or if any other session has it.
    """
    clean = sanitize_title(title)
    no = sessions.number(tx, session_id)
    if no is None:
        return False
    if clean is not None:
        _release_title(tx, session_id, clean)
    return tx.run("UPDATE sessions SET title = ? WHERE no = ?", clean, no) == 1


def set_auto_title_if_empty(tx: Transaction, session_id: str, title: str) -> bool:
    """Set a generated title on the tip of the lineage, if it has none. Return whether it did.

    A title that is already in use gets a number.
    """
    tip = lineage.get_compression_tip(tx, session_id)
    row = tx.one("SELECT title FROM sessions WHERE id = ?", tip)
    clean = sanitize_title(title)
    if row is None or row[0] is not None or clean is None:
        return False
    if tx.one("SELECT 1 FROM sessions WHERE title = ?", clean) is not None:
        clean = unused_title(tx, clean)
    return set_session_title(tx, tip, clean)


def _release_title(tx: Transaction, session_id: str, title: str) -> None:
    """Remove the title from an earlier session of the lineage; refuse it if another has it."""
    row = tx.one(
        "SELECT id, session_key FROM sessions WHERE title = ? AND id <> ?", title, session_id
    )
    if row is None:
        return
    owner, owner_key = row
    ids = lineage.get_compression_lineage(tx, session_id)
    if owner not in ids[: ids.index(session_id)]:
        own_key = tx.one("SELECT session_key FROM sessions WHERE id = ?", session_id)
        # Do not tell one user the id of another user's session.
        by = f" by session {owner}" if own_key == (owner_key,) else ""
        raise ValueError(f"Title '{title}' is already in use{by}")
    tx.run("UPDATE sessions SET title = NULL WHERE id = ?", owner)


def get_next_title_in_lineage(tx: Transaction, title: str) -> str:
    """Return `base` if it is unused, else `base #N` with N above every number in use."""
    base = _base(title)
    if tx.one("SELECT 1 FROM sessions WHERE title = ?", base) is None and not _numbers(tx, base):
        return base
    suffix = f" #{max([1, *_numbers(tx, base)]) + 1}"
    return base[: MAX_LENGTH - len(suffix)].rstrip() + suffix


def resolve_session_by_title(tx: Transaction, title: str) -> str | None:
    """Return the session with the highest number of this title, else with exactly this title."""
    numbers = _numbers(tx, title)
    exact = f"{title} #{max(numbers)}" if numbers else title
    row = tx.one("SELECT id FROM sessions WHERE title = ?", exact)
    return None if row is None else str(row[0])


def unused_title(tx: Transaction, title: str) -> str:
    """Return the title with the next unused number, even if the base must be shortened."""
    name = get_next_title_in_lineage(tx, title)
    number = 2
    while tx.one("SELECT 1 FROM sessions WHERE title = ?", name) is not None:
        suffix = f" #{number}"
        name = _base(title)[: MAX_LENGTH - len(suffix)].rstrip() + suffix
        number += 1
    return name


def continue_title(tx: Transaction, parent_no: int, child_no: int) -> None:
    """Give a compression child its parent's title with the next number."""
    row = tx.one("SELECT title FROM sessions WHERE no = ?", parent_no)
    if row is not None and row[0] is not None:
        title = unused_title(tx, row[0])
        tx.run("UPDATE sessions SET title = ? WHERE no = ?", title, child_no)


def _base(title: str) -> str:
    match = _NUMBERED.match(title)
    return match.group(1) if match else title


def _numbers(tx: Transaction, base: str) -> list[int]:
    rows = tx.all(
        "SELECT substr(title, ?) FROM sessions WHERE title > ? AND title < ?",
        len(base) + 3,
        f"{base} #",
        f"{base} $",  # "$" sorts directly after "#"
    )
    return [int(row[0]) for row in rows if re.fullmatch(r"[0-9]{1,9}", row[0])]
