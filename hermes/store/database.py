"""Opening the file: a connection as the store wants it, and a schema that is ours and current."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from hermes.errors import StoreBusy, StoreRefused
from hermes.store import files, maintenance, schema, search
from hermes.store.tx import Clock, Tx

BUSY_MS = 5000
CHECKPOINT_PAGES = 1000
_OPENING_SECONDS = 10.0
_R = TypeVar("_R")


class Database(apsw.Connection):
    """A connection with our pragmas; `log_pages` is the size of the log after the last commit."""

    log_pages = 0

    def __init__(self, path: Path, *, readonly: bool = False, vfs: str | None = None) -> None:
        flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
        super().__init__(str(path), flags=flags, vfs=vfs, statementcachesize=200)
        self.set_busy_timeout(BUSY_MS)
        self.execute("PRAGMA foreign_keys = ON")
        self.execute("PRAGMA synchronous = FULL")
        self.execute("PRAGMA journal_size_limit = 16777216")
        # Checkpoints are ours to start: an error of theirs must not look like one of COMMIT.
        self.set_wal_hook(self._after_commit)
        search.install(self)

    def _after_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    def checkpoint(self) -> None:
        """Move what is in the log into the file, as far as no reader stands in the way."""
        self.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.log_pages = 0


def prepare(path: Path, clock: Clock, vfs: str | None = None) -> None:
    """Make sure that the file is a current Hermes store, or refuse it and leave it as it is."""
    files.refuse_old_sqlite(apsw.sqlite_lib_version())
    files.refuse_network_file_system(path)
    fresh = files.create(path)
    version = 0 if fresh else _inspect(path, vfs)
    if version < len(schema.MIGRATIONS):
        _retried(path, lambda: _migrate(path, clock, version, vfs))


def _retried(path: Path, work: Callable[[], _R]) -> _R:
    """Changing to WAL and migrating can meet another process that does the same: wait for it."""
    give_up = time.monotonic() + _OPENING_SECONDS
    while True:
        try:
            return work()
        except apsw.BusyError as error:
            if time.monotonic() > give_up:
                raise StoreBusy(f"{path} is being opened by another process; try again") from error
            time.sleep(0.01)


def _inspect(path: Path, vfs: str | None) -> int:
    """The schema version of an existing file; refuses what is not ours, without writing to it."""
    try:
        version, application_id, tables = _retried(path, lambda: _identity(path, vfs))
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError, apsw.IOError) as error:
        raise StoreRefused(
            f"{path} is damaged or no SQLite file ({error}); restore a backup, or name another file"
        ) from error
    except (apsw.CantOpenError, apsw.PermissionsError, apsw.ReadOnlyError) as error:
        raise StoreRefused(f"{path} cannot be opened: {error}") from error
    if (application_id, version, tables) == (0, 0, 0):
        return 0
    if application_id != schema.APPLICATION_ID:
        raise StoreRefused(f"{path} is a database of another program; name another file")
    if version > len(schema.MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by a newer Hermes (schema {version}, this one knows "
            f"{len(schema.MIGRATIONS)}); update Hermes"
        )
    return version


def _identity(path: Path, vfs: str | None) -> tuple[int, int, int]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    try:
        db.set_busy_timeout(BUSY_MS)
        version, application_id, pages, page_size = (
            int(db.pragma(name))
            for name in ("user_version", "application_id", "page_count", "page_size")
        )
        tables = len(db.execute("SELECT 1 FROM sqlite_schema").fetchall())
    finally:
        db.close()
    if not Path(f"{path}-wal").exists() and os.stat(path).st_size < pages * page_size:
        raise apsw.CorruptError("the file is shorter than it says")
    return version, application_id, tables


def _migrate(path: Path, clock: Clock, version: int, vfs: str | None) -> None:
    db = Database(path, vfs=vfs)
    try:
        if db.pragma("journal_mode", "wal") != "wal":
            raise StoreRefused(f"{path} lies on a file system without shared memory (no WAL)")
        if version:
            backup(db, path.with_name(f"{path.name}.schema{version}.backup"), replace=True)
        for number, script in enumerate(schema.MIGRATIONS, start=1):
            _apply(db, number, script)
        if version:
            _tidy(db, clock)
    except apsw.FullError as error:
        raise StoreRefused(f"the disk is full: {path} keeps its schema {version}") from error
    finally:
        db.close()


def _apply(db: Database, number: int, script: str) -> None:
    """One migration and its number, in one transaction; nothing where another process was here."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if db.pragma("user_version") < number:
            db.execute(script)
            db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _tidy(db: Database, clock: Clock) -> None:
    """Repair, once, what earlier versions left behind."""
    with db:
        tx = Tx.begin(db, clock)
        maintenance.finalize_orphaned_compression_sessions(tx)
        maintenance.prune_empty_ghost_sessions(tx)


def backup(db: apsw.Connection, target: Path, *, replace: bool = False) -> Path:
    """Copy the database as it is now, while others go on writing; the copy appears whole."""
    target = target.expanduser()
    if target.exists() and not replace:
        raise StoreRefused(f"{target} exists; name a file that does not")
    if not target.parent.is_dir():
        raise StoreRefused(f"the folder {target.parent} does not exist; create it first")
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    files.create(partial)
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        # One step: in several, every commit of another process would make it begin again.
        with copy.backup("main", db, "main") as job:
            job.step(-1)
        # A copy with its log beside it would be easy to move apart.
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
    os.replace(partial, target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return target


def vacuum(db: apsw.Connection) -> None:
    """Merge the full text index and give free space back to the disk."""
    db.execute("INSERT INTO search (search) VALUES ('optimize')")
    db.execute("VACUUM")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
