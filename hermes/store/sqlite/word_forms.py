"""The index of word forms, `stems`, in which "heron" finds "herons".

It has the same rows as the index `search`, with FTS5's porter tokenizer. In a database of an older
version it is empty at first, and messages are added to it in steps, newest first. Until then a
search uses `search`. A message is in `stems` if its id is greater than `stems_left`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hermes.store.transaction import Transaction, Value

log: logging.Logger = logging.getLogger(__name__)

STEP = 500
"""Rows per step."""
STEP_BYTES = 500_000
"""Bytes of text per step, unless a single message has more; this takes the writer about 20 ms."""
_INDEXED = "id > coalesce((SELECT upto FROM stems_left), -1)"


def add(tx: Transaction, condition: str, *values: Value) -> None:
    """Add the messages that satisfy an SQL condition, except those that a later step adds."""
    tx.run(
        "INSERT INTO stems (rowid, content, tools) SELECT id, content, tools FROM message_text "
        f"WHERE {condition} AND {_INDEXED}",
        *values,
    )


def remove(tx: Transaction, first: int, last: int) -> None:
    """Remove messages, before they are deleted."""
    tx.run(
        "INSERT INTO stems (stems, rowid, content, tools) SELECT 'delete', id, content, tools "
        f"FROM message_text WHERE id BETWEEN ? AND ? AND {_INDEXED}",
        first,
        last,
    )


def is_complete(tx: Transaction) -> bool:
    """Return whether every message is in the index."""
    return tx.one("SELECT 1 FROM stems_left") is None


def remaining(tx: Transaction) -> int:
    """Return how many messages are not in the index yet."""
    row = tx.one("SELECT count(*) FROM messages WHERE id <= (SELECT upto FROM stems_left)")
    return 0 if row is None else int(row[0])


def add_step(tx: Transaction, limit: int = STEP) -> int:
    """Add some of the messages that are not in the index. Return how many."""
    marker = tx.one("SELECT upto FROM stems_left")
    if marker is None:
        return 0
    rows = tx.all(
        "SELECT id, coalesce(octet_length(content), 0) + coalesce(octet_length(extra), 0) "
        "FROM messages WHERE id <= ? ORDER BY id DESC LIMIT ?",
        marker[0],
        limit,
    )
    count, size = 0, 0
    for _, length in rows:
        if count and size + length > STEP_BYTES:
            break
        count, size = count + 1, size + length
    if not count:
        tx.run("DELETE FROM stems_left")
        return 0
    first = rows[count - 1][0]
    tx.run("UPDATE stems_left SET upto = ?", first - 1)
    if _are_valid(tx, first, marker[0]):
        add(tx, "id BETWEEN ? AND ?", first, marker[0])
    else:
        _add_valid(tx, [row[0] for row in rows[:count]])
    return count


def _are_valid(tx: Transaction, first: int, last: int) -> bool:
    """Return whether messages are valid UTF-8; otherwise the file is damaged."""
    try:  # not in the statement that adds them: FTS5 does not count rows right if that fails
        tx.all("SELECT content, extra FROM messages WHERE id BETWEEN ? AND ?", first, last)
    except UnicodeDecodeError:
        return False
    return True


def _add_valid(tx: Transaction, ids: Sequence[int]) -> None:
    """Add messages one by one, except those that are damaged."""
    for number in ids:
        if _are_valid(tx, number, number):
            add(tx, "id = ?", number)
        else:
            log.warning("message %d is not valid UTF-8, so a search does not find it", number)


def rebuild(tx: Transaction) -> None:
    """Build the index from the messages, in one transaction."""
    tx.run("DELETE FROM stems_left")
    tx.run("INSERT INTO stems (stems) VALUES ('rebuild')")


def check(tx: Transaction) -> None:
    """Raise `apsw.CorruptError` if the index is damaged, or does not match the messages."""
    compare = 1 if is_complete(tx) else 0
    tx.run("INSERT INTO stems (stems, rank) VALUES ('integrity-check', ?)", compare)
