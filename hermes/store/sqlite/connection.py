"""Connections to SQLite: transactions, checkpoints and what became of a commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import apsw

from hermes.config import MAX_WAL_BYTES
from hermes.errors import (
    StoreBusy,
    StoreFailed,
)
from hermes.store.engine import Progress
from hermes.store.sqlite import search
from hermes.store.sqlite.blobs import BlobFolder
from hermes.store.sqlite.copies import backups
from hermes.store.sqlite.errors import translate
from hermes.store.sqlite.stamp import Stamp
from hermes.store.sqlite.transaction import Connection, LenientTransaction, SqliteTransaction
from hermes.store.transaction import Clock, Work

BUSY_TRIES = 5000
CHECKPOINT_PAGES = 1000
MANY_PAGES = 16_384  # 64 MiB
PAGE_SIZE = 4096

log: Final = logging.getLogger(__name__)
R = TypeVar("R")


def _wait_for_lock(tries: int) -> bool:
    """Wait in short steps: SQLite's own grow to 100 ms, so that busier processes always win."""
    time.sleep(0.001)
    return tries < BUSY_TRIES


def _unguarded() -> None: ...


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
    driver_errors: tuple[type[Exception], ...] = (apsw.Error,)
    check: Callable[[], None] = staticmethod(_unguarded)
    """Raises `StoreFailed` if the file was removed or replaced; `FileGuard.check`, if guarded."""
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

    def begin(self, clock: Clock, batch: Sequence[Work[object]]) -> SqliteTransaction:
        """Begin a write transaction; see `engine.Connection.begin`."""
        self.begin_writing()
        return SqliteTransaction.begin(self, clock)

    def begin_writing(self) -> None:
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

    def run_read(self, clock: Clock, work: Work[R]) -> R:
        """Run work that only reads, in one read transaction."""
        try:
            self._require_usable()  # refused after a commit of unknown outcome
            self.execute("BEGIN")
            tx = SqliteTransaction.begin(self, clock)
            try:
                return work(tx)
            finally:
                tx.close()
        except (apsw.Error, UnicodeError) as error:
            return self._read_again(clock, work, error)
        finally:
            self.roll_back()

    def times(self, clock: Clock) -> tuple[float, float]:
        """Return the time of the process."""
        return clock.wall(), clock.steady()

    def _read_again(self, clock: Clock, work: Work[R], error: Exception) -> R:
        """Read with invalid UTF-8 replaced if that was the error, else raise it as ours."""
        if not isinstance(error, UnicodeDecodeError):
            raise translate(error, "nothing was read") from error
        log.warning("a stored text is not valid UTF-8; the invalid bytes are replaced: %s", error)
        tx = LenientTransaction.begin(self, clock)
        try:
            return work(tx)
        except apsw.Error as again:
            raise translate(again, "nothing was read") from again
        finally:
            tx.close()

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

    def recover(self, error: Exception, tries: int, *, alone: bool) -> bool:
        """Note that FTS5 must be reset; an error of SQLite does not go away by itself."""
        self.search_stale = True
        return False

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

    def translate(self, error: Exception, undone: str = "nothing was stored") -> Exception:
        """Return an SQLite error as one of ours; see `translate`."""
        return translate(error, undone)

    def is_search_damage(self, error: BaseException | None) -> bool:
        """Return whether only the search index is damaged, not the database."""
        return search.is_damaged_index(error)

    def vacuum(self) -> None:
        """Merge the search index and return free space to the file system."""
        backups.vacuum(self)

    def backup_to(self, target: Path, progress: Progress | None = None) -> Path:
        """Copy the database while others may write; see `backups.backup`."""
        return backups.backup(self, target, progress=progress)

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
        try:
            self.try_checkpoint()
        except apsw.Error as error:  # committed data is safe; the next checkpoint tries again
            log.debug("%s: checkpoint failed: %s", self.filename, error)

    def try_checkpoint(self) -> None:
        """The same, but raise SQLite's errors."""
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

    def limit_log(self, size: int) -> None:
        """Refuse messages while the WAL file has this number of bytes or more."""
        self.max_log_pages = size // PAGE_SIZE
        self.checkpoint_pages = self._next_checkpoint()

    @property
    def log_limit(self) -> int:
        """The bytes in the WAL file at which messages are refused."""
        return self.max_log_pages * PAGE_SIZE

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
            self.begin_writing()
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
