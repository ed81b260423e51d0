"""Statistics of a store: queue sizes, costs, and the sizes of its files."""

from __future__ import annotations

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


def _sizes(tx: Transaction) -> StoreHealth:
    total, ended, conversations = tx.all(
        "SELECT (SELECT count(*) FROM sessions), "
        "(SELECT count(*) FROM sessions INDEXED BY sessions_ended WHERE ended_at IS NOT NULL), "
        "(SELECT count(*) FROM routes)"
    )[0]
    sizes = tx.sizes()
    return StoreHealth(
        queue=0, queue_limit=0, commits=0, requests=0, largest_batch=0, wal_limit=0,
        wal_bytes=sizes.log,
        database_bytes=sizes.database,
        free_bytes=sizes.free,
        disk_free_bytes=sizes.disk_free,
        unindexed=tx.search.count_unindexed(tx),
        sessions={"open": total - ended, "ended": ended},
        conversations=conversations,
    )  # fmt: skip
