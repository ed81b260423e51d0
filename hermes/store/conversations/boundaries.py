"""Boundary rows: written with the change that causes them, closed when the hooks have heard."""

from __future__ import annotations

from hermes.messages import Boundary, Event
from hermes.store.transaction import Transaction

_COLUMNS = "id, event, session_key, session_id, platform, reason, old_session_id, new_session_id"


def record(  # noqa: PLR0913
    tx: Transaction,
    event: Event,
    session_key: str,
    session_id: str,
    *,
    platform: str,
    reason: str,
    old: str | None = None,
    new: str | None = None,
) -> None:
    """Write down that hooks must hear of this."""
    tx.run(
        "INSERT INTO boundaries (event, session_key, session_id, platform, reason, "
        "old_session_id, new_session_id, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        event,
        session_key,
        session_id,
        platform,
        reason,
        old,
        new,
        tx.now,
    )
    tx.boundaries = True


def pending_boundaries(tx: Transaction, after: int = 0, limit: int = 1000) -> list[Boundary]:
    """Boundaries that no delivery has closed, oldest first."""
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM boundaries WHERE closed_at IS NULL AND id > ? ORDER BY id LIMIT ?",
        after,
        limit,
    )
    return [
        Boundary(
            boundary_id=row[0],
            event=row[1],
            session_key=row[2],
            session_id=row[3],
            platform=row[4],
            reason=row[5],
            old_session_id=row[6],
            new_session_id=row[7],
        )
        for row in rows
    ]


def close_boundary(tx: Transaction, boundary_id: int, error: str | None = None) -> bool:
    """The hooks have heard; False where that was known."""
    sql = "UPDATE boundaries SET closed_at = ?, error = ? WHERE id = ? AND closed_at IS NULL"
    return tx.run(sql, tx.now, error, boundary_id) == 1
