"""Boundary rows: session changes that hooks are notified of.

Each is written in the transaction of the change, and closed once the hooks have run.
"""

from __future__ import annotations

import msgspec

from hermes.messages import Boundary, HookEvent, JsonObject
from hermes.store.conversations import codec
from hermes.store.transaction import Transaction

_COLUMNS = (
    "id, event, session_key, session_id, platform, reason, old_session_id, new_session_id, "
    "coalesce(metadata, '{}')"
)


def record(  # noqa: PLR0913
    tx: Transaction,
    event: HookEvent,
    session_key: str,
    session_id: str,
    *,
    platform: str,
    reason: str,
    old: str | None = None,
    new: str | None = None,
    metadata: JsonObject | None = None,
) -> None:
    """Write a boundary row, so that the hooks for `event` run after the commit.

    `metadata` is that of the message that caused it.
    """
    tx.run(
        "INSERT INTO boundaries (event, session_key, session_id, platform, reason, "
        "old_session_id, new_session_id, created_at, metadata) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        event,
        session_key,
        session_id,
        platform,
        reason,
        old,
        new,
        tx.now,
        codec.encode_json(metadata) if metadata else None,
    )
    tx.boundaries = True


def pending_boundaries(tx: Transaction, after: int = 0, limit: int = 1000) -> list[Boundary]:
    """Return the boundaries whose hooks have not all run, oldest first."""
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
            metadata=msgspec.json.decode(row[8]),
        )
        for row in rows
    ]


def close_boundary(tx: Transaction, boundary_id: int, error: str | None = None) -> bool:
    """Record that the hooks have run. Return False if that was already recorded."""
    sql = "UPDATE boundaries SET closed_at = ?, error = ? WHERE id = ? AND closed_at IS NULL"
    return tx.run(sql, tx.now, error, boundary_id) == 1
