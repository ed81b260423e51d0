"""Background tasks: opened and left safely, and never left waiting for lack of memory.

Any allocation can raise `MemoryError`. A task that nobody resumes would wait forever, without a
line in the log, so what resumes tasks allocates as little as possible. If Trio fails halfway, it
cannot be asked again: it takes the task for resumed, or the scope for cancelled. Then its run is
crashed, as Trio itself does if an allocation fails in its scheduler: `trio.run` raises
`trio.TrioInternalError` at once. The process of a host is not ended by that. What is acknowledged
is on disk, so a crash loses as little as a kill.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final, NoReturn, ParamSpec, Protocol, TypeVar, TypeVarTuple

import trio
from outcome import Error, Value
from trio.lowlevel import Task, reschedule, spawn_system_task, wait_task_rescheduled

from hermes.errors import actionable

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EX_SOFTWARE = 70
_CRASHING = b"hermes: out of memory: a task cannot be resumed or cancelled; the Trio run is ended\n"
_LAST_WORDS = b"hermes: out of memory: a thread or task cannot be resumed; exiting\n"
_ATTEMPTS = 100
_DELAY = 0.05
_SPARE: Final = [Value(None) for _ in range(100)]  # each can be used once

OUT_OF_MEMORY: Final = Error(MemoryError("no memory was left for the answer"))
"""The answer to a request if there is no memory for another one. Must not be unwrapped."""


class _Protected(AbstractAsyncContextManager[T, bool | None]):
    """A context manager that Ctrl-C cannot enter or leave halfway.

    The methods of `contextlib` itself are not protected: an exception just after the `yield` of a
    generator would lose the generator, and nothing would ever close it.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._manager = manager

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, traceback)


def protected(
    function: Callable[P, AsyncIterator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Like `asynccontextmanager`. Ctrl-C arrives at checkpoints only, as a cancellation does."""
    make = asynccontextmanager(trio.lowlevel.enable_ki_protection(function))

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _Protected(make(*args, **kwargs))

    return opened


@protected
async def open_background() -> AsyncIterator[trio.Nursery]:
    """Open a nursery for tasks that run beside the caller's block.

    The tasks are cancelled when the block ends. An exception of the block leaves as it is, never
    wrapped in a group. If a task fails, the block is cancelled and the task's exception leaves; out
    of several, the one that a caller can act on (see `hermes.errors.actionable`).
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:  # noqa: BLE001 - raised below, outside of the group
                raised = error
            cancel(nursery.cancel_scope)
    except BaseExceptionGroup as group:
        raise actionable(group) from raised
    if raised is not None:
        raise raised


# Without memory


def resume(task: Task) -> None:
    """Reschedule a task that waits, even without memory, or else crash the Trio run."""
    try:
        reschedule(task)
    except MemoryError:
        _resume_without_memory(task)


def _resume_without_memory(task: Task) -> None:
    try:
        reschedule(task, _SPARE.pop())
    except (AssertionError, IndexError, MemoryError):
        crash_run()  # Trio takes the task for scheduled, and will never run it


def or_crash(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function of Trio that crashes the run if it fails halfway, for lack of memory.

    It then raises `MemoryError`, or an `AssertionError` of Trio that comes from one.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (AssertionError, MemoryError):
            crash_run()
            raise

    return call


class _StartSoon(Protocol):
    """The type of `trio.Nursery.start_soon`."""

    def __call__(
        self,
        nursery: trio.Nursery,
        function: Callable[[*Ts], Awaitable[object]],
        /,
        *arguments: *Ts,
        name: object = None,
    ) -> None: ...


cancel: Callable[[trio.CancelScope], None] = or_crash(trio.CancelScope.cancel)
"""Cancel a scope, or else crash the Trio run: Trio cancels no scope twice."""
set_event: Callable[[trio.Event], None] = or_crash(trio.Event.set)
"""Set an event, or else crash the Trio run: Trio sets no event twice."""
start_soon: _StartSoon = or_crash(trio.Nursery.start_soon)
"""Start a task in a nursery, or else crash the Trio run: Trio may wait for a task it never runs."""


def release(lock: trio.CapacityLimiter | trio.Lock | trio.Semaphore) -> None:
    """Release a lock, or else crash the Trio run: Trio resumes no task twice that waits for it."""
    try:
        lock.release()
    except (AssertionError, MemoryError):
        crash_run()
        raise


@protected
async def holding(
    lock: trio.CapacityLimiter | trio.Lock | trio.Semaphore,
) -> AsyncIterator[None]:
    """Hold a lock during the block; see `release`."""
    await lock.acquire()
    try:
        yield
    finally:
        release(lock)


def until_memory(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a function for which another thread or task waits; without memory, call it again.

    If there is still no memory after some seconds, the process ends with code 70.
    """
    attempts = _ATTEMPTS
    while attempts > 0:  # a `range` would need memory
        attempts -= 1
        try:
            function(*args, **kwargs)
        except MemoryError:
            time.sleep(_DELAY)  # other threads may return some
        else:
            return
    _end_process()


def crash_run() -> None:
    """End this Trio run with `TrioInternalError`, as soon as the task that runs now waits.

    If memory does not even suffice for that, within some seconds, the process ends with code 70.
    """
    os.write(2, _CRASHING)
    until_memory(spawn_system_task, _crash)


async def _crash() -> NoReturn:
    while True:
        try:
            with trio.CancelScope() as scope:
                scope.cancel()
                await wait_task_rescheduled(_not_an_abort)
        except MemoryError:
            pass


def _not_an_abort(_: object) -> Any:
    """Trio ends its run at once if an abort function returns anything but an `Abort`."""


def _end_process() -> NoReturn:
    os.write(2, _LAST_WORDS)
    os._exit(EX_SOFTWARE)
