"""The store actor: the only writer of the file, which commits many requests at once.

A request is queued, committed together with all others that wait, and answered after COMMIT.
Cancelling a caller affects no other request; its own is committed entirely or not at all. Beside
the writer, background tasks update the search index, expire sessions and deliver boundaries to the
hooks. Reads use separate connections and never wait for a write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeVar

import attrs
import trio

from hermes.actors.kernel.deferred import Deferred
from hermes.actors.kernel.mailbox import Mailbox, Request, serve
from hermes.background import start_soon, until_memory
from hermes.errors import ActorStopped, Overloaded, StoreError, StoreFailed
from hermes.forks import FORKED, watch_forks
from hermes.messages import Accepted, Boundary, Hooks, OutboxRow, StoreStatistics, Transcript
from hermes.protocols.cluster import HOOKS, INDEX, SWEEP, Cluster
from hermes.store.conversations import boundaries, messages, routes, search
from hermes.store.engine import Connection, Connections, Worker
from hermes.store.group_commit import (
    Group,
    commit_group,
    commit_one,
    commit_unflushed,
    run_outside,
)
from hermes.store.hooks import HookRunner
from hermes.store.maintenance import cleanup
from hermes.store.transaction import Clock, Transaction, Work

log: Final = logging.getLogger(__name__)
R = TypeVar("R")

MAX_BATCH = 256
MAX_WAITING = 10_000
INDEX_DELAY = 0.2
SWEEP_INTERVAL = 60.0
RETRY_SECONDS = 1.0
_TEMPORARY = (StoreError, Overloaded)
"""Errors after which a background task tries again: a full disk, a lock, too many requests."""


@attrs.define(eq=False, weakref_slot=False)
class _Write(Request[R]):
    """Work for the next group commit."""

    transaction: Work[R] = attrs.field(kw_only=True)
    flush: bool = attrs.field(kw_only=True, default=True)


@attrs.define(eq=False, weakref_slot=False)
class _Alone(Request[R]):
    """A function that runs on the writing connection outside of any group commit."""

    function: Callable[[Connection], R] = attrs.field(kw_only=True)


@attrs.frozen
class _Subscriber:
    """The runtime's callbacks; they are called in commit order, before any caller is resumed."""

    on_accepted: Callable[[Accepted], None]
    on_outbox: Callable[[Sequence[OutboxRow]], None]


def _ignore(_: object) -> None: ...


_NOBODY = _Subscriber(_ignore, _ignore)


class StoreActor:
    """The queue of requests, the writer that commits them, and the readers beside it.

    Each hook may run for `hook_timeout` seconds. With `hook_threads`, hooks that are plain
    functions run in threads.
    """

    cluster: Cluster
    """The other nodes that use this store, if there are any."""

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        hooks: Hooks,
        *,
        hook_timeout: float,
        hook_threads: bool,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._threads = hook_threads
        self._requests: Mailbox[Request[Any]] = Mailbox(MAX_WAITING)
        self._deferred = Deferred(self._requests)
        self._subscriber = _NOBODY
        self._failure: StoreFailed | None = None
        self._wake: Callable[[str], None] = _ignore
        self._forget_closed = cleanup.SteadyCleanup(*connections.writer.db.times(clock))
        self._commits = self._committed = self._largest = self._flushes = 0
        self._hooks = HookRunner(
            hooks,
            pending=self._pending_boundaries,
            close=self._close_boundary,
            load=self._load,
            timeout=hook_timeout,
            threads=hook_threads,
        )
        watch_forks(self)

    # Requests

    # These return a coroutine instead of being one: each layer costs at each resume.

    def transact(self, work: Work[R]) -> Coroutine[object, object, R]:
        """Run the work in the next group commit and return its result."""
        return _Write(transaction=work).wait(self._requests)

    def transact_unflushed(self, work: Work[R]) -> Coroutine[object, object, R]:
        """The same, but if only such work waits, it does not wait for the disk."""
        return _Write(transaction=work, flush=False).wait(self._requests)

    def transact_deferred(self, work: Work[R]) -> Coroutine[object, object, R]:
        """Run the work in the next group commit of others, or without a flush soon after."""
        return _Write(transaction=work, flush=False).wait(self._deferred)

    def transact_alone(self, work: Work[R]) -> Coroutine[object, object, R]:
        """Run long work in a separate transaction, so that it delays no group commit."""
        return self.run_alone(lambda db: commit_one(db, self._clock, work))

    def run_alone(self, function: Callable[[Connection], R]) -> Coroutine[object, object, R]:
        """Run a function on the writing connection, outside of any transaction."""
        return _Alone(function=function).wait(self._requests)

    def snapshot(self, work: Work[R]) -> Coroutine[object, object, R]:
        """Run work that only reads, in one read transaction."""
        return self._read(self._connections.reader, lambda db: db.run_read(self._clock, work))

    def browse(self, work: Work[R]) -> Coroutine[object, object, R]:
        """Run work that only reads and may take long; it does not delay `snapshot`."""
        return self.run_beside(lambda db: db.run_read(self._clock, work))

    def run_beside(self, function: Callable[[Connection], R]) -> Coroutine[object, object, R]:
        """Run a function on the connection for long reads."""
        return self._read(self._connections.browser, lambda db: run_outside(db, function))

    async def _read(self, worker: Worker, function: Callable[[Connection], R]) -> R:
        self._requests.require_open()
        # The read itself cannot be cancelled; without this, nor could a loop of reads.
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            return await worker.run(function)
        except StoreFailed as failure:  # the database is damaged; a search index can be rebuilt
            if not worker.db.is_search_damage(failure.__cause__):
                self._fail(failure)
            raise

    @contextmanager
    def subscribe(
        self,
        *,
        on_accepted: Callable[[Accepted], None] = _ignore,
        on_outbox: Callable[[Sequence[OutboxRow]], None] = _ignore,
    ) -> Iterator[None]:
        """Receive what is committed during the block: accepted messages and replies to send.

        Both are called in commit order and before the callers of the verbs are resumed, also if a
        caller was cancelled meanwhile. Repeated events are left out. An exception of `on_accepted`
        is logged: the message stays in the inbox. There can be one subscriber at a time.
        """
        if self._subscriber is not _NOBODY:
            raise RuntimeError("the store has a subscriber already")
        self._subscriber = _Subscriber(on_accepted, on_outbox)
        self._connections.writer.db.delivers = True
        try:
            yield
        finally:
            self._subscriber, self._connections.writer.db.delivers = _NOBODY, False

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store has stopped, or None."""
        return self._failure

    def statistics(self) -> StoreStatistics:
        """Return the counters of the store."""
        return StoreStatistics(
            waiting=len(self._requests),
            commits=self._commits,
            requests=self._committed,
            largest_batch=self._largest,
            log_pages=self._connections.writer.db.log_pages,
            flushes=self._flushes,
        )

    async def wait_hooks(self) -> None:
        """Wait until the hooks have been called for every boundary so far.

        Raises `ActorStopped` if the store is closed before that, `StoreFailed` if it has failed.
        """
        if not await self._hooks.wait_delivered(self.cluster):
            stopped = ActorStopped("the runtime has ended before all hooks have run")
            raise stopped if self._failure is None else self._stop_error()

    # The writer

    @trio.lowlevel.enable_ki_protection
    async def write(self) -> None:
        """Commit what waits until the store is closed, even if the task is cancelled.

        Raises `StoreFailed` if the store was closed because it cannot go on.
        """
        refuse_rest = self._deferred.refuse_rest  # see `serve`
        with trio.CancelScope(shield=True):
            try:
                await serve(self._requests, self._handle, MAX_BATCH)
                await self._handle([])  # what is deferred
            except BaseException as error:
                self._fail(error)
                raise
            finally:
                until_memory(refuse_rest)
        if self._failure is not None:  # found by a reader or a sweep
            raise StoreFailed(*self._failure.args) from self._failure

    def close(self) -> None:
        """Accept no more requests; those that wait are still committed."""
        self._requests.close(self._stop_error())

    def forked(self) -> None:
        """Refuse requests in a forked process: the store's threads are not in it."""
        self._requests.abandon(ActorStopped(FORKED))

    def _stop_error(self) -> Exception:
        if self._failure is None:
            return ActorStopped("the runtime has ended, and its store is closed")
        return StoreFailed(f"the store has stopped: {self._failure}")

    def _fail(self, error: BaseException) -> None:
        """Close the store because it cannot go on."""
        if not isinstance(error, StoreFailed):
            error = StoreFailed(f"the store was ended by {type(error).__name__}: {error}")
        self._failure = self._failure or error
        self.close()

    @trio.lowlevel.enable_ki_protection
    async def _handle(self, batch: list[Any]) -> None:
        """Commit a batch in order; work that must run alone splits it."""
        try:
            for kind, requests in groupby([*self._deferred.take(), *batch], type):
                await (self._commit if kind is _Write else self._run_alone)(requests)
        except BaseException as error:
            self._fail(error)
            raise

    async def _commit(self, requests: Iterable[_Write[Any]]) -> None:
        writes = [request for request in requests if not request.abandoned]
        if not writes:
            return
        writer = self._connections.writer
        commit = commit_group if any(each.flush for each in writes) else commit_unflushed
        group = await writer.run(
            lambda db: commit(db, self._clock, [each.transaction for each in writes]),
            lambda group: self._answer(writes, group),
        )
        self._flushes += commit is commit_group
        if isinstance(group.stopped, StoreFailed):
            raise group.stopped
        if writer.db.checkpoint_due:
            await writer.run(lambda db: db.checkpoint())

    def _answer(self, writes: Sequence[_Write[Any]], group: Group[Any]) -> None:
        """Pass on what was committed, then answer the requests."""
        self._commits, self._committed = self._commits + 1, self._committed + len(writes)
        self._largest = max(self._largest, len(writes))
        for tx in group.committed:
            self._pass_on(tx)
        for request, outcome in zip(writes, group.outcomes, strict=True):
            request.answer(outcome)

    def _pass_on(self, tx: Transaction) -> None:
        if tx.outbox:
            self._subscriber.on_outbox(tx.outbox)
        for accepted in tx.accepted:
            try:
                self._subscriber.on_accepted(accepted)
            except Exception:  # the message is on disk, where the runtime will find it
                log.exception("message %d could not be handed over", accepted.receipt.inbox_id)
        if tx.unindexed:
            self._wake(INDEX)
        if tx.boundaries:
            self._wake(HOOKS)

    async def _run_alone(self, requests: Iterable[_Alone[Any]]) -> None:
        for request in requests:
            if request.abandoned:
                continue
            try:
                value = await self._connections.writer.run(request.function)
            except Exception as error:
                request.fail(failure := self._connections.writer.db.translate(error))
                if isinstance(failure, StoreFailed):
                    raise failure from error
            else:
                request.answer(value)

    # Background tasks

    def start_background(self, nursery: trio.Nursery, sweep_interval: float) -> None:
        """Start indexing, sweeping every `sweep_interval` seconds, and the delivery to hooks.

        Of several nodes that share the database, one does each of these.
        """
        cluster = self.cluster
        self._wake = cluster.wake
        start_soon(nursery, self._deferred.run)
        start_soon(nursery, cluster.run_as, INDEX, partial(self._index, cluster))
        start_soon(nursery, cluster.run_as, SWEEP, partial(self._sweep, sweep_interval))
        start_soon(nursery, self._hooks.run, cluster)

    def stop_hooks(self) -> None:
        """Stop calling hooks. Those that are interrupted are called again after the next start."""
        self._hooks.stop()

    @trio.lowlevel.enable_ki_protection
    async def _index(self, cluster: Cluster) -> None:
        """Background loop: index new messages soon after they were written, in small steps."""
        is_due = True  # an earlier process may have left some
        while True:
            # After a delay, not when idle: a step just before the next append would delay it more.
            await trio.sleep(INDEX_DELAY)
            try:
                if is_due or await self.snapshot(search.background_work_left):
                    while await self._index_step():
                        pass
            except _TEMPORARY as error:
                log.warning("indexing is delayed: %s", error)
                await trio.sleep(RETRY_SECONDS)
                is_due = True
            else:
                is_due = await cluster.until_woken(INDEX)

    async def _index_step(self) -> bool:
        """Index some messages, then pause: indexing takes at most a tenth of the writer's time."""
        started = trio.current_time()
        has_more = await self.transact(search.background_step)
        await trio.sleep(9 * (trio.current_time() - started))
        return has_more

    @trio.lowlevel.enable_ki_protection
    async def _sweep(self, interval: float) -> None:
        """Background loop: call `sweep_once` every `interval` seconds."""
        while True:
            await trio.sleep(interval)
            try:
                await self.sweep_once()
            except _TEMPORARY as error:
                log.warning("a sweep failed and will be repeated: %s", error)

    async def sweep_once(self) -> list[str]:
        """Check the file, expire overdue sessions, delete old rows, notice what others wrote.

        Returns the sessions that expired. Raises `StoreFailed` if the file was removed or replaced.
        """
        try:
            self._connections.check()
        except StoreFailed as failure:
            self._fail(failure)
            raise
        expired: list[str | None] = []
        while due := await self.snapshot(routes.overdue):
            for key, epoch in due:
                work = partial(routes.expire, session_key=key, epoch=epoch)
                expired.append(await self.transact(work))
        await self.transact(self._forget_closed)
        if await self.snapshot(search.background_work_left):
            self._wake(INDEX)
        self._wake(HOOKS)
        return [session_id for session_id in expired if session_id is not None]

    def _pending_boundaries(self, after: int) -> Coroutine[object, object, list[Boundary]]:
        return self.snapshot(lambda tx: boundaries.pending_boundaries(tx, after))

    def _close_boundary(self, boundary_id: int, error: str | None) -> Coroutine[Any, Any, bool]:
        return self.transact(lambda tx: boundaries.close_boundary(tx, boundary_id, error))

    def _load(self, session_id: str) -> Coroutine[object, object, Transcript]:
        return self.snapshot(lambda tx: messages.load(tx, session_id))
