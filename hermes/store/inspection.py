"""Read the statistics of a file without owning it; safe while a runtime does.

Nothing is created, migrated or repaired. This also works after a runtime was killed.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from hermes.errors import StoreRefused
from hermes.messages import StoreStats
from hermes.store import connection, schema
from hermes.store.files import file_lock
from hermes.store.group_commit import read
from hermes.store.maintenance import stats
from hermes.store.transaction import Clock


def read_stats(path: Path, clock: Clock | None = None) -> tuple[StoreStats, int]:
    """Return the statistics of the file at `path`, and how many messages were parked.

    Raises `StoreRefused` if the file cannot be read.
    """
    path = file_lock.resolve(path)
    if not path.exists():
        raise StoreRefused(f"{path} does not exist; it is created at the first start")
    file_lock.refuse_network_file_system(path)
    try:
        db = _open(path)
        try:
            version = connection.version_of(db, path)
            if version < len(schema.MIGRATIONS):
                raise StoreRefused(
                    f"{path} was written by an older Hermes (schema {version}); it is migrated at "
                    "the next start"
                )
            clock = clock or Clock()
            return read(db, clock, stats.facts), read(db, clock, stats.count_parked)
        finally:
            db.close()
    except apsw.Error as error:
        raise connection.unreadable(path, error) from error


def _open(path: Path) -> connection.Database:
    """Open the file read-only, without creating or removing a WAL file.

    If there is no WAL file, nobody is writing, and the file is opened as immutable.
    """
    has_wal = path.with_name(f"{path.name}-wal").exists()
    return connection.Database(path, readonly=True, immutable=not has_wal)
