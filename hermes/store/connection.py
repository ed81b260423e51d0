"""Opening the file: a connection as the store wants it, and a schema that is ours and current."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import apsw

from hermes.errors import StoreBusy, StoreError, StoreFailed, StoreRefused
from hermes.store import file_lock, schema
from hermes.store.conversations import search
from hermes.store.maintenance import cleanup
from hermes.store.transaction import Clock, Transaction

BUSY_TRIES = 5000
CHECKPOINT_PAGES = 1000
ALARMING_PAGES = 16_384  # 64 MiB
BACKUP_STEP = 1024
"""Pages of a backup between two reports of its progress."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told how much is done, of how much."""

log = logging.getLogger(__name__)


def _wait_a_little(tries: int) -> bool:
    """Short waits: SQLite's own grow to 100 ms, in which busier processes pass every time."""
    time.sleep(0.001)
    return tries < BUSY_TRIES


class Database(apsw.Connection):
    """A connection with our pragmas; `log_pages` is the size of the log after the last commit."""

    log_pages = 0
    checkpoint_pages = CHECKPOINT_PAGES
    """The size at which the log is due to be moved into the file."""
    shaken = False
    """Whether SQLite rolled a transaction back by itself since the last one began."""
    fatal: StoreFailed | None = None
    """Why nothing more may be written: after a failed flush, what follows could be lost as well."""

    def __init__(
        self,
        path: Path,
        *,
        readonly: bool = False,
        immutable: bool = False,
        vfs: str | None = None,
    ) -> None:
        flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
        name = str(path)
        if immutable:  # nobody writes: no locks, and no log is looked for
            name, flags = f"file:{quote(name)}?immutable=1", flags | apsw.SQLITE_OPEN_URI
        super().__init__(name, flags=flags, vfs=vfs, statementcachesize=200)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        self.set_busy_handler(_wait_a_little)
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        self.execute("PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 16777216")
        # Checkpoints are ours to start: an error of theirs must not look like one of COMMIT.
        self.set_wal_hook(self._after_commit)
        search.install(self)

    def begin(self) -> None:
        """Begin to write. After a transaction that SQLite ended by itself, first set FTS5 right.

        FTS5 keeps its number of rows in memory, and does not hear of a rollback inside one of its
        own statements: the next commit would write a wrong number for good.
        """
        self._clear()
        if self.shaken:
            self.execute("BEGIN IMMEDIATE")
            try:
                self.execute("INSERT INTO search (search) VALUES ('flush')")
            finally:
                if self.in_transaction:
                    self.execute("ROLLBACK")
            self.shaken = False
        self.execute("BEGIN IMMEDIATE")

    def begin_reading(self) -> None:
        """Begin to read; not after a commit of unknown outcome, of which it might tell half."""
        self._clear()
        self.execute("BEGIN")

    def _clear(self) -> None:
        if self.fatal is not None:
            raise StoreFailed(f"the store has stopped: {self.fatal}") from self.fatal
        self.abandon()

    def abandon(self) -> None:
        """Undo what a Ctrl-C left open, which can hit the undoing itself."""
        if self.in_transaction:
            self.execute("ROLLBACK")

    def close(self, force: bool = False) -> None:
        """Close the file. What goes wrong in that changes nothing that was committed."""
        try:
            super().close(force)
        except apsw.Error as error:
            log.warning("closing the database: %s", error)

    def _after_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    def checkpoint(self) -> None:
        """Move what is in the log into the file, as far as no reader stands in the way."""
        pages, moved = self.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.log_pages = 0 if moved == pages else pages
        self.checkpoint_pages = CHECKPOINT_PAGES + self.log_pages
        if self.log_pages >= ALARMING_PAGES:
            log.warning("a reader that does not end keeps %d pages in the log", self.log_pages)

    @property
    def checkpoint_due(self) -> bool:
        return self.log_pages >= self.checkpoint_pages


def open_database(path: Path, clock: Clock, vfs: str | None = None) -> Database:
    """A connection to a file that is a current Hermes store, or a refusal that changes nothing.

    Call it inside `files.opening`.
    """
    return _open(path, vfs, lambda db, version: _make_current(db, path, clock, version))


def stored_version(path: Path) -> int:
    """The schema version of a file that is there, which is left as it is.

    Call it inside `files.opening`.
    """
    found = []
    _open(path, None, lambda _, version: found.append(version)).close()
    return found[0]


def _open(path: Path, vfs: str | None, prepare: Callable[[Database, int], None]) -> Database:
    file_lock.refuse_old_sqlite(apsw.sqlite_lib_version())
    file_lock.refuse_network_file_system(path)
    fresh = file_lock.create(path)
    # A log that somebody left is read, but not moved into a file that we then refuse.
    leave_log = not fresh and file_lock.has_log(path)
    if not fresh and not leave_log:
        file_lock.refuse_damaged(path)
    try:
        db = Database(path, vfs=vfs)
    except apsw.Error as error:
        raise unreadable(path, error) from error
    try:
        if leave_log:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        version = 0 if fresh else version_of(db, path)
        prepare(db, version)
    except apsw.Error as error:
        db.close()
        raise unreadable(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _make_current(db: Database, path: Path, clock: Clock, version: int) -> None:
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    _use_log(db, path)
    if version < len(schema.MIGRATIONS):
        _migrate(db, path, clock, version)


def unreadable(path: Path, error: apsw.Error) -> StoreError:
    """Why the file could not be opened, in one sentence."""
    match error:
        case apsw.BusyError():
            return StoreBusy(f"{path} is in use by another process; try again")
        case apsw.FullError():
            return StoreRefused(f"the disk is full: {path} was left as it is")
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.ReadOnlyError():
            return StoreRefused(f"{path} cannot be opened: {error}")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreRefused(
                f"{path} is damaged or no SQLite file ({error}); restore a backup, or name "
                "another file"
            )
        case _:
            return StoreRefused(f"{path} cannot be read now: {type(error).__name__}: {error}")


def version_of(db: Database, path: Path) -> int:
    """The schema version of the file, if it is ours and not newer than we are."""
    version, application_id = (int(db.pragma(n)) for n in ("user_version", "application_id"))
    if (application_id, version) == (schema.APPLICATION_ID, len(schema.MIGRATIONS)):
        return version
    tables = len(db.execute("SELECT 1 FROM sqlite_schema").fetchall())
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


def _use_log(db: Database, path: Path) -> None:
    if db.pragma("journal_mode") == "wal":
        return
    if db.pragma("journal_mode", "wal") != "wal":
        raise StoreRefused(f"{path} lies on a file system without shared memory (no WAL)")
    # From the first read on, the log and its index exist.
    db.execute("SELECT 1 FROM sqlite_schema").fetchall()


def _migrate(db: Database, path: Path, clock: Clock, version: int) -> None:
    if version:
        backup(db, path.with_name(f"{path.name}.schema{version}.backup"), replace=True)
    for number, script in enumerate(schema.MIGRATIONS, start=1):
        if number > version:
            _apply(db, number, script, clock)


def _apply(db: Database, number: int, script: str, clock: Clock) -> None:
    """One migration and its number, in one transaction; the last one tidies up as well."""
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(script)
        if number == len(schema.MIGRATIONS):
            tx = Transaction.begin(db, clock)
            cleanup.finalize_orphaned_compression_sessions(tx)
            cleanup.prune_empty_ghost_sessions(tx)
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {number}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def backup(
    db: apsw.Connection, target: Path, *, replace: bool = False, progress: Progress | None = None
) -> Path:
    """Copy the database as it is now, while others go on writing; the copy appears whole."""
    target = target.expanduser()
    if target.exists() and not replace:
        raise StoreRefused(f"{target} exists; name a file that does not")
    if not target.parent.is_dir():
        raise StoreRefused(f"the folder {target.parent} does not exist; create it first")
    partial = target.with_name(f"{target.name}.partial")
    for leftover in (partial, partial.with_name(f"{partial.name}-journal")):
        leftover.unlink(missing_ok=True)
    file_lock.create(partial)
    ours = os.stat(partial).st_ino
    copy = apsw.Connection(str(partial), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        _copy(db, copy, progress or (lambda _done, _all: None))
        # A copy with its log beside it would be easy to move apart.
        copy.execute("PRAGMA journal_mode = DELETE")
    except BaseException:
        copy.close()
        partial.unlink(missing_ok=True)
        raise
    copy.close()
    if os.stat(partial).st_ino != ours:
        raise StoreBusy(f"another backup to {target} is being made; try again")
    os.replace(partial, target)
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return target


def _copy(db: apsw.Connection, copy: apsw.Connection, progress: Progress) -> None:
    # One moment for all steps: without it, every commit of another process would make it begin
    # again at the next step.
    db.execute("BEGIN")
    try:
        db.execute("SELECT 1 FROM sqlite_schema").fetchall()
        with copy.backup("main", db, "main") as job:
            while not job.done:
                job.step(BACKUP_STEP)
                progress(job.page_count - job.remaining, job.page_count)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def vacuum(db: apsw.Connection) -> None:
    """Merge the full text index and give free space back to the disk."""
    db.execute("INSERT INTO search (search) VALUES ('optimize')")
    db.execute("VACUUM")
    with contextlib.suppress(apsw.BusyError):  # a reader: the log is cut later
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
