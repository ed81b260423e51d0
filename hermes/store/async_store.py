"""`open_store`: the asynchronous store, which a runtime owns."""

from __future__ import annotations

import math
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio
from msgspec.structs import replace

from hermes.background import open_background, protected, start_soon
from hermes.config import AttachmentLimits
from hermes.errors import HermesError, NotOwner
from hermes.messages import (
    Attachment,
    Claim,
    Hooks,
    Imported,
    StoredFile,
    StorePulse,
    StoreSnapshot,
)
from hermes.store.actor import MAX_WAITING, SWEEP_INTERVAL, StoreActor
from hermes.store.attachments import rows as attachments, sweep
from hermes.store.choosing import engine_of
from hermes.store.cluster.claims import Fenced
from hermes.store.cluster.roles import Acting
from hermes.store.conversations.search import unindexed
from hermes.store.copying.sides import require_not_moved
from hermes.store.engine import OpenWorker
from hermes.store.files import blob_reading, staging
from hermes.store.files.contents import SPARED
from hermes.store.hooks import HOOK_TIMEOUT, require_hooks
from hermes.store.maintenance import imports, stats, transfer
from hermes.store.records import live
from hermes.store.transaction import Clock, Work
from hermes.store.verb_kinds import Chunked
from hermes.store.verbs import StoreVerbs

R = TypeVar("R")
S = TypeVar("S")


class Store(StoreActor, StoreVerbs):
    """The verbs of `SessionStore` as coroutines; those that write are committed together.

    Cancelling a verb cancels the wait. What it writes is on disk entirely or not at all.
    """

    _next_file_sweep: float = -math.inf

    def held(self, claim: Claim | None, on_lost: Callable[[], None]) -> Store:
        """Return the verbs for the actor of one conversation, which this node has claimed.

        If another node has taken it since, they change nothing, call `on_lost` and raise
        `NotOwner`. A store that one process has for itself returns itself.
        """
        if claim is not None:
            return _HeldStore(
                self, partial(Fenced, session_key=claim.session_key, claim=claim), on_lost
            )
        if self.cluster.node:
            raise NotOwner("a conversation is served by the node that has claimed it")
        return self

    def acting(self, role: str) -> Store:
        """Return the verbs for what runs as a role on this node.

        If another node has taken the role since, they change nothing and raise `NotOwner`.
        """
        claim = self.cluster.claim_of(role)
        return self if claim is None else _HeldStore(self, partial(Acting, claim=claim), _nothing)

    async def run_search(self, work: Work[R]) -> R:
        """Bring the search index up to date, then run work that reads it."""
        if await self.snapshot(unindexed):
            await self.index_pending()
        searcher = self._connections.searcher
        return await self._read(searcher, lambda db: db.run_read(self._clock, work))

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
            wal_limit=self._connections.writer.db.log_limit,
        )
        return replace(found, health=health)

    async def pulse(self) -> StorePulse:
        """Return what changes from second to second; one transaction that reads open rows only."""
        counts, sizes = await self.browse(lambda tx: (live.live_counts(tx), tx.sizes()))
        return StorePulse(
            counts=counts,
            writer=self.statistics(),
            queue_limit=MAX_WAITING,
            wal_bytes=sizes.log,
            wal_limit=self._connections.writer.db.log_limit,
            database_bytes=sizes.database,
        )

    async def vacuum(self) -> None:
        """Return free space to the file system; writes wait meanwhile."""
        await self.run_alone(lambda db: db.vacuum())

    async def backup(self, target: str | os.PathLike[str]) -> Path:
        """Copy the database while it is in use, and return the path of the copy.

        Attached files are copied to a folder next to it, `target.blobs`, by hard links if possible.
        The copy appears when it is complete. Raises `StoreRefused` if the target exists.
        """
        return await self.run_beside(lambda db: db.backup_to(Path(target)))

    async def export_lines(self, *session_ids: str) -> AsyncGenerator[str]:
        """Yield the lines of an export, with attached files, for `import_sessions`.

        Files are read in pieces. Raises `UnknownSession`, and `StoreError` if the content of a file
        is missing or damaged.
        """
        folder = self._connections.writer.db.blobs
        seen: set[str] = set()
        for session_id in session_ids:
            exported = await self.browse(partial(transfer.export, session_id=session_id))
            lines = transfer.lines_of(folder, exported, seen)
            while (line := await self._in_thread(partial(next, lines, None))) is not None:
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
        discard = partial(attachments.discard_file, file_id=file_id, session_key=session_key)
        digest = await self.transact(discard)
        if digest is not None:
            await self.transact_alone(partial(sweep.remove_blob, digest=digest))
        return digest is not None

    async def open_file(self, file_id: str, *, session_key: str) -> BlobReader:
        """Return a reader of a file of this conversation. Raises `UnknownFile`."""
        file, digest = await self.get_file(file_id, session_key=session_key)
        folder = self._connections.writer.db.blobs
        return BlobReader(file, partial(folder.read, digest), self._in_thread)

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


class _HeldStore(Store):
    """The verbs under a claim: each that writes is fenced by it."""

    def __init__(
        self, store: Store, fence: Callable[[Work[Any]], Work[Any]], on_lost: Callable[[], None]
    ) -> None:
        self._whole = store
        self._fence = fence
        self._on_lost = on_lost

    def __getattr__(self, name: str) -> Any:  # what `Store.__init__` sets
        return getattr(self._whole, name)

    def transact(self, work: Work[R]) -> Coroutine[object, object, R]:
        return self._fenced(self._whole.transact, work)

    def transact_unflushed(self, work: Work[R]) -> Coroutine[object, object, R]:
        return self._fenced(self._whole.transact_unflushed, work)

    def transact_deferred(self, work: Work[R]) -> Coroutine[object, object, R]:
        return self._fenced(self._whole.transact_deferred, work)

    def transact_alone(self, work: Work[R]) -> Coroutine[object, object, R]:
        return self._fenced(self._whole.transact_alone, work)

    async def _fenced(
        self, run: Callable[[Work[R]], Coroutine[object, object, R]], work: Work[R]
    ) -> R:
        try:
            return await run(self._fence(work))
        except NotOwner:
            self._on_lost()
            raise


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
    max_wal_bytes: int | None = None,
    limits: AttachmentLimits | None = None,
    force: bool = False,
    open_worker: OpenWorker | None = None,
    vfs: str | None = None,
) -> AsyncIterator[Store]:
    """Open the store as a runtime; leaving the block commits what still waits.

    `path` is the path of an SQLite file, or a URL of PostgreSQL (`postgresql://…`). `hooks` maps
    events to lists of callables, each of which may run for `hook_timeout` seconds. Sessions are
    checked for expiry every `sweep_interval` seconds. `limits` says what may be attached. With
    `force`, a database is opened that was moved to another one.

    `open_worker` decides where SQL runs: in threads, or inline for tests (`hermes.testing.inline`).
    For SQLite only: messages are refused while the write-ahead log has `max_wal_bytes` or more.
    `vfs` is the name of SQLite's interface to the file system.

    Raises `StoreInUse` if another runtime owns the file, and `StoreRefused` if it cannot be used as
    a store. Raises `StoreFailed` out of the block if the store cannot go on.
    """
    hooks = hooks or {}
    require_hooks(hooks)
    clock = clock or Clock()
    engine = engine_of(path, max_wal_bytes=max_wal_bytes, open_worker=open_worker, vfs=vfs)
    async with engine.open(clock) as connections, open_background() as writing:
        if not force:
            await connections.reader.run(lambda db: db.run_read(clock, require_not_moved))
        connections.writer.db.limits = limits or AttachmentLimits()
        with ExitStack() as at_end:
            store = Store(
                connections,
                clock,
                hooks,
                hook_timeout=hook_timeout,
                hook_threads=engine.threads,
            )
            at_end.callback(store.close)  # after the background tasks, whose writes count
            start_soon(writing, store.write)
            async with connections.join(store) as store.cluster, open_background() as background:
                try:
                    store.start_background(background, sweep_interval)
                    yield store
                finally:
                    store.stop_hooks()


def _nothing() -> None: ...
