"""Await functions of Trio from the event loop of another thread."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import outcome
import trio
from sniffio import current_async_library_cvar

from hermes.background import cancel, or_crash, until_memory
from hermes.user_code import contained

R = TypeVar("R")


def thread_context() -> contextvars.Context:
    """Return a copy of the context for another thread; it shares the `TurnContext`."""
    context = contextvars.copy_context()
    # Without this, anyio and libraries built on it would think that they run where they came from.
    context.run(current_async_library_cvar.set, None)
    return context


async def await_on_trio(token: trio.lowlevel.TrioToken, function: Callable[[], Awaitable[R]]) -> R:
    """Await an async function of Trio from a coroutine on another loop.

    Cancelling the coroutine cancels the function, and waits until it has ended. No thread waits
    meanwhile: a pool of threads would be exhausted by agents that wait for each other. Raises
    `trio.RunFinishedError` if Trio ends before the function does.
    """
    call = _Call(asyncio.get_running_loop(), function, thread_context())
    token.run_sync_soon(call.start)
    try:
        await asyncio.wait([call.future])  # which does not cancel the future
    except asyncio.CancelledError:
        with contextlib.suppress(trio.RunFinishedError):
            until_memory(token.run_sync_soon, call.cancel)
            await asyncio.wait([call.future])
            call.future.exception()  # else asyncio reports that nobody has seen it
        raise
    return call.future.result()


class _Call(Generic[R]):
    """A call that runs as a task of Trio, and its future on the other loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], Awaitable[R]],
        context: contextvars.Context,
    ) -> None:
        self.future: asyncio.Future[R] = loop.create_future()
        self._loop = loop
        self._function = function
        self._context = context
        self._scope = trio.CancelScope()

    def start(self) -> None:
        """Start the task; called by Trio."""
        try:
            or_crash(trio.lowlevel.spawn_system_task)(self._run, context=self._context)
        except (MemoryError, RuntimeError):  # Trio is about to end and takes no more tasks
            self._finish(outcome.Error(trio.RunFinishedError()))

    def cancel(self) -> None:
        """Cancel the task, which may not have started; called by Trio."""
        cancel(self._scope)

    async def _run(self) -> None:
        result: outcome.Outcome[R] = outcome.Error(trio.RunFinishedError())
        try:
            with self._scope, contained() as caught:
                result = outcome.Value(await self._function())
            if caught.error is not None:
                result = outcome.Error(caught.error)
        finally:
            self._finish(result)

    def _finish(self, result: outcome.Outcome[R]) -> None:
        with contextlib.suppress(RuntimeError):  # the other loop is closed
            until_memory(self._loop.call_soon_threadsafe, self._settle, result)

    def _settle(self, result: outcome.Outcome[R]) -> None:
        if self.future.done():
            return
        if isinstance(result, outcome.Error):
            self.future.set_exception(result.error)
        else:
            self.future.set_result(result.unwrap())
