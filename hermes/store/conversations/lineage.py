"""Who continues whom. One walker: compression edges, from parent to child and back.

A parent is older than its child (a CHECK), and has at most one compression child (an index), so
each walk is a line that ends.
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


def child(tx: Transaction, no: int) -> tuple[int, str, str | None] | None:
    """Number, id and rotation id of the compression child."""
    sql = "SELECT no, id, rotation_id FROM sessions WHERE parent_no = ? AND kind = 'compression'"
    row = tx.one(sql, no)
    return None if row is None else (row[0], row[1], row[2])


def get_compression_lineage(tx: Transaction, session_id: str) -> list[str]:
    """The ids from the root to the tip of the line that the session is on."""
    above: list[str] = [row[0] for row in tx.all(_UP, session_id)]
    below: list[str] = [row[0] for row in tx.all(_DOWN, session_id)]
    return above + below[1:]


def get_compression_tip(tx: Transaction, session_id: str) -> str:
    """The live end of the line; the id itself where nothing continues it."""
    rows = tx.all(_DOWN, session_id)
    return str(rows[-1][0]) if rows else session_id


def get_conversation_root(tx: Transaction, session_id: str) -> str:
    """The beginning of the line."""
    row = tx.one(_UP, session_id)
    return session_id if row is None else str(row[0])


def resolve_session_id(tx: Transaction, prefix: str) -> str | None:
    """The session with this id, or the only one whose id begins so."""
    if (row := tx.one("SELECT id FROM sessions WHERE id = ?", prefix)) is not None:
        return str(row[0])
    if not prefix:
        return None
    # Ids sort by code point, so those that begin with the prefix lie below it and the last one.
    rows = tx.all(
        "SELECT id FROM sessions WHERE id > ? AND id < ? ORDER BY id LIMIT 2",
        prefix,
        prefix + chr(0x10FFFF),
    )
    return str(rows[0][0]) if len(rows) == 1 else None
