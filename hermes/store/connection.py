"""Connections: how the file is opened, migrated, checkpointed and backed up."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from hermes.config import MAX_WAL_BYTES
from hermes.errors import (
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from hermes.store import schema
from hermes.store.conversations import search
from hermes.store.files import file_lock
from hermes.store.files.blobs import BlobFolder
from hermes.store.files.guard import FileGuard
from hermes.store.files.problems import RETRY, cannot_open, may_write
from hermes.store.files.stamp import Stamp
from hermes.store.maintenance import backups, cleanup
from hermes.store.transaction import Clock, Connection, Transaction

BUSY_TRIES = 5000
CHECKPOINT_PAGES = 1000
MANY_PAGES = 16_384  # 64 MiB
PAGE_SIZE = 4096

log: Final = logging.getLogger(__name__)


def _wait_for_lock(tries: int) -> bool:
    """Wait in short steps: SQLite's own grow to 100 ms, so that busier processes always win."""
    time.sleep(0.001)
    return tries < BUSY_TRIES


class Database(Connection):
    """A connection to a store's file, with the pragmas and SQL functions that the store needs."""

    log_pages: int = 0
    """The number of pages in the WAL file after the last commit."""
    checkpoint_pages: int = CHECKPOINT_PAGES
    """The number of pages at which the next checkpoint is due."""
    max_log_pages: int = MAX_WAL_BYTES // PAGE_SIZE
    """The number of pages in the WAL file at which messages are refused."""
    search_stale: bool = False
    """Whether SQLite rolled a transaction back by itself, which FTS5 may not have noticed."""
    stamp: Stamp | None = None
    """What this connection writes before each checkpoint, if its process owns the file."""
    fatal: StoreFailed | None = None
    """Why nothing more may be written: after a failed flush, later commits could be lost too."""

    def __init__(
        self,
        path: Path,
        *,
        readonly: bool = False,
        immutable: bool = False,
        vfs: str | None = None,
    ) -> None:
        self.blobs: BlobFolder = BlobFolder(path)
        flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
        name = str(path)
        if immutable:  # nobody writes: SQLite takes no locks and looks for no WAL file
            name, flags = f"file:{quote(name)}?immutable=1", flags | apsw.SQLITE_OPEN_URI
        super().__init__(name, flags=flags, vfs=vfs, statementcachesize=200)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        self.set_busy_handler(_wait_for_lock)
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        # Plans do not depend on bound values: SQLite would compile joins again for new values.
        self.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.execute("PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 16777216")
        # No automatic checkpoints: their errors would look like errors of COMMIT.
        self.set_wal_hook(self._after_commit)
        search.install(self)

    def begin(self) -> None:
        """Begin a write transaction. Raises `StoreBusy` if another process does not let go."""
        try:
            if self.fatal or self.in_transaction or self.search_stale:
                self._recover()
            self.execute("BEGIN IMMEDIATE")
        except apsw.BusyError as error:
            raise translate(error) from error

    def _recover(self) -> None:
        self._require_usable()
        if self.search_stale:
            self._reset_search()

    def _reset_search(self) -> None:
        """Reset FTS5 after SQLite has rolled a transaction back by itself.

        FTS5 keeps its number of rows in memory and does not notice a rollback inside one of its own
        statements. The next commit would store a wrong number.
        """
        self.execute("BEGIN IMMEDIATE")
        try:
            self.execute("INSERT INTO search (search) VALUES ('flush')")
            self.execute("INSERT INTO stems (stems) VALUES ('flush')")
        finally:
            self.roll_back()
        self.search_stale = False

    def begin_reading(self) -> None:
        """Begin a read transaction; refused after a commit of unknown outcome."""
        self._require_usable()
        self.execute("BEGIN")

    def _require_usable(self) -> None:
        if self.fatal is not None:
            raise StoreFailed(f"the store has stopped: {self.fatal}") from self.fatal
        if self.in_transaction:  # left open by Ctrl-C
            self.roll_back()

    def commit(self) -> None:
        """Commit the transaction.

        Raises an SQLite error if it was certainly not committed, and `StoreFailed` if that cannot
        be determined.
        """
        try:
            self.execute("COMMIT")
        except (apsw.ConstraintError, apsw.FullError, apsw.BusyError):
            raise
        except apsw.Error as error:
            unknown = f"it cannot be determined whether the last commit is on disk ({error})"
            self.fatal = StoreFailed(f"{unknown}; open the store again to see")
            raise self.fatal from error

    def flushes(self, value: bool) -> None:
        """Set whether a commit waits until its data is on the disk; outside of transactions."""
        self.execute(f"PRAGMA synchronous = {'FULL' if value else 'NORMAL'}")

    def roll_back(self) -> None:
        """Roll back the transaction, if there is one: Ctrl-C can also interrupt a rollback."""
        if not self.in_transaction:
            return
        try:
            self.execute("ROLLBACK")
        except apsw.Error as error:
            self.fatal = StoreFailed(f"the database cannot be rolled back: {error}")
            raise self.fatal from error

    def close(self, force: bool = False) -> None:
        """Close the file. Errors are logged: they cannot affect committed data."""
        try:
            if self.stamp is not None:
                self.stamp.before_close()
            super().close(force)
        except apsw.Error as error:
            log.warning("closing the database: %s", error)

    def _after_commit(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    def checkpoint(self) -> None:
        """Move the WAL file's pages into the database, as far as no reader still needs them."""
        if self.stamp is not None and not self.stamp.pending:
            self._write_stamp(self.stamp)
        obstacle = "another process reads the database in a transaction that does not end"
        try:
            pages, moved = self.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self.log_pages = 0 if moved == pages else pages
            if self.stamp is not None and moved == pages:
                self.stamp.settle()
        except apsw.Error as error:
            obstacle = f"it cannot be moved into the database ({error})"
            raise
        finally:
            self._bound_log(obstacle)

    def limit_log(self, pages: int) -> None:
        """Refuse messages while the WAL file has this number of pages or more."""
        self.max_log_pages = pages
        self.checkpoint_pages = self._next_checkpoint()

    def _bound_log(self, obstacle: str) -> None:
        """Decide when the next checkpoint is due, and whether messages are accepted until then."""
        if self.log_pages < self.max_log_pages:
            self.checkpoint_pages = self._next_checkpoint()
            self.refusal = None
            if self.log_pages >= MANY_PAGES:
                log.warning("a long-running reader keeps %d pages in the WAL file", self.log_pages)
            return
        self.checkpoint_pages = 0  # at each commit, to notice when the reader has ended
        size = self.log_pages * PAGE_SIZE // 2**20
        refusal = f"the write-ahead log has {size} MiB, because {obstacle}"
        if self.refusal is None:
            log.error("%s; no message is accepted until then", refusal)
        self.refusal = f"{refusal}; nothing was stored, try again later"

    def _next_checkpoint(self) -> int:
        """Return the number of pages at which to try again: at once until the file has a stamp."""
        unsettled = self.stamp is not None and not self.stamp.settled
        step = 0 if unsettled and self.log_pages < MANY_PAGES else CHECKPOINT_PAGES
        return min(self.log_pages + step, self.max_log_pages)

    def _write_stamp(self, stamp: Stamp) -> None:
        try:
            self.begin()
            stamp.write(self)
            self.commit()
        except (apsw.Error, StoreBusy) as error:  # the last stamp stays valid
            log.debug("the stamp was not renewed: %s", error)
            self.roll_back()
        else:
            stamp.pending = True

    @property
    def checkpoint_due(self) -> bool:
        """Whether the WAL file is large enough for a checkpoint."""
        return self.log_pages >= self.checkpoint_pages


def open_database(path: Path, clock: Clock, vfs: str | None = None) -> Database:
    """Open a store's file; create it if it does not exist, migrate it if its schema is older.

    Call it inside of `file_lock.Opening`. Raises `StoreRefused` and leaves the file as it is if it
    cannot be used.
    """
    return _open(path, vfs, lambda db, version: _make_current(db, path, clock, version))


def open_guarded(path: Path, clock: Clock, vfs: str | None = None) -> tuple[Database, FileGuard]:
    """Open a store's file as `open_database` does, with the guard of its locks."""
    db = open_database(path, clock, vfs)
    try:
        return db, FileGuard(path)
    except OSError as error:
        db.close()
        raise cannot_open(path, error) from error


def stored_version(path: Path) -> int:
    """Return the schema version of an existing file, without migrating it.

    Call it inside of `file_lock.Opening`.
    """
    found = []
    _open(path, None, lambda _, version: found.append(version)).close()
    return found[0]


def _open(path: Path, vfs: str | None, prepare: Callable[[Database, int], None]) -> Database:
    file_lock.refuse_old_sqlite(apsw.sqlite_lib_version())
    file_lock.refuse_network_file_system(path)
    fresh = file_lock.create(path)
    # If a process left a WAL file, read it, but do not move it into a file that is then refused.
    keep_wal = not fresh and file_lock.has_wal(path)
    if not fresh and not keep_wal:
        file_lock.refuse_damaged(path)
    try:
        db = Database(path, vfs=vfs)
    except apsw.Error as error:
        raise unreadable(path, error) from error
    try:
        if keep_wal:
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
    _use_wal(db, path)
    if version < len(schema.MIGRATIONS):
        _migrate(db, path, clock, version)


def unreadable(path: Path, error: apsw.Error) -> StoreError:
    """Return the error for a file that could not be opened, in one sentence."""
    temporary = isinstance(error, apsw.IOError | apsw.NoMemError)
    if temporary or (isinstance(error, apsw.CantOpenError) and may_write(path)):
        kind = type(error).__name__
        return StoreUnavailable(f"{path} cannot be opened now: {kind}: {error}; {RETRY}")
    match error:
        case apsw.BusyError():
            return StoreBusy(f"{path} is in use by another process; try again")
        case apsw.FullError():
            return StoreUnavailable(f"the disk is full; {path} was left as it is; {RETRY}")
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.ReadOnlyError():
            return StoreRefused(f"{path} cannot be opened: {error}")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreRefused(
                f"{path} is damaged or not an SQLite file ({error}); restore a backup, or choose "
                "another file"
            )
        case _:
            return StoreRefused(f"{path} cannot be read now: {type(error).__name__}: {error}")


def translate(error: Exception, undone: str = "nothing was stored") -> Exception:
    """Return an SQLite error as one of ours, and any other error as it is.

    Texts are stored with lone surrogates replaced, but an id with one would become another id.
    """
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"another process holds the database; {undone}, try again")
        case apsw.FullError():
            return StoreFull(f"the disk is full; {undone}, try again when there is room")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreFailed(f"the database is damaged: {error}")
        case apsw.Error():
            return StoreError(f"{undone}: {type(error).__name__}: {error}")
        case UnicodeEncodeError():
            shown = f"{error.object[:50]!r}"
            return ValueError(f"ids, keys and names cannot have lone surrogates: {shown}; {undone}")
        case _:
            return error


def version_of(db: Database, path: Path) -> int:
    """Return the schema version of the file; refuse other programs' files and newer versions."""
    version, application_id = (int(db.pragma(n)) for n in ("user_version", "application_id"))
    if (application_id, version) == (schema.APPLICATION_ID, len(schema.MIGRATIONS)):
        return version
    tables = len(db.execute("SELECT 1 FROM sqlite_schema").fetchall())
    if (application_id, version, tables) == (0, 0, 0):
        return 0
    if application_id != schema.APPLICATION_ID:
        raise StoreRefused(f"{path} is a database of another program; choose another file")
    if version > len(schema.MIGRATIONS):
        raise StoreRefused(
            f"{path} was written by a newer Hermes (schema {version}, this one knows "
            f"{len(schema.MIGRATIONS)}); update Hermes"
        )
    return version


def _use_wal(db: Database, path: Path) -> None:
    if db.pragma("journal_mode") == "wal":
        return
    if db.pragma("journal_mode", "wal") != "wal":
        raise StoreRefused(f"{path} is on a file system without shared memory, which WAL needs")
    # The first read creates the WAL file and its index.
    db.execute("SELECT 1 FROM sqlite_schema").fetchall()


def _migrate(db: Database, path: Path, clock: Clock, version: int) -> None:
    if version:
        # Without attached files: a migration changes none of them.
        backups.backup(db, path.with_name(f"{path.name}.schema{version}.backup"), replace=True)
    # One transaction for all steps: if one of them fails, the old version can still open the file.
    db.execute("BEGIN IMMEDIATE")
    try:
        version = int(db.pragma("user_version"))  # another process may just have migrated it
        for script in schema.MIGRATIONS[version:]:
            db.execute(script)
        tx = Transaction.begin(db, clock)
        cleanup.finalize_orphaned_compression_sessions(tx)
        cleanup.prune_empty_ghost_sessions(tx)
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS)}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    if 0 < version < len(schema.MIGRATIONS):
        log.info("migrated the database from schema %d to %d", version, len(schema.MIGRATIONS))
