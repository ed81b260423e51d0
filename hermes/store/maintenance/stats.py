"""Statistics of a store: queue sizes, costs, and the sizes of its files."""

from __future__ import annotations

import os
from pathlib import Path

from hermes.messages import StoreHealth, StoreSnapshot, StoreStats
from hermes.store.conversations import outbox, usage
from hermes.store.records import views
from hermes.store.transaction import Transaction

DAY = 86400.0


def facts(tx: Transaction) -> StoreStats:
    """Return queue sizes and the cost of today; cheap enough to be called often."""
    inbox_open, oldest = tx.all(
        "SELECT count(*), min(accepted_at) FROM inbox INDEXED BY inbox_open WHERE state = 'open'"
    )[0]
    hooks = tx.all(
        "SELECT count(*) FROM boundaries INDEXED BY boundaries_open WHERE closed_at IS NULL"
    )
    return StoreStats(
        inbox_open=inbox_open,
        inbox_oldest_seconds=0.0 if oldest is None else max(0.0, tx.now - oldest),
        outbox=tuple(outbox.outbox_facts(tx)),
        hooks_open=hooks[0][0],
        cost_today=usage.spent_today(tx),
    )


def count_parked(tx: Transaction) -> int:
    """Return how many messages were parked within the last day, after too many attempts."""
    rows = tx.all(
        "SELECT count(*) FROM inbox INDEXED BY inbox_closed "
        "WHERE closed_at > ? AND state = 'parked'",
        tx.now - DAY,
    )
    count: int = rows[0][0]
    return count


def snapshot(tx: Transaction) -> StoreSnapshot:
    """Return what an operator sees of the tables and files; its caller fills in the queue."""
    return StoreSnapshot(counts=facts(tx), health=_sizes(tx), lanes=tuple(views.outbox_lanes(tx)))


def files(tx: Transaction) -> tuple[int, int]:
    """Return the sizes of the write-ahead log and of the database, in bytes."""
    page_size, pages = (tx.all(f"PRAGMA {name}")[0][0] for name in ("page_size", "page_count"))
    path = Path(tx.db.filename)
    return _size(path.with_name(f"{path.name}-wal")), page_size * pages


def _sizes(tx: Transaction) -> StoreHealth:
    total, ended, unindexed, conversations = tx.all(
        "SELECT (SELECT count(*) FROM sessions), "
        "(SELECT count(*) FROM sessions INDEXED BY sessions_ended WHERE ended_at IS NOT NULL), "
        "(SELECT count(*) FROM arrivals), (SELECT count(*) FROM routes)"
    )[0]
    page_size, pages, free = (
        tx.all(f"PRAGMA {name}")[0][0] for name in ("page_size", "page_count", "freelist_count")
    )
    path = Path(tx.db.filename)
    return StoreHealth(
        queue=0, queue_limit=0, commits=0, requests=0, largest_batch=0, wal_limit=0,
        wal_bytes=_size(path.with_name(f"{path.name}-wal")),
        database_bytes=page_size * pages,
        free_bytes=page_size * free,
        disk_free_bytes=_disk_free(path),
        unindexed=unindexed,
        sessions={"open": total - ended, "ended": ended},
        conversations=conversations,
    )  # fmt: skip


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _disk_free(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
