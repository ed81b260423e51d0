"""Titles: clean, at most 100 characters, each held by one session."""

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
    """The title without what cannot be seen, on one line; None where nothing is left."""
    clean = " ".join(_INVISIBLE.sub("", title or "").split())
    if len(clean) > MAX_LENGTH:
        raise ValueError(f"Title too long ({len(clean)} chars, max {MAX_LENGTH})")
    return clean or None


def set_session_title(tx: Transaction, session_id: str, title: str | None) -> bool:
    """Set or clear the title; False for an unknown id, ValueError where another session has it.

    A title that an earlier session of the same line holds moves to this one.
    """
    clean = sanitize_title(title)
    no = sessions.number(tx, session_id)
    if no is None:
        return False
    if clean is not None:
        _free(tx, session_id, clean)
    return tx.run("UPDATE sessions SET title = ? WHERE no = ?", clean, no) == 1


def set_auto_title_if_empty(tx: Transaction, session_id: str, title: str) -> bool:
    """Set a title that nobody asked for: where the conversation goes on, if it has none yet.

    One that another session holds gets a number.
    """
    tip = lineage.get_compression_tip(tx, session_id)
    row = tx.one("SELECT title FROM sessions WHERE id = ?", tip)
    clean = sanitize_title(title)
    if row is None or row[0] is not None or clean is None:
        return False
    if tx.one("SELECT 1 FROM sessions WHERE title = ?", clean) is not None:
        clean = free_title(tx, clean)
    return set_session_title(tx, tip, clean)


def _free(tx: Transaction, session_id: str, title: str) -> None:
    held = "SELECT id, session_key FROM sessions WHERE title = ? AND id <> ?"
    row = tx.one(held, title, session_id)
    if row is None:
        return
    line = lineage.get_compression_lineage(tx, session_id)
    if row[0] not in line[: line.index(session_id)]:
        mine = tx.one("SELECT session_key FROM sessions WHERE id = ?", session_id)
        # Another user's session is not named to this one.
        by = f" by session {row[0]}" if mine == (row[1],) else ""
        raise ValueError(f"Title '{title}' is already in use{by}")
    tx.run("UPDATE sessions SET title = NULL WHERE id = ?", row[0])


def get_next_title_in_lineage(tx: Transaction, title: str) -> str:
    """The first free of `base`, `base #2`, `base #3`, …, above every number in use."""
    base = _base(title)
    if tx.one("SELECT 1 FROM sessions WHERE title = ?", base) is None and not _numbers(tx, base):
        return base
    suffix = f" #{max([1, *_numbers(tx, base)]) + 1}"
    return base[: MAX_LENGTH - len(suffix)].rstrip() + suffix


def resolve_session_by_title(tx: Transaction, title: str) -> str | None:
    """The session that was meant: the highest number of this title, else the exact one."""
    numbers = _numbers(tx, title)
    exact = f"{title} #{max(numbers)}" if numbers else title
    row = tx.one("SELECT id FROM sessions WHERE title = ?", exact)
    return None if row is None else str(row[0])


def free_title(tx: Transaction, title: str) -> str:
    """The next number of the title that nobody holds, also where the base had to be cut."""
    name = get_next_title_in_lineage(tx, title)
    number = 2
    while tx.one("SELECT 1 FROM sessions WHERE title = ?", name) is not None:
        suffix = f" #{number}"
        name = _base(title)[: MAX_LENGTH - len(suffix)].rstrip() + suffix
        number += 1
    return name


def continue_title(tx: Transaction, parent_no: int, child_no: int) -> None:
    """Give a compression child the next number of its parent's title."""
    row = tx.one("SELECT title FROM sessions WHERE no = ?", parent_no)
    if row is not None and row[0] is not None:
        title = free_title(tx, row[0])
        tx.run("UPDATE sessions SET title = ? WHERE no = ?", title, child_no)


def _base(title: str) -> str:
    found = _NUMBERED.match(title)
    return found.group(1) if found else title


def _numbers(tx: Transaction, base: str) -> list[int]:
    rows = tx.all(
        "SELECT substr(title, ?) FROM sessions WHERE title > ? AND title < ?",
        len(base) + 3,
        f"{base} #",
        f"{base} $",  # "$" follows "#"
    )
    return [int(row[0]) for row in rows if re.fullmatch(r"[0-9]{1,9}", row[0])]
