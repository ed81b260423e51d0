"""Connections, each with a separate thread, on which Trio tasks run whole functions.

A caller waits until its function has returned, whatever happens: neither cancellation nor a
deadline nor Ctrl-C interrupts a transaction. (APSW's own asynchronous connections pass all three
on. Ctrl-C while one is opened or closed was seen to leave its thread running, and the process with
it.)
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar, cast

import attrs
import outcome
import trio
from outcome import Error, Maybe, Value

from hermes.background import (
    cancel,
    open_background,
    protected,
    resume,
    start_soon,
    until_memory,
)
from hermes.errors import ActorStopped
from hermes.forks import watch_forks
from hermes.store.engine import Connection, Then, Worker

R = TypeVar("R")

WATCH_INTERVAL = 1.0
BUSY_WATCH_INTERVAL = 0.01
MEMORY_DELAY = 0.01


@attrs.define
class _Call:
    """A function to run, the task that waits for it, and the result once it is `done`."""

    task: trio.lowlevel.Task | None
    function: Callable[[], Any]
    then: Then[Any] | None
    done: bool = False
    result: Maybe[Any] | None = None
    """None if there was no memory for it."""


class StoreThread:
    """Runs functions one after the other; a task that waits for one cannot be cancelled."""

    telling: ClassVar[threading.Lock] = threading.Lock()
    """Held while a thread hands a result to Trio, and after the interpreter starts to exit.

    A daemon thread that Python stops inside `run_sync_soon` would keep a lock of Trio's, for which
    Trio waits at the end if its run has crashed.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: deque[_Call] = deque()
        """The calls whose tasks have not been resumed, in the order of `_calls`."""
        self._token = trio.lowlevel.current_trio_token()
        self._ended = False
        watch_forks(self)
        _THREADS.set((*_THREADS.get(), self))
        # A daemon thread never keeps the process from exiting.
        threading.Thread(target=self._run, name="hermes store", daemon=True).start()

    # No Ctrl-C between queueing the call and parking: only a parked task may be woken.
    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[[], R], then: Then[R] | None = None) -> R:
        """Run the function in the thread; see `Worker.run` for `then`."""
        if self._ended:
            raise ActorStopped("the connection is closed")
        call = _Call(trio.lowlevel.current_task(), function, then)
        self._waiting.append(call)
        try:
            self._calls.put(call)
            await trio.lowlevel.wait_task_rescheduled(_refuse_abort)
        except MemoryError:  # the task does not wait
            call.task, call.done = None, True
            raise
        return cast(R, (call.result or _no_result()).unwrap())

    def _run(self) -> None:
        """The thread: run the calls until the end."""
        while True:
            try:
                self._work()
            except MemoryError:
                time.sleep(MEMORY_DELAY)  # then Trio is told what is done
            except trio.RunFinishedError:
                return
            else:
                return

    def _work(self) -> None:
        while True:
            with self.telling:
                self._token.run_sync_soon(self.resume_finished)
            if (call := self._calls.get()) is None:
                return
            try:
                call.result = outcome.capture(call.function)
            finally:
                call.done = True
                del call  # it may hold a whole transcript

    @property
    def has_finished(self) -> bool:
        """Whether a call is done whose task has not been resumed."""
        return bool(self._waiting) and self._waiting[0].done

    def resume_finished(self) -> None:
        """Resume the tasks whose calls are done; in Trio's thread."""
        while self._waiting and self._waiting[0].done:
            call = self._waiting[0]
            result, then = call.result, call.then
            if then is not None and type(result) is Value:
                call.result = call.then = None  # `then` is called once, and may fail
                after = outcome.capture(then, result.value)
                call.result = after if type(after) is Error else result
            self._waiting.popleft()
            if call.task is not None:
                resume(call.task)

    def forked(self) -> None:
        """Refuse calls in a forked process, which does not have the thread."""
        self._ended = True
        StoreThread.telling = threading.Lock()  # a thread of the other process may hold it

    def end(self) -> None:
        """Let the thread end after the calls that are queued."""
        self._ended = True
        until_memory(self._calls.put, None)
        _THREADS.set(tuple([thread for thread in _THREADS.get() if thread is not self]))


_THREADS: trio.lowlevel.RunVar[tuple[StoreThread, ...]] = trio.lowlevel.RunVar("threads", ())
"""The threads that may have calls for tasks of this Trio run."""


@atexit.register
def _stop_telling() -> None:
    StoreThread.telling.acquire()


def _no_result() -> Error:
    return Error(MemoryError("no memory was left for the result of a database call"))


@trio.lowlevel.enable_ki_protection
def _refuse_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class ThreadWorker:
    """A connection with its own thread."""

    def __init__(self, thread: StoreThread, db: Connection) -> None:
        self._thread = thread
        self.db = db

    # This returns a coroutine instead of being one: each layer costs at each resume.
    def run(
        self, function: Callable[[Connection], R], then: Then[R] | None = None
    ) -> Coroutine[object, object, R]:
        """See `Worker.run`."""
        return self._thread.run(lambda: function(self.db), then)

    @trio.lowlevel.enable_ki_protection
    async def aclose(self) -> None:
        """Close the connection and let the thread end."""
        try:
            await self._thread.run(self.db.close)
        finally:
            self._thread.end()


@trio.lowlevel.enable_ki_protection
async def run_in_thread(function: Callable[[], R]) -> R:
    """Run a function in a new thread, which `watch` watches, unlike a thread of Trio."""
    await trio.lowlevel.checkpoint_if_cancelled()
    thread = StoreThread()
    try:
        return await thread.run(function)
    finally:
        thread.end()


@trio.lowlevel.enable_ki_protection
async def start_worker(connect: Callable[[], Connection]) -> ThreadWorker:
    """Open a connection in a new thread."""
    thread = StoreThread()
    try:
        db = await thread.run(connect)
    except BaseException:
        thread.end()
        raise
    return ThreadWorker(thread, db)


async def open_in_thread(connect: Callable[[], Connection], *, readonly: bool) -> Worker:
    """Open a connection in a new thread."""
    del readonly
    return await start_worker(connect)


@protected
async def watched() -> AsyncIterator[None]:
    """Watch the store's threads during the block, even if it is cancelled."""
    until = trio.CancelScope(shield=True)
    async with open_background() as nursery:
        start_soon(nursery, watch, until)
        try:
            yield
        finally:
            cancel(until)


async def watch(until: trio.CancelScope) -> None:
    """Background loop: resume tasks whose results Trio was not told of, until the scope ends.

    The threads tell Trio of each result. If memory is exhausted, Trio may fail in its own task and
    stop listening to threads for good, while a commit still waits. Then the runtime ends, and this
    looks more often, so that it ends soon.
    """
    interval = WATCH_INTERVAL
    with until:
        while True:
            try:
                await trio.sleep(interval)
                found = [thread for thread in _THREADS.get() if thread.has_finished]
                for thread in found:
                    thread.resume_finished()
                interval = BUSY_WATCH_INTERVAL if found else min(2 * interval, WATCH_INTERVAL)
            except MemoryError:  # the next pass goes on
                pass
