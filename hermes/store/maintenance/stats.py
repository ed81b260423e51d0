"""A look at a store from outside: how it is doing, without disturbing who owns it.

Nothing is created, moved or repaired. It works while a runtime owns the file, after one was killed,
and while nobody has it open.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from hermes.errors import StoreRefused
from hermes.messages import StoreStats
from hermes.store import connection, file_lock, schema
from hermes.store.conversations import outbox
from hermes.store.group_commit import read
from hermes.store.records import usage
from hermes.store.transaction import Clock, Transaction

DAY = 86400.0


def facts(tx: Transaction) -> StoreStats:
    """What waits, what was given up, what this day has cost; cheap enough to be asked often."""
    waiting, oldest = tx.all(
        "SELECT count(*), min(accepted_at) FROM inbox INDEXED BY inbox_open WHERE state = 'open'"
    )[0]
    hooks = tx.all(
        "SELECT count(*) FROM boundaries INDEXED BY boundaries_open WHERE closed_at IS NULL"
    )
    return StoreStats(
        inbox_open=waiting,
        inbox_oldest_seconds=0.0 if oldest is None else max(0.0, tx.now - oldest),
        outbox=tuple(outbox.outbox_facts(tx)),
        hooks_open=hooks[0][0],
        cost_today=usage.spent_today(tx),
    )


def parked(tx: Transaction) -> int:
    """The messages that were begun too often within the last day, and set aside."""
    rows = tx.all(
        "SELECT count(*) FROM inbox INDEXED BY inbox_closed "
        "WHERE closed_at > ? AND state = 'parked'",
        tx.now - DAY,
    )
    count: int = rows[0][0]
    return count


def look(path: Path, clock: Clock | None = None) -> tuple[StoreStats, int]:
    """The facts of the file at `path`, and how many messages were set aside.

    `StoreRefused` in one sentence where it cannot be read.
    """
    path = file_lock.resolve(path)
    if not path.exists():
        raise StoreRefused(f"{path} does not exist; the first start creates it")
    file_lock.refuse_network_file_system(path)
    try:
        db = _open(path)
        try:
            version = connection.version_of(db, path)
            if version < len(schema.MIGRATIONS):
                raise StoreRefused(
                    f"{path} was written by an older Hermes (schema {version}); the next start "
                    "brings it up to date"
                )
            clock = clock or Clock()
            return read(db, clock, facts), read(db, clock, parked)
        finally:
            db.close()
    except apsw.Error as error:
        raise connection.unreadable(path, error) from error


def _open(path: Path) -> connection.Database:
    """With a log beside it as any reader does; without one nobody writes, and SQLite needs none.

    A connection that may only read cannot make or remove a log.
    """
    logged = path.with_name(f"{path.name}-wal").exists()
    return connection.Database(path, readonly=True, immutable=not logged)
