"""Read a file without owning it; safe while a runtime does.

Nothing is created, migrated or repaired. This also works after a runtime was killed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import apsw

from hermes.errors import StoreRefused
from hermes.messages import StoreStats
from hermes.store.maintenance import stats
from hermes.store.sqlite import errors, file_lock, opening, schema
from hermes.store.sqlite.blobs import BlobFolder
from hermes.store.sqlite.connection import Database
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
            version = opening.version_of(db, path)
            if version < len(schema.MIGRATIONS):
                raise StoreRefused(
                    f"{path} was written by an older Hermes (schema {version}); it is migrated at "
                    "the next start"
                )
            clock = clock or Clock()
            return db.run_read(clock, stats.facts), db.run_read(clock, stats.count_parked)
        finally:
            db.close()
    except apsw.Error as error:
        raise errors.unreadable(path, error) from error


def _open(path: Path) -> Database:
    """Open the file read-only, without creating or removing a WAL file.

    If there is no WAL file, nobody is writing, and the file is opened as immutable.
    """
    has_wal = path.with_name(f"{path.name}-wal").exists()
    return Database(path, readonly=True, immutable=not has_wal)


def open_unchanged(path: Path, stack: ExitStack) -> Database:
    """Open the file without creating, changing or removing any file beside it.

    If the WAL file has no index, a copy is opened, which the stack removes.
    """
    try:
        return _connect_to(path, stack)
    except apsw.Error as error:
        raise errors.unreadable(path, error) from error


def _connect_to(path: Path, stack: ExitStack) -> Database:
    # The stack closes the connection before it removes the copy.
    def opened(open_: Callable[[], Database]) -> Database:
        db = open_()
        stack.callback(db.close)
        db.execute("SELECT 1 FROM sqlite_schema").fetchall()  # fails now if it cannot be read
        return db

    if not file_lock.has_wal(path):  # nobody is writing
        return opened(lambda: Database(path, readonly=True, immutable=True))
    try:
        return opened(lambda: Database(path, readonly=True))
    except (apsw.CantOpenError, apsw.ReadOnlyError):  # the index of the WAL file is missing
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-store-")))
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", folder / f"{path.name}{suffix}")
        db = opened(lambda: Database(folder / path.name))
        db.blobs = BlobFolder(path)
        return db


def sqlite_version() -> str:
    """Return the version of SQLite."""
    return apsw.sqlite_lib_version()
