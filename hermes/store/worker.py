"""Connections, each with a separate thread, on which Trio tasks run whole functions.

A caller waits until its function has returned, whatever happens: neither cancellation nor a
deadline nor Ctrl-C interrupts a transaction. (APSW's own asynchronous connections pass all three
on. Ctrl-C while one is opened or closed was seen to leave its thread running, and the process with
it.)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import attrs
import outcome
import trio
from outcome import Error, Maybe, Value

from hermes.errors import ActorStopped
from hermes.forks import watch_forks
from hermes.store.connection import Database

R = TypeVar("R")


Then: TypeAlias = Callable[[R], None]

EX_SOFTWARE = 70
_RESCUE_ATTEMPTS = 100
_RESCUE_DELAY = 0.05
_LAST_WORDS = b"hermes: out of memory: the result of a database call cannot be passed on; exiting\n"


class Worker(Protocol):
    """Runs functions on one connection, one at a time."""

    db: Database

    async def run(self, function: Callable[[Database], R], then: Then[R] | None = None) -> R:
        """Run the function with the connection, and return its result.

        `then` is called with the result before the caller is resumed.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class OpenWorker(Protocol):
    """Opens a connection to the file and returns its worker."""

    async def __call__(self, path: Path, *, readonly: bool, vfs: str | None) -> Worker: ...


@attrs.define
class _Call:
    """A function to run, and the task that waits for it; None once it is resumed."""

    task: trio.lowlevel.Task | None
    function: Callable[[], Any]
    then: Then[Any] | None


class StoreThread:
    """Runs functions one after the other; a task that waits for one cannot be cancelled."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._running: _Call | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._ended = False
        watch_forks(self)
        # A daemon thread never keeps the process from exiting.
        threading.Thread(target=self._run, name="hermes store", daemon=True).start()

    # No Ctrl-C between queueing the call and parking: only a parked task may be woken.
    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[[], R], then: Then[R] | None = None) -> R:
        """Run the function in the thread; see `Worker.run` for `then`."""
        if self._ended:
            raise ActorStopped("the connection is closed")
        self._calls.put(_Call(trio.lowlevel.current_task(), function, then))
        return cast(R, await trio.lowlevel.wait_task_rescheduled(_refuse_abort))

    def _run(self) -> None:
        """The thread: work until the end. If memory is exhausted, nobody is left waiting."""
        failed = Error(MemoryError("no memory was left for the result of a database call"))
        while True:
            try:
                self._work()
            except trio.RunFinishedError:
                return
            except MemoryError:
                self._rescue(failed)
            else:
                return

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._running = call
            result = outcome.capture(call.function)
            self._token.run_sync_soon(_resume, call, result)
            self._running = None
            del call, result  # they may hold a whole transcript

    def _rescue(self, failed: Error) -> None:
        """Let the running call fail. If even that is impossible, end the process."""
        for _ in range(_RESCUE_ATTEMPTS):
            try:
                if self._running is not None:
                    self._token.run_sync_soon(_resume, self._running, failed)
                self._running = None
            except MemoryError:
                time.sleep(_RESCUE_DELAY)
            else:
                return
        os.write(2, _LAST_WORDS)
        os._exit(EX_SOFTWARE)

    def forked(self) -> None:
        """Refuse calls in a forked process, which does not have the thread."""
        self._ended = True

    def end(self) -> None:
        """Let the thread end after the calls that are queued."""
        self._ended = True
        self._calls.put(None)


def _resume(call: _Call, result: Maybe[Any]) -> None:
    """Call `then` with the result, then resume the task; in Trio's thread, outside of any task."""
    task, call.task = call.task, None
    if call.then is not None and type(result) is Value and task is not None:
        after = outcome.capture(call.then, result.value)
        result = after if type(after) is Error else result
    if task is not None:  # else it was resumed: the thread ran out of memory right after that
        trio.lowlevel.reschedule(task, result)


@trio.lowlevel.enable_ki_protection
def _refuse_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class ThreadWorker:
    """A connection with its own thread."""

    def __init__(self, thread: StoreThread, db: Database) -> None:
        self._thread = thread
        self.db = db

    # This returns a coroutine instead of being one: each layer costs at each resume.
    def run(
        self, function: Callable[[Database], R], then: Then[R] | None = None
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
async def open_in_thread(path: Path, *, readonly: bool, vfs: str | None) -> ThreadWorker:
    """Open a connection in a new thread."""
    thread = StoreThread()
    try:
        db = await thread.run(lambda: Database(path, readonly=readonly, vfs=vfs))
    except BaseException:
        thread.end()
        raise
    return ThreadWorker(thread, db)
