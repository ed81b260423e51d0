"""Lineages: sessions and the compression children that continue them; and whose they are.

A parent is older than its child (a CHECK) and has at most one compression child (a unique index),
so a lineage is a finite chain. Its last session is the tip.

A session belongs to the session_key in its row, and to the keys with which it is shared.
"""

from __future__ import annotations

from hermes.store.transaction import Transaction

_DOWN = """
WITH RECURSIVE line (no, id, depth) AS (
  SELECT no, id, 0 FROM sessions WHERE id = ?
  UNION ALL
  SELECT s.no, s.id, depth + 1 FROM line JOIN sessions s
  ON s.parent_no = line.no AND s.kind = 'compression'
)
SELECT id FROM line ORDER BY depth
"""
_UP = """
WITH RECURSIVE line (no, id, parent_no, kind, depth) AS (
  SELECT no, id, parent_no, kind, 0 FROM sessions WHERE id = ?
  UNION ALL
  SELECT s.no, s.id, s.parent_no, s.kind, depth + 1 FROM line JOIN sessions s
  ON s.no = line.parent_no WHERE line.kind = 'compression'
)
SELECT id FROM line ORDER BY depth DESC
"""


BELONGS = (
    "s.no IN (WITH k (session_key) AS (VALUES (?)) "
    "SELECT no FROM sessions JOIN k USING (session_key) "
    "UNION ALL SELECT session_no FROM shared_sessions JOIN k USING (session_key))"
)
"""Condition on `sessions s`, with the session_key as its only value."""
BEGINS = (
    "EXISTS (SELECT 1 FROM json_each(?) p "
    "WHERE substr(s.session_key, 1, length(p.value)) = p.value OR EXISTS ("
    "SELECT 1 FROM shared_sessions h WHERE h.session_no = s.no "
    "AND substr(h.session_key, 1, length(p.value)) = p.value))"
)
"""The same for keys that begin with one of these texts, a JSON array."""


def compression_child(tx: Transaction, no: int) -> tuple[int, str, str | None] | None:
    """Return the number, id and rotation id of the compression child, or None."""
    sql = "SELECT no, id, rotation_id FROM sessions WHERE parent_no = ? AND kind = 'compression'"
    row = tx.one(sql, no)
    return None if row is None else (row[0], row[1], row[2])


def get_compression_lineage(tx: Transaction, session_id: str) -> list[str]:
    """Return the session ids of the lineage, from its root to its tip."""
    above: list[str] = [row[0] for row in tx.all(_UP, session_id)]
    below: list[str] = [row[0] for row in tx.all(_DOWN, session_id)]
    return above + below[1:]


def get_compression_tip(tx: Transaction, session_id: str) -> str:
    """Return the last session of the lineage; the id itself if nothing continues it."""
    rows = tx.all(_DOWN, session_id)
    return str(rows[-1][0]) if rows else session_id


def get_conversation_root(tx: Transaction, session_id: str) -> str:
    """Return the first session of the lineage."""
    row = tx.one(_UP, session_id)
    return session_id if row is None else str(row[0])


def resolve_session_id(
    tx: Transaction, prefix: str, *, session_key: str | None = None
) -> str | None:
    """Return the session with this id, or the only one whose id begins with `prefix`.

    With `session_key`, only sessions that belong to the key are found.
    """
    return with_id(tx, prefix, session_key) or with_prefix(tx, prefix, session_key)


def with_id(tx: Transaction, session_id: str, session_key: str | None) -> str | None:
    """Return the id if this session exists and belongs to the key."""
    belongs, values = only(session_key)
    row = tx.one(f"SELECT s.id FROM sessions s WHERE s.id = ?{belongs}", session_id, *values)
    return None if row is None else str(row[0])


def with_prefix(tx: Transaction, prefix: str, session_key: str | None) -> str | None:
    """Return the only session of the key whose id begins with `prefix`."""
    found = ids_with_prefix(tx, prefix, session_key, 2)
    return found[0] if len(found) == 1 else None


def ids_with_prefix(tx: Transaction, prefix: str, session_key: str | None, limit: int) -> list[str]:
    """Return the ids of sessions of the key that begin with `prefix` and are longer."""
    if not prefix:
        return []
    belongs, values = only(session_key)
    # Ids are sorted by code point, so the ids with this prefix form one range.
    rows = tx.all(
        f"SELECT s.id FROM sessions s WHERE s.id > ? AND s.id < ?{belongs} ORDER BY s.id LIMIT ?",
        prefix,
        prefix + chr(0x10FFFF),
        *values,
        limit,
    )
    return [str(row[0]) for row in rows]


def only(session_key: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the rest of a WHERE clause for the sessions of a key, and its values.

    Without a key, it selects all sessions.
    """
    return ("", ()) if session_key is None else (f" AND {BELONGS}", (session_key,))


def share(tx: Transaction, session_key: str, session_id: str) -> None:
    """Make a conversation belong to a key too. The key can then find it and switch to it."""
    for each in get_compression_lineage(tx, session_id):
        tx.run(
            "INSERT INTO shared_sessions (session_key, session_no) "
            "SELECT ?1, no FROM sessions WHERE id = ?2 AND session_key IS DISTINCT FROM ?1 "
            "ON CONFLICT (session_key, session_no) DO NOTHING",
            session_key,
            each,
        )


def inherit_keys(tx: Transaction, child_no: int) -> None:
    """Make a new compression child belong to the keys of its parent."""
    tx.run(
        "UPDATE sessions AS s SET session_key = coalesce(s.session_key, p.session_key) "
        "FROM sessions p WHERE s.no = ? AND p.no = s.parent_no",
        child_no,
    )
    tx.run(
        "INSERT INTO shared_sessions (session_key, session_no) "
        "SELECT x.session_key, s.no FROM sessions s JOIN ("
        "SELECT session_key, session_no AS no FROM shared_sessions UNION ALL "
        "SELECT session_key, no FROM sessions WHERE session_key IS NOT NULL) x "
        "ON x.no = s.parent_no WHERE s.no = ? AND x.session_key IS DISTINCT FROM s.session_key "
        "ON CONFLICT (session_key, session_no) DO NOTHING",
        child_no,
    )
