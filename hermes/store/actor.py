"""The store actor: it alone writes, many requests to a commit; it sweeps, indexes, tells the hooks.

A request is queued, taken together with all others that wait, and answered after COMMIT. Who stops
waiting before that changes nothing for the others: his request is whole or absent.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, NoReturn, TypeVar

import apsw
import msgspec
import trio

from hermes.errors import ActorStopped, Overloaded, StoreError, StoreFailed
from hermes.messages import OutboxRow
from hermes.store.connection import Database
from hermes.store.conversations import boundaries, routes, search
from hermes.store.file_lock import FileGuard
from hermes.store.group_commit import (
    Done,
    Failed,
    Group,
    Outcome,
    commit_group,
    commit_one,
    read,
    translate,
)
from hermes.store.hooks import HookRunner
from hermes.store.maintenance import cleanup
from hermes.store.transaction import Clock, Transaction, Work
from hermes.store.worker import Worker

log = logging.getLogger(__name__)

R = TypeVar("R")

MAX_BATCH = 256
MAX_WAITING = 10_000
INDEX_DELAY = 0.2
SWEEP_INTERVAL = 60.0
RETRY_SECONDS = 1.0
_PASSING = (StoreError, Overloaded)
"""What housekeeping meets and outlives: a full disk, a lock, a crowd."""


class Request(Generic[R]):
    """Work that waits for its commit, and the task that waits for the answer."""

    __slots__ = ("after", "alone", "outcome", "task", "wanted", "work")

    def __init__(
        self,
        work: Work[R],
        after: Callable[[R], None] | None = None,
        alone: Callable[[Database], R] | None = None,
    ) -> None:
        self.work = work
        self.after = after
        self.alone = alone
        self.outcome: Outcome[R] | None = None
        self.task: trio.lowlevel.Task | None = None
        self.wanted = True

    @trio.lowlevel.enable_ki_protection
    def give_up(self, _: object) -> trio.lowlevel.Abort:
        """The caller was cancelled; the request is left to its fate."""
        self.task = None
        self.wanted = False
        return trio.lowlevel.Abort.SUCCEEDED

    def settle(self, outcome: Outcome[R]) -> None:
        """Say what became of it. `after` hears of a commit even where nobody waits any more."""
        if isinstance(outcome, Done) and self.after is not None:
            try:
                self.after(outcome.value)
            except Exception:  # foreign code; the row is on disk and will be found there
                log.exception("a committed message could not be delivered")
        self.outcome = outcome
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None


class StoreStatistics(msgspec.Struct, frozen=True):
    """How the store is doing."""

    waiting: int
    commits: int
    requests: int
    largest_batch: int
    log_pages: int


class StoreActor:
    """The requests, the writer that commits them, and the readers beside it."""

    def __init__(
        self, writer: Worker, reader: Worker, browser: Worker, guard: FileGuard, clock: Clock
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._browser = browser
        self._guard = guard
        self._clock = clock
        self._queue: deque[Request[object]] = deque()
        self._taken: list[Request[object]] = []
        self._parked: trio.lowlevel.Task | None = None
        self._closing = False
        self._fatal: StoreFailed | None = None
        self._unindexed = trio.Event()
        self._unindexed.set()  # what an earlier process left
        self._lanes: HookRunner | None = None
        self.send: Callable[[Sequence[OutboxRow]], None] | None = None
        self._commits = self._requests = self._largest = 0

    # Callers

    # These return a coroutine and are none: each layer of coroutines costs at every resume.

    def transact(
        self, work: Work[R], after: Callable[[R], None] | None = None
    ) -> Coroutine[object, object, R]:
        """Commit the work, with whatever else waits; `after` is called as soon as it is on disk."""
        return self._ask(Request(work, after))

    def transact_alone(self, work: Work[R]) -> Coroutine[object, object, R]:
        """Commit long work in a transaction that nobody else has to wait for."""
        return self.run_alone(lambda db: commit_one(db, self._clock, self._guard.check, work))

    def run_alone(self, function: Callable[[Database], R]) -> Coroutine[object, object, R]:
        """Run a function on the writing connection outside any transaction."""
        return self._ask(Request(_not_in_a_transaction, alone=function))

    # No Ctrl-C between queueing and waiting: the writer would wake a task that does not wait.
    @trio.lowlevel.enable_ki_protection
    async def _ask(self, request: Request[R]) -> R:
        self._require_open()
        if len(self._queue) >= MAX_WAITING:
            raise Overloaded(f"{len(self._queue)} requests already wait for the store")
        request.task = trio.lowlevel.current_task()
        self._queue.append(request)  # type: ignore[arg-type]
        self._wake()
        await trio.lowlevel.wait_task_rescheduled(request.give_up)
        outcome = request.outcome
        assert outcome is not None
        if isinstance(outcome, Failed):
            error = outcome.error
            try:
                raise error
            finally:  # or the error's traceback would hold the error, and all else here
                del error, outcome, request
        return outcome.value

    def _require_open(self) -> None:
        if self._fatal is not None:
            raise StoreFailed(f"the store has stopped: {self._fatal}") from self._fatal
        if self._closing:
            raise ActorStopped("the store is closed")

    async def snapshot(self, work: Work[R], *, browse: bool = False) -> R:
        """Run work that only reads; what may take long (`browse`) does not delay the rest."""
        self._require_open()
        # The read itself is shielded; without this a loop of reads could not be cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()
        worker = self._browser if browse else self._reader
        return await worker.run(read, self._clock, work)

    async def run_beside(self, function: Callable[[Database], R]) -> R:
        """Run a function on the browsing connection."""
        self._require_open()
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            return await self._browser.run(function)
        except apsw.Error as error:
            raise translate(error, "nothing was done") from error

    @property
    def failure(self) -> StoreFailed | None:
        """Why the store has stopped, if it has."""
        return self._fatal

    def statistics(self) -> StoreStatistics:
        """How the store is doing."""
        return StoreStatistics(
            waiting=len(self._queue),
            commits=self._commits,
            requests=self._requests,
            largest_batch=self._largest,
            log_pages=self._writer.db.log_pages,
        )

    async def wait_hooks(self) -> None:
        """Wait until the hooks have heard of every boundary there is."""
        if self._lanes is not None:
            await self._offer(self._lanes)
            await self._lanes.wait_quiet()

    # The writer

    @trio.lowlevel.enable_ki_protection
    async def write(self) -> None:
        """Commit what waits, until the store is closed or cannot go on."""
        try:
            while batch := await self._take():
                self._taken = batch
                if batch[0].alone is not None:
                    await self._run_alone(batch[0], batch[0].alone)
                    continue
                group = await self._writer.run_then(
                    functools.partial(self._settle, batch), self._commit(batch)
                )
                if group.fatal is not None:
                    raise group.fatal  # noqa: TRY301 - told to everybody below
                if self._writer.db.checkpoint_due:
                    await self._checkpoint()
        except BaseException as error:
            if self._fatal is None:
                self._fatal = StoreFailed(f"the store ended by {type(error).__name__}: {error}")
            raise
        finally:
            self._answer_everyone()

    def _commit(self, batch: list[Request[object]]) -> Callable[[Database], Group[object]]:
        work = [request.work for request in batch]
        return lambda db: commit_group(db, self._clock, self._guard.check, work)

    async def _take(self) -> list[Request[object]]:
        """Everything that waits, up to a bound; work that must run alone comes alone."""
        while True:
            batch: list[Request[object]] = []
            while self._queue and len(batch) < MAX_BATCH:
                if self._queue[0].alone is not None and batch:
                    break
                request = self._queue.popleft()
                if request.wanted:
                    batch.append(request)
                if request.alone is not None:
                    break
            if batch or self._closing:
                return batch
            self._parked = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._unpark)

    @trio.lowlevel.enable_ki_protection
    def _unpark(self, _: object) -> trio.lowlevel.Abort:
        self._parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None

    def _settle(self, batch: list[Request[object]], group: Group[object]) -> None:
        self._commits += 1
        self._requests += len(batch)
        self._largest = max(self._largest, len(batch))
        self._fatal = self._fatal or group.fatal
        if group.outbox and self.send is not None:
            self.send(group.outbox)
        for request, outcome in zip(batch, group.outcomes, strict=True):
            request.settle(outcome)
        if group.unindexed:
            self._unindexed.set()
        if group.boundaries and self._lanes is not None:
            self._lanes.nudge()

    async def _run_alone(
        self, request: Request[object], function: Callable[[Database], object]
    ) -> None:
        try:
            value = await self._writer.run(function)
        except Exception as error:  # noqa: BLE001 - answered to the caller
            request.settle(Failed(translate(error)))
        else:
            request.settle(Done(value))

    async def _checkpoint(self) -> None:
        try:
            await self._writer.run(Database.checkpoint)
        except apsw.Error as error:  # what is committed stays committed; the next one tries again
            log.debug("checkpoint failed: %s", error)

    def close(self) -> None:
        """Take no more requests; those that wait are still committed."""
        self._closing = True
        self._wake()

    def _answer_everyone(self) -> None:
        self._closing = True
        error: Exception = self._fatal or ActorStopped("the store is closed")
        for request in (*self._taken, *self._queue):
            if request.outcome is None:
                request.settle(Failed(error))
        self._queue.clear()

    # Beside the writer

    @trio.lowlevel.enable_ki_protection
    async def index(self) -> None:
        """Keep the search index near: a little after each write, in small steps, for ever."""
        while True:
            await self._unindexed.wait()
            # By the clock and not by idleness: a step in front of the next append would cost more.
            await trio.sleep(INDEX_DELAY)
            self._unindexed = trio.Event()
            try:
                while await self._index_step() == search.STEP:
                    pass
            except _PASSING as error:
                log.warning("indexing is delayed: %s", error)
                await trio.sleep(RETRY_SECONDS)
                self._unindexed.set()

    async def _index_step(self) -> int:
        """One step, then a pause: indexing takes at most a tenth of the writer's time."""
        begun = trio.current_time()
        count = await self.transact(search.index_step)
        await trio.sleep(9 * (trio.current_time() - begun))
        return count

    @trio.lowlevel.enable_ki_protection
    async def sweep(self, seconds: float = SWEEP_INTERVAL) -> None:
        """Look after the file: is it still there, which conversations are over, what is too old."""
        while True:
            await trio.sleep(seconds)
            try:
                await self.sweep_once()
            except _PASSING as error:
                log.warning("a sweep failed and will be repeated: %s", error)

    async def sweep_once(self) -> list[str]:
        """One round of `sweep`; returns the sessions that expired."""
        try:
            self._guard.check_files()
        except StoreFailed as fatal:
            self._fatal = fatal
            raise
        ended: list[str | None] = []
        while due := await self.snapshot(routes.overdue):
            for key, epoch in due:
                work = functools.partial(routes.expire, session_key=key, epoch=epoch)
                ended.append(await self.transact(work))
        await self.transact(cleanup.forget_closed)
        if await self.snapshot(search.unindexed):
            self._unindexed.set()
        if self._lanes is not None:
            await self._offer(self._lanes)
        return [session_id for session_id in ended if session_id is not None]

    def attach(self, lanes: HookRunner) -> None:
        """Say who tells the hooks."""
        self._lanes = lanes

    @trio.lowlevel.enable_ki_protection
    async def deliver_boundaries(self, lanes: HookRunner) -> None:
        """Tell the hooks of what an earlier process left, then of each new boundary."""
        while True:
            try:
                await self._offer(lanes)
            except _PASSING as error:
                log.warning("boundaries are delayed: %s", error)
                await trio.sleep(RETRY_SECONDS)
            else:
                await lanes.wait_nudge()

    async def _offer(self, lanes: HookRunner) -> None:
        while found := await self.snapshot(
            lambda tx: boundaries.pending_boundaries(tx, lanes.newest)
        ):
            lanes.offer(found)


def _not_in_a_transaction(_: Transaction) -> NoReturn:
    raise AssertionError("this request has no transaction")
