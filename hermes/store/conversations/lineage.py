"""Lineages: sessions and the compression children that continue them.

A parent is older than its child (a CHECK) and has at most one compression child (a unique index),
so a lineage is a finite chain. Its last session is the tip.
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
