"""Connections with a thread of their own, on which Trio tasks run whole functions.

A caller waits until its function has returned, whatever happens: neither cancellation nor a
deadline nor Ctrl-C interrupts a transaction. (APSW's own asynchronous connections pass all three
on. Ctrl-C while one is opened or closed was seen to leave its thread running, and the process with
it.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from queue import SimpleQueue
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import trio

from hermes.errors import ActorStopped
from hermes.store.connection import Database

P = ParamSpec("P")
R = TypeVar("R")


class Worker(Protocol):
    """Runs functions on one connection, one at a time."""

    db: Database

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run the function with the connection as its first argument."""
        ...

    async def run_then(self, then: Callable[[R], None], function: Callable[[Database], R]) -> R:
        """Run the function; pass the result to `then` before the caller is resumed."""
        ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class OpenWorker(Protocol):
    """Opens a connection to the file and returns its worker."""

    async def __call__(self, path: Path, *, readonly: bool, vfs: str | None) -> Worker: ...


class _Call(Generic[R]):
    """A function on its way through the thread, and the task that waits for it."""

    __slots__ = ("error", "function", "result", "task", "then")

    def __init__(self, function: Callable[[], R], then: Callable[[R], None] | None) -> None:
        self.function = function
        self.then = then
        self.task = trio.lowlevel.current_task()
        self.result: R | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call the function, in the thread."""
        try:
            self.result = self.function()
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting task
            self.error = error

    def finish(self) -> None:
        """Hand the result over and wake the task, in Trio's thread."""
        try:
            if self.then is not None and self.error is None:
                self.then(self.result)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting task
            self.error = error
        trio.lowlevel.reschedule(self.task)


class Thread:
    """Runs functions one after the other; a task that waits for one cannot be cancelled."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._ended = False
        # A daemon thread never keeps the process from exiting.
        threading.Thread(target=self._work, name="hermes store", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            try:
                self._token.run_sync_soon(call.finish)
            except trio.RunFinishedError:
                return
            del call  # it may hold a whole transcript

    # No Ctrl-C between queueing the call and parking: only a parked task may be woken.
    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[[], R], then: Callable[[R], None] | None = None) -> R:
        """Run the function in the thread; see `Worker.run_then` for `then`."""
        if self._ended:
            raise ActorStopped("the connection is closed")
        call = _Call(function, then)
        self._calls.put(call)  # type: ignore[arg-type]
        await trio.lowlevel.wait_task_rescheduled(_refuse_abort)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def end(self) -> None:
        """Let the thread end after the calls that are queued."""
        self._ended = True
        self._calls.put(None)


@trio.lowlevel.enable_ki_protection
def _refuse_abort(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class ThreadWorker:
    """A connection with its own thread."""

    def __init__(self, thread: Thread, db: Database) -> None:
        self._thread = thread
        self.db = db

    # `run` and `run_then` return a coroutine instead of being one: each layer costs at each resume.

    def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, object, R]:
        """See `Worker.run`."""
        return self._thread.run(lambda: function(self.db, *args, **kwargs))

    def run_then(
        self, then: Callable[[R], None], function: Callable[[Database], R]
    ) -> Coroutine[object, object, R]:
        """See `Worker.run_then`."""
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
    thread = Thread()
    try:
        db = await thread.run(lambda: Database(path, readonly=readonly, vfs=vfs))
    except BaseException:
        thread.end()
        raise
    return ThreadWorker(thread, db)
