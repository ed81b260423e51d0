"""The seam between Trio and SQLite: a connection that runs whole functions, in a thread or inline.

A caller waits for the end of its function, come what may: neither a cancellation nor a deadline nor
Ctrl-C reaches into a transaction. (APSW's own async connections pass all three on; a Ctrl-C while
one is opened or closed was seen to leave its thread behind, and with it the process.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Concatenate, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

import apsw
import trio

from hermes.errors import ActorStopped
from hermes.store.connection import Database

P = ParamSpec("P")
R = TypeVar("R")

Fault: TypeAlias = Literal["busy", "full", "unknown-absent", "unknown-present"]


class Worker(Protocol):
    """Runs functions on one connection, one at a time."""

    db: Database

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    async def run_then(self, then: Callable[[R], None], function: Callable[[Database], R]) -> R:
        """`run`, and `then` with the result, a scheduling step before the caller goes on."""
        ...

    async def aclose(self) -> None: ...


class OpenWorker(Protocol):
    """How a store gets its connections."""

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
        try:
            self.result = self.function()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error

    def finish(self) -> None:
        """Back in Trio: hand the result over, and wake who waits for it."""
        try:
            if self.then is not None and self.error is None:
                self.then(self.result)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error
        trio.lowlevel.reschedule(self.task)


class Thread:
    """Runs functions one after the other; a task that waits for one cannot be cancelled."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        self._ended = False
        # A daemon, so that nothing whatever can keep the process from ending.
        threading.Thread(target=self._work, name="hermes store", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            try:
                self._token.run_sync_soon(call.finish)
            except trio.RunFinishedError:
                return
            del call  # or a whole transcript would stay with it until the next one

    # Between the two halves of the hand-over there must be no Ctrl-C: the thread would wake a task
    # that does not wait.
    @trio.lowlevel.enable_ki_protection
    async def run(self, function: Callable[[], R], then: Callable[[R], None] | None = None) -> R:
        if self._ended:
            raise ActorStopped("the connection is closed")
        call = _Call(function, then)
        self._calls.put(call)  # type: ignore[arg-type]
        await trio.lowlevel.wait_task_rescheduled(_not_now)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def end(self) -> None:
        """Let the thread end after what it has been given."""
        self._ended = True
        self._calls.put(None)


@trio.lowlevel.enable_ki_protection
def _not_now(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED


class ThreadWorker:
    """A connection with a thread of its own."""

    def __init__(self, thread: Thread, db: Database) -> None:
        self._thread = thread
        self.db = db

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self._thread.run(lambda: function(self.db, *args, **kwargs))

    async def run_then(self, then: Callable[[R], None], function: Callable[[Database], R]) -> R:
        return await self._thread.run(lambda: function(self.db), then)

    @trio.lowlevel.enable_ki_protection
    async def aclose(self) -> None:
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


class FaultyDatabase(Database):
    """A connection whose COMMITs go wrong on demand: the next fault is asked for before each."""

    def __init__(
        self, path: Path, *, readonly: bool, vfs: str | None, faults: Callable[[], Fault | None]
    ) -> None:
        self._faults: Callable[[], Fault | None] = lambda: None
        super().__init__(path, readonly=readonly, vfs=vfs)
        self._faults = faults

    def execute(self, statements: str, bindings: object = None, **options: object) -> apsw.Cursor:
        fault = self._faults() if statements == "COMMIT" else None
        match fault:
            case None:
                return super().execute(statements, bindings, **options)  # type: ignore[arg-type]
            case "busy":
                raise apsw.BusyError("injected")
            case "full":
                super().execute("ROLLBACK")
                raise apsw.FullError("injected")
            case "unknown-absent":
                super().execute("ROLLBACK")
                raise apsw.IOError("injected before the commit")
            case "unknown-present":
                super().execute("COMMIT")
                raise apsw.IOError("injected after the commit")


class InlineWorker:
    """A connection without a thread, for simulations that must repeat exactly."""

    def __init__(self, db: Database) -> None:
        self.db = db

    async def run(
        self, function: Callable[Concatenate[Database, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()  # others run while a thread would work
        return function(self.db, *args, **kwargs)

    async def run_then(self, then: Callable[[R], None], function: Callable[[Database], R]) -> R:
        result = await self.run(function)
        then(result)
        return result

    async def aclose(self) -> None:
        self.db.close()


def inline(faults: Callable[[], Fault | None] = lambda: None) -> OpenWorker:
    """Open connections without threads; `faults` is asked before each COMMIT of the writer."""

    async def open_inline(path: Path, *, readonly: bool, vfs: str | None) -> InlineWorker:
        await trio.lowlevel.checkpoint()
        if readonly:
            return InlineWorker(Database(path, readonly=True, vfs=vfs))
        return InlineWorker(FaultyDatabase(path, readonly=False, vfs=vfs, faults=faults))

    return open_inline
