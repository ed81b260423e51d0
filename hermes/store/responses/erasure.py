"""Erase requests that belong to no conversation, an hour after they have ended."""

from __future__ import annotations

from hermes.store.transaction import Transaction

KEPT_SECONDS = 3600.0
"""How long a retry finds such a request and its reply."""
STEP = 2000
_COLUMNS = ("inbox_id", "session_key", "session_id")
# ?1 is the machine's steady clock: a date that is set wrong erases nothing too early. The clock
# starts again with the machine, so a request from a later time of it has ended before that.
_OLD = (
    f"SELECT {', '.join(_COLUMNS)} FROM responses WHERE stored = 0 "
    "AND closed_at IS NOT NULL AND ended_steady IS NOT NULL "
    "AND CASE WHEN ended_steady <= ?1 THEN ?1 - ended_steady ELSE ?1 END > ?2 LIMIT ?3"
)
_DELETE = (
    ("inbox_id", "DELETE FROM responses WHERE inbox_id = ?"),
    ("inbox_id", "DELETE FROM inbox WHERE id = ?"),
    ("session_key", "DELETE FROM routes WHERE session_key = ?"),
    ("session_key", "DELETE FROM allowed_tools WHERE session_key = ?"),
    ("session_id", "DELETE FROM approvals WHERE session_id = ?"),
    ("session_id", "DELETE FROM meta WHERE key = 'left:' || ?"),
)


def erase_unstored(tx: Transaction, limit: int = STEP) -> int:
    """Erase requests that are not stored and ended over an hour ago. Return how many.

    The hour begins with the first call after the end, so that no wall clock is needed. What they
    have cost is kept. Their files are deleted by the next sweep of files, because nothing names
    them any more.
    """
    tx.run(
        "UPDATE responses SET ended_steady = ? "
        "WHERE stored = 0 AND closed_at IS NOT NULL AND ended_steady IS NULL",
        tx.steady,
    )
    found = tx.all(_OLD, tx.steady, KEPT_SECONDS, limit)
    for column, sql in _DELETE:
        number = _COLUMNS.index(column)
        tx.run_each(sql, [(row[number],) for row in found])
    return len(found)
