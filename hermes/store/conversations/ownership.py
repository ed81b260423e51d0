"""Which sessions belong to a session_key: those that name it in their row, and shared ones."""

from __future__ import annotations

from hermes.store.conversations import lineage
from hermes.store.transaction import Transaction

BELONGS = (
    "s.no IN (WITH k (session_key) AS (VALUES (?)) "
    "SELECT no FROM sessions JOIN k USING (session_key) "
    "UNION ALL SELECT session_no FROM shared_sessions JOIN k USING (session_key))"
)
"""Condition on `sessions s`, with the session_key as its only value."""


def only(session_key: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the rest of a WHERE clause for the sessions of a key, and its values.

    Without a key, it selects all sessions.
    """
    return ("", ()) if session_key is None else (f" AND {BELONGS}", (session_key,))


def share(tx: Transaction, session_key: str, session_id: str) -> None:
    """Make a conversation belong to a key too. The key can then find it and switch to it."""
    for each in lineage.get_compression_lineage(tx, session_id):
        tx.run(
            "INSERT OR IGNORE INTO shared_sessions (session_key, session_no) "
            "SELECT ?1, no FROM sessions WHERE id = ?2 AND session_key IS NOT ?1",
            session_key,
            each,
        )


def inherit(tx: Transaction, parent_no: int, child_no: int) -> None:
    """Share a compression child with the keys of its parent."""
    tx.run(
        "INSERT OR IGNORE INTO shared_sessions (session_key, session_no) "
        "SELECT session_key, ? FROM shared_sessions WHERE session_no = ?",
        child_no,
        parent_no,
    )
