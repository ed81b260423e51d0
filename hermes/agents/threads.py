"""Work in another thread that a Trio task waits for."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

import attrs
import outcome
import trio

from hermes import user_code
from hermes.agents.crossing import thread_context
from hermes.background import set_event, until_memory

R = TypeVar("R")
T = TypeVar("T")


class ThreadResult(Generic[R]):
    """The result of work in another thread. Created on Trio, set by `finish` in that thread."""

    def __init__(self) -> None:
        self._finished = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self._tell = functools.partial(token.run_sync_soon, set_event, self._finished)
        self._outcome: outcome.Outcome[R] | None = None
        self.on_finish: Callable[[], None] | None = None
        """Called when the work ends, in its own thread."""

    @property
    def done(self) -> bool:
        """Whether the work has ended."""
        return self._outcome is not None

    def finish(self, result: outcome.Outcome[R]) -> None:
        """Set the result, once; never raises, because the calling thread could not handle it."""
        if self._outcome is not None:
            return
        self._outcome = result
        try:  # noqa: SIM105 - `suppress` needs memory
            until_memory(self._tell)
        except trio.RunFinishedError:
            pass  # the caller no longer waits
        if (on_finish := self.on_finish) is not None:
            on_finish()

    async def wait(self, stop: Callable[[], None], grace_period: float) -> R:
        """Wait for the work, and return its result or raise its exception.

        If the waiting task is cancelled, call `stop` and wait for at most another `grace_period`
        seconds. Exceptions that only make sense in the other thread (`KeyboardInterrupt`, asyncio's
        `CancelledError`) are raised as `RuntimeError`.
        """
        try:
            await self._finished.wait()
        except trio.Cancelled:
            stop()
            with trio.move_on_after(grace_period, shield=True):
                await self._finished.wait()
            raise
        assert self._outcome is not None
        try:
            return self._outcome.unwrap()
        except asyncio.CancelledError as error:
            raise RuntimeError("cancelled by something other than the runtime") from error
        except BaseException as error:
            if user_code.passing(error) is None:
                raise
            raise RuntimeError(f"raised {user_code.describe(error)}") from error


_tasks: set[asyncio.Task[None]] = set()


def start_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task on the running loop, and keep it: asyncio has only weak references to tasks."""
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


class LoopTask(Generic[R]):
    """Work that runs as a task on the event loop of another thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        result: ThreadResult[R],
        work: Callable[[], Awaitable[R]],
    ) -> None:
        self._loop = loop
        self._result = result
        self._work = work
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._start, context=thread_context())

    def _start(self) -> None:
        try:
            self._task = start_task(self._run())
            self._task.add_done_callback(self._on_done)
        except MemoryError as error:
            self._result.finish(outcome.Error(error))

    async def _run(self) -> None:
        # Captured here, because a SystemExit that leaves a task stops asyncio's whole loop.
        self._result.finish(await outcome.acapture(self._work))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step
            self._result.finish(outcome.Error(asyncio.CancelledError()))
        elif (error := task.exception()) is not None:  # no memory for the result
            self._result.finish(outcome.Error(error))

    def stop(self) -> None:
        """Cancel the task, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


@attrs.frozen
class HostLoop:
    """The event loop of an asyncio program that has opened a runtime."""

    loop: asyncio.AbstractEventLoop
    grace_period: float
    """Seconds that a cancelled coroutine gets to end; then it is no longer waited for."""

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run a coroutine function on the loop; cancelled here, it is cancelled there."""
        result: ThreadResult[R] = ThreadResult()
        return await result.wait(LoopTask(self.loop, result, work).stop, self.grace_period)


HOST_LOOP: trio.lowlevel.RunVar[HostLoop | None] = trio.lowlevel.RunVar("host loop", default=None)
"""The loop of the host, in a runtime that an asyncio program has opened; otherwise None."""


class Handover(Generic[T]):
    """Passes items to another thread, in order, and as many at once as have gathered.

    `schedule` has a function called soon in the other thread; `receive` is called there with each
    item. Waking a thread costs far more than handing over an item.
    """

    def __init__(
        self, schedule: Callable[[Callable[[], None]], object], receive: Callable[[T], None]
    ) -> None:
        self._schedule = schedule
        self._receive = receive
        self._items: deque[T] = deque()
        self._scheduled = False

    def put(self, item: T) -> None:
        """Pass an item on, from any thread."""
        self._items.append(item)
        if not self._scheduled:
            self._scheduled = True
            until_memory(self._schedule, self._flush)

    def _flush(self) -> None:
        self._scheduled = False  # first: an item that is put from now on schedules another flush
        try:
            while self._items:
                self._receive(self._items.popleft())
        finally:
            if self._items and not self._scheduled:  # the receiver has raised
                self._scheduled = True
                until_memory(self._schedule, self._flush)
