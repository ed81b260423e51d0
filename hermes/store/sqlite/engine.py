"""How the store opens an SQLite file: as the one runtime of it, or beside one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import apsw
import trio

from hermes.background import protected
from hermes.config import MAX_WAL_BYTES
from hermes.errors import StoreBusy, StoreFailed
from hermes.store.cluster.alone import join_nobody
from hermes.store.engine import Connection, Connections, OpenWorker, Worker
from hermes.store.files.problems import cannot_open
from hermes.store.sqlite import errors, file_lock
from hermes.store.sqlite.connection import Database
from hermes.store.sqlite.guard import FileGuard
from hermes.store.sqlite.opening import open_database
from hermes.store.sqlite.runtime_lock import RuntimeLock
from hermes.store.transaction import Clock
from hermes.store.worker import open_in_thread, run_in_thread, watched


class SqliteEngine:
    """The engine for one SQLite file, which is created if it does not exist."""

    def __init__(
        self,
        path: Path,
        *,
        max_wal_bytes: int | None = None,
        open_worker: OpenWorker | None = None,
        vfs: str | None = None,
    ) -> None:
        self._path = file_lock.resolve(path)
        self.path: Path | None = self._path
        self.label: str = str(self._path)
        self.threads: bool = open_worker is None or open_worker is open_in_thread
        self._max_wal_bytes = MAX_WAL_BYTES if max_wal_bytes is None else max_wal_bytes
        self._open_worker: OpenWorker = open_worker or open_in_thread
        self._vfs = vfs

    @contextmanager
    def connect(self, clock: Clock) -> Iterator[Connection]:
        """Open one connection, while a runtime may own the file."""
        had_lock = file_lock.has_lock(self._path)
        with file_lock.no_trace(self._path, had_lock=had_lock), file_lock.wait_opening(self._path):
            db, guard = self._open_guarded(clock)
        try:
            yield db
        finally:
            guard.leave()
            db.close()
            guard.close()

    @protected
    async def open(self, clock: Clock) -> AsyncIterator[Connections]:
        """Open the connections of the one runtime of the file."""
        had_lock = file_lock.has_lock(self._path)
        lock = RuntimeLock(self._path)
        try:
            async with self._open_connections(clock, had_lock=had_lock) as connections:
                lock.lock_database()  # it may have been created just now
                yield connections
        finally:
            lock.close()

    def _open_guarded(self, clock: Clock) -> tuple[Database, FileGuard]:
        """Open a connection, which migrates the file, and the guard of the file's locks."""
        db = open_database(self._path, clock, self._vfs)
        try:
            guard = FileGuard(self._path)
        except OSError as error:
            db.close()
            raise cannot_open(self._path, error) from error
        db.check = guard.check
        return db, guard

    @protected
    async def _open_connections(
        self, clock: Clock, *, had_lock: bool
    ) -> AsyncIterator[Connections]:
        workers: list[Worker] = []
        async with watched():
            with file_lock.no_trace(self._path, had_lock=had_lock):
                first, guard = await self._open_first(clock)
            try:
                try:
                    for readonly in (False, True, True, True):
                        connect = partial(Database, self._path, readonly=readonly, vfs=self._vfs)
                        workers.append(await self._open_worker(connect, readonly=readonly))
                except apsw.Error as error:
                    raise errors.unreadable(self._path, error) from error
                finally:
                    first.close()
                writer, reader, browser, searcher = workers
                self._prepare_writer(writer.db, first, guard)
                check = guard.check_files
                yield Connections(writer, reader, browser, searcher, check, join_nobody)
            finally:
                with trio.CancelScope(shield=True):
                    guard.leave()
                    for worker in reversed(workers):  # the writer last: it may remove the log
                        await worker.aclose()
                    guard.close()

    def _prepare_writer(self, writer: Connection, first: Database, guard: FileGuard) -> None:
        assert isinstance(writer, Database)
        writer.check = guard.check
        if first.stamp is not None:
            first.stamp.db, writer.stamp = writer, first.stamp
        writer.limit_log(self._max_wal_bytes)  # the first checkpoint is due at once with a stamp

    @trio.lowlevel.enable_ki_protection
    async def _open_first(self, clock: Clock) -> tuple[Database, FileGuard]:
        """Open a first connection, which migrates the file, and the guard of the file's locks."""

        def open_it() -> tuple[Database, FileGuard]:
            db, guard = self._open_guarded(clock)
            try:
                with suppress(apsw.Error, StoreFailed):  # it is tried again at the next checkpoint
                    db.stamp = guard.new_stamp(db)
                    db.checkpoint()
            except BaseException:  # such as a `MemoryError`: it may hold a lock
                db.close()
                guard.close()
                raise
            return db, guard

        deadline = trio.current_time() + file_lock.OPENING_SECONDS
        while (opening := file_lock.Opening(self._path)).waits:
            if trio.current_time() > deadline:
                raise StoreBusy(f"{self._path} is being opened by another process; try again")
            await trio.sleep(file_lock.OPENING_PAUSE)
        with opening:
            return await run_in_thread(open_it) if self.threads else open_it()
