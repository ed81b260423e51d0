"""`open_store`: the asynchronous store, which a runtime owns."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import apsw
import trio
from msgspec.structs import replace

from hermes.background import cancel, open_background, protected, start_soon
from hermes.config import MAX_WAL_BYTES, AttachmentLimits
from hermes.errors import HermesError, StoreBusy, StoreFailed
from hermes.messages import Attachment, Hooks, Imported, StoredFile, StorePulse, StoreSnapshot
from hermes.store import connection
from hermes.store.actor import MAX_WAITING, SWEEP_INTERVAL, StoreActor
from hermes.store.attachments import rows as attachments, sweep
from hermes.store.conversations.search import unindexed
from hermes.store.files import blob_reading, file_lock, staging
from hermes.store.files.contents import SPARED
from hermes.store.files.guard import FileGuard
from hermes.store.files.runtime_lock import RuntimeLock
from hermes.store.group_commit import read
from hermes.store.hooks import HOOK_TIMEOUT, require_hooks
from hermes.store.maintenance import backups, imports, stats, transfer
from hermes.store.records import live
from hermes.store.transaction import Clock, Work
from hermes.store.verb_kinds import Chunked
from hermes.store.verbs import StoreVerbs
from hermes.store.worker import (
    Connections,
    OpenWorker,
    Worker,
    open_in_thread,
    run_in_thread,
    watch,
)

R = TypeVar("R")
S = TypeVar("S")


class Store(StoreActor, StoreVerbs):
    """The verbs of `SessionStore` as coroutines; those that write are committed together.

    Cancelling a verb cancels the wait. What it writes is on disk entirely or not at all.
    """

    _next_file_sweep: float = -math.inf

    async def run_search(self, work: Work[R]) -> R:
        """Bring the search index up to date, then run work that reads it."""
        if await self.snapshot(unindexed):
            await self.index_pending()
        return await self._read(self._connections.searcher, lambda db: read(db, self._clock, work))

    async def run_chunked(self, chunks: Generator[Work[S], S, R], *, alone: bool = False) -> R:
        """Run each piece of a chunked operation in its own request.

        With `alone`, each has a transaction for itself.
        """
        steps = Chunked(chunks)
        while (work := steps.next()) is not None:
            with steps.counted():
                steps.done(await (self.transact_alone(work) if alone else self.transact(work)))
        return steps.result()

    async def inspect(self) -> StoreSnapshot:
        """Return queue sizes, the sizes of the files, and the chats with undelivered replies."""
        found, seen = await self.browse(stats.snapshot), self.statistics()
        health = replace(
            found.health,
            queue=seen.waiting,
            queue_limit=MAX_WAITING,
            commits=seen.commits,
            requests=seen.requests,
            largest_batch=seen.largest_batch,
            wal_limit=self._connections.writer.db.max_log_pages * connection.PAGE_SIZE,
        )
        return replace(found, health=health)

    async def pulse(self) -> StorePulse:
        """Return what changes from second to second; one transaction that reads open rows only."""
        db, page = self._connections.writer.db, connection.PAGE_SIZE
        counts, (wal, size) = await self.browse(lambda tx: (live.live_counts(tx), stats.files(tx)))
        return StorePulse(
            counts=counts,
            writer=self.statistics(),
            queue_limit=MAX_WAITING,
            wal_bytes=wal,
            wal_limit=db.max_log_pages * page,
            database_bytes=size,
        )

    async def vacuum(self) -> None:
        """Return free space to the file system; writes wait meanwhile."""
        await self.run_alone(backups.vacuum)

    async def backup(self, target: str | os.PathLike[str]) -> Path:
        """Copy the database while it is in use, and return the path of the copy.

        Attached files are copied to a folder next to it, `target.blobs`, by hard links if possible.
        The copy appears when it is complete. Raises `StoreRefused` if the target exists.
        """
        return await self.run_beside(lambda db: backups.backup(db, Path(target)))

    async def export_lines(self, *session_ids: str) -> AsyncGenerator[str]:
        """Yield the lines of an export, with attached files, for `import_sessions`.

        Files are read in pieces. Raises `UnknownSession`, and `StoreError` if the content of a file
        is missing or damaged.
        """
        folder = self._connections.writer.db.blobs
        seen: set[str] = set()
        for session_id in session_ids:
            exported = await self.browse(functools.partial(transfer.export, session_id=session_id))
            lines = transfer.lines_of(folder, exported, seen)
            while (line := await self._in_thread(functools.partial(next, lines, None))) is not None:
                yield line

    async def import_sessions(self, lines: Iterable[str]) -> Imported:
        """Import exported sessions, parents first, one transaction per session.

        All lines are checked before the first session is written; `BadImport` names the first line
        that is invalid. Attached files are staged meanwhile, and discarded if a line is invalid.
        Sessions that exist are skipped, references to unknown parents are dropped, and a second
        compression child of one parent is imported as a `fork`. The lines are read in a thread.
        """
        self._requests.require_open()
        with transfer.Parsed(self._connections.writer.db.blobs) as parsed:
            await self._in_thread(lambda: parsed.parse(lines))
            return await self.run_chunked(imports.import_parsed(parsed))

    async def sweep_once(self) -> list[str]:
        """Do what `StoreActor.sweep_once` does, and delete unused files once an hour."""
        expired = await super().sweep_once()
        if trio.current_time() >= self._next_file_sweep:
            self._next_file_sweep = trio.current_time() + SPARED
            await self.sweep_files()
        return expired

    async def sweep_files(self) -> int:
        """Delete files that nothing names and that are over an hour old. Returns how many."""
        folder = self._connections.writer.db.blobs
        return (await self.run_chunked(sweep.sweep_files(folder), alone=True)).blobs

    async def put_file(
        self,
        attachment: Attachment,
        *,
        session_key: str,
        principal: str | None = None,
        turn_id: int | None = None,
    ) -> StoredFile:
        """Store a file for a conversation; it is on disk when this returns.

        It is deleted after an hour unless a message of the conversation names it. A file that is
        made during a turn is kept until the turn is committed. Raises `AttachmentRefused`.
        """
        self._requests.require_open()
        db = self._connections.writer.db
        contents, limit = db.blobs, db.limits.message_bytes
        if attachment.chunks is None and attachment.file is None:
            staged = await self._in_thread(lambda: staging.stage(contents, attachment, limit))
        else:
            staged = await staging.stage_chunks(contents, attachment, limit, self._in_thread)
        try:
            return await self.transact(
                lambda tx: attachments.add_file(
                    tx,
                    staged,
                    session_key=session_key,
                    name=attachment.file_name,
                    principal=principal,
                    turn_id=turn_id,
                )
            )
        except trio.Cancelled:  # it may have been committed all the same
            with trio.CancelScope(shield=True), suppress(HermesError):
                await self.transact(lambda tx: attachments.remove_file(tx, staged.id))
            raise
        finally:
            staged.discard()

    async def discard_file(self, file_id: str, *, session_key: str) -> bool:
        """Delete a file that nothing names, with its content. Returns whether there was one."""
        discard = functools.partial(
            attachments.discard_file, file_id=file_id, session_key=session_key
        )
        digest = await self.transact(discard)
        if digest is not None:
            await self.transact_alone(functools.partial(sweep.remove_blob, digest=digest))
        return digest is not None

    async def open_file(self, file_id: str, *, session_key: str) -> BlobReader:
        """Return a reader of a file of this conversation. Raises `UnknownFile`."""
        file, digest = await self.get_file(file_id, session_key=session_key)
        folder = self._connections.writer.db.blobs
        return BlobReader(file, functools.partial(folder.read, digest), self._in_thread)

    async def _in_thread(
        self,
        function: Callable[[], R],
        /,
        *,
        may_abandon: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> R:
        """Run a function in a thread, or at once if the store has none."""
        if self._threads:
            return await trio.to_thread.run_sync(
                function, abandon_on_cancel=may_abandon, limiter=limiter
            )
        await trio.lowlevel.checkpoint()
        return function()


class BlobReader:
    """Reads a stored file in pieces. It holds nothing open."""

    def __init__(
        self, file: StoredFile, read: Callable[[int, int], bytes], run: staging.RunInThread
    ) -> None:
        self.file: StoredFile = file
        self._read, self._run = read, run

    async def read(self, offset: int = 0, size: int | None = None) -> bytes:
        """Return bytes from an offset; without a size, all that follow.

        Raises `UnknownFile` if the file was deleted, `StoreError` if its content cannot be read,
        and `ValueError` for a negative offset or size.
        """
        count = self.file.size if size is None else size
        with blob_reading.reading(self.file.id):
            data = await self._run(lambda: self._read(offset, count))
        return blob_reading.require_data(self.file, offset, count, data)


@protected
async def open_store(  # noqa: PLR0913
    path: str | os.PathLike[str],
    *,
    hooks: Hooks | None = None,
    hook_timeout: float = HOOK_TIMEOUT,
    sweep_interval: float = SWEEP_INTERVAL,
    clock: Clock | None = None,
    max_wal_bytes: int = MAX_WAL_BYTES,
    limits: AttachmentLimits | None = None,
    open_worker: OpenWorker = open_in_thread,
    vfs: str | None = None,
) -> AsyncIterator[Store]:
    """Open the store as the one runtime of its file; leaving the block commits what still waits.

    `hooks` maps events to lists of callables, each of which may run for `hook_timeout` seconds.
    Sessions are checked for expiry every `sweep_interval` seconds. Messages are refused while the
    write-ahead log has `max_wal_bytes` or more. `limits` says what may be attached. `open_worker`
    decides where SQL runs: in threads, or inline for tests (`hermes.testing.inline`).

    Raises `StoreInUse` if another runtime owns the file, and `StoreRefused` if it cannot be used as
    a store. Raises `StoreFailed` out of the block if the store cannot go on.
    """
    hooks = hooks or {}
    require_hooks(hooks)
    clock = clock or Clock()
    threads = open_worker is open_in_thread
    real = file_lock.resolve(path)
    had_lock = file_lock.has_lock(real)
    lock = RuntimeLock(real)
    try:
        opened = _open_connections(
            real, clock, open_worker, vfs, had_lock=had_lock, threads=threads
        )
        async with opened as connections, open_background() as writing:
            lock.lock_database()  # it may have been created just now
            connections.writer.db.limit_log(max_wal_bytes // connection.PAGE_SIZE)
            connections.writer.db.limits = limits or AttachmentLimits()
            with ExitStack() as at_end:
                async with open_background() as background:
                    store = Store(
                        connections,
                        clock,
                        hooks,
                        hook_timeout=hook_timeout,
                        hook_threads=threads,
                    )
                    at_end.callback(store.close)  # after the background tasks, whose writes count
                    start_soon(writing, store.write)
                    try:
                        store.start_background(background, sweep_interval)
                        yield store
                    finally:
                        store.stop_hooks()
    finally:
        lock.close()


@protected
async def _open_connections(
    path: Path,
    clock: Clock,
    open_worker: OpenWorker,
    vfs: str | None,
    *,
    had_lock: bool,
    threads: bool,
) -> AsyncIterator[Connections]:
    workers: list[Worker] = []
    async with _watched():
        with file_lock.no_trace(path, had_lock=had_lock):
            first, guard = await _open_first(path, clock, vfs, threads=threads)
        try:
            try:
                for readonly in (False, True, True, True):
                    worker = await open_worker(path, readonly=readonly, vfs=vfs)
                    workers.append(worker)
            except apsw.Error as error:
                raise connection.unreadable(path, error) from error
            finally:
                first.close()
            writer, reader, browser, searcher = workers
            if first.stamp is not None:
                first.stamp.db, writer.db.stamp = writer.db, first.stamp
            yield Connections(writer, reader, browser, searcher, guard)
        finally:
            with trio.CancelScope(shield=True):
                guard.leave()
                for worker in reversed(workers):  # the writer last: it may remove the log
                    await worker.aclose()
                guard.close()


@protected
async def _watched() -> AsyncIterator[None]:
    """Watch the store's threads during the block, even if it is cancelled."""
    until = trio.CancelScope(shield=True)
    async with open_background() as nursery:
        start_soon(nursery, watch, until)
        try:
            yield
        finally:
            cancel(until)


@trio.lowlevel.enable_ki_protection
async def _open_first(
    path: Path, clock: Clock, vfs: str | None, *, threads: bool
) -> tuple[connection.Database, FileGuard]:
    """Open a first connection, which migrates the file, and the guard of the file's locks."""

    def open_it() -> tuple[connection.Database, FileGuard]:
        db, guard = connection.open_guarded(path, clock, vfs)
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
    while (opening := file_lock.Opening(path)).waits:
        if trio.current_time() > deadline:
            raise StoreBusy(f"{path} is being opened by another process; try again")
        await trio.sleep(file_lock.OPENING_PAUSE)
    with opening:
        return await run_in_thread(open_it) if threads else open_it()
