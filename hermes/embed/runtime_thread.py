"""A runtime in a separate Trio thread, for hosts that are not on Trio."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import attrs
import outcome
import trio

from hermes.actors.runtime import Runtime
from hermes.background import cancel, set_event, start_soon, until_memory
from hermes.errors import ActorStopped, HermesError
from hermes.forks import FORKED, watch_forks
from hermes.user_code import contained, leaf, loggable

R = TypeVar("R")

SIGNAL_INTERVAL = 1.0
LOST_INTERVAL = 5.0
"""Seconds after which a waiting thread looks for signals, such as Ctrl-C."""


@attrs.frozen
class _Call:
    """A call from another thread: the scope in which it runs, and whether it was started."""

    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    started: Future[None] = attrs.Factory(Future)


class RuntimeThread:
    """The thread, from the opening of its runtime to the end.

    `opening` returns the context manager that opens the runtime; it is entered in the thread.
    `start` it once, then wait for `opened`. End it with `leave` or `abort`, then wait for `ended`.
    It also ends by itself if the runtime fails. All methods can be called from any thread.
    """

    def __init__(self, opening: Callable[[], AbstractAsyncContextManager[Runtime]]) -> None:
        self._opening = opening
        self.opened: Future[Runtime] = Future()
        """The runtime, or why it could not be opened."""
        self.opened.set_running_or_notify_cancel()  # a host that is cancelled cannot cancel it
        self.ended: Future[None] = Future()
        """Done when the runtime has ended. It never has an exception; see `failure`."""
        self.failure: BaseException | None = None
        """What the runtime raised, except for what `opened` has."""
        self.is_fork: bool = False
        """Whether this is a copy in a forked process, which does not have the thread."""
        self._left: Future[None] = Future()
        self._aborted: Future[None] = Future()
        self._token: trio.lowlevel.TrioToken | None = None
        """Accepts calls, while the runtime is open."""
        self._nursery: trio.Nursery | None = None
        """Runs them, while there may be any."""
        self._calls: dict[Future[Any], _Call] = {}
        """The calls that are not answered."""
        self._calling = threading.Lock()
        # A daemon thread never keeps the process from exiting.
        self._thread = threading.Thread(target=self._run, name="hermes runtime", daemon=True)
        watch_forks(self)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def leave(self) -> None:
        """Ask the runtime to drain and end."""
        if not self.is_fork:  # Trio's locks may have been held during the fork
            self._left.cancel()

    def abort(self) -> None:
        """Ask the runtime to end without waiting for turns, whether it is open yet or not."""
        if not self.is_fork:
            self._aborted.cancel()
            self.ended.cancel()  # has an effect only if the thread does not run yet

    def join(self) -> None:
        """Wait until the thread has ended. Ctrl-C interrupts the wait."""
        if not self.is_fork and not self.ended.cancelled():
            wait_for(self.ended)
            self._thread.join()

    # Calls from other threads

    def start_task_soon(self, function: Callable[[], Awaitable[R]]) -> Future[R]:
        """Run an async function in the runtime's thread.

        Raises a `HermesError` if the runtime has ended, or in the runtime's own thread.
        """
        self.require_running()
        if threading.get_ident() == self._thread.ident:
            raise HermesError("a verb that blocks was called in the thread of the runtime itself")
        future: Future[R] = Future()
        start = functools.partial(self._start_call, function, future)
        with self._calling:
            if self._token is None:
                raise self._end_error()
            call = self._calls[future] = _Call()
            with contextlib.suppress(trio.RunFinishedError):  # then it is answered as unstarted
                # In the context of the caller, as if it were called there.
                self._token.run_sync_soon(contextvars.copy_context().run, start)
        call.started.result()  # calls of one thread start in their order
        return future

    def _start_call(self, function: Callable[[], Awaitable[R]], future: Future[R]) -> None:
        if self._nursery is not None:  # else `_answer_rest` answers it
            start_soon(self._nursery, self._run_call, function, future)
            self._calls[future].started.set_result(None)

    async def _run_call(self, function: Callable[[], Awaitable[R]], future: Future[R]) -> None:
        """Run a call. It fails with the end of the runtime, if that comes first."""
        scope = self._calls[future].scope
        _on_trio(future, functools.partial(cancel, scope))
        result: outcome.Outcome[R] | None = None
        with scope, contained() as caught:
            result = outcome.Value(await function())
        if caught.error is not None:
            result = outcome.Error(caught.error)
        del self._calls[future]
        _settle(future, result or outcome.Error(self._end_error()))

    def _answer_rest(self, error: BaseException | None) -> None:
        """Let the calls fail that have no answer: those that came last, or all if Trio crashed."""
        if self.failure is None and self.opened.done():
            self.failure = error
        self._accept_no_calls()
        while self._calls:
            future, call = self._calls.popitem()
            _settle(future, outcome.Error(self._end_error()))
            if not call.started.done():
                call.started.set_result(None)

    @property
    def is_closed(self) -> bool:
        """Whether calls are refused because the runtime has ended, not in a forked process."""
        return self.opened.done() and self._token is None and not self.is_fork

    def require_running(self) -> None:
        """Raise why the runtime has ended, if it has."""
        if self.is_fork or self.ended.done():
            raise self._end_error()

    def _end_error(self) -> HermesError:
        if self.is_fork:
            return ActorStopped(FORKED)
        if self.failure is None:
            return ActorStopped("the runtime has ended")
        if isinstance(self.failure, HermesError):
            return type(self.failure)(*self.failure.args)
        return ActorStopped(f"the runtime failed: {loggable(leaf(self.failure))}")

    def raise_failure(self) -> None:
        """Raise the reason if the runtime has failed, or in a forked process."""
        if self.is_fork or self.failure is not None:
            raise self._end_error()

    def forked(self) -> None:
        """Refuse everything in a forked process."""
        self.is_fork = True

    # The thread

    def _run(self) -> None:
        if not self.ended.set_running_or_notify_cancel():
            return
        result = outcome.capture(trio.run, self._main)
        error = result.error if isinstance(result, outcome.Error) else None
        self._answer_rest(error)
        if error is not None and not self.opened.done():
            self.opened.set_exception(error)
        self.ended.set_result(None)

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            result = await outcome.acapture(self._hold)
            if self.opened.done() and isinstance(result, outcome.Error):
                self.failure = result.error  # before calls are refused: callers are told
            self._accept_no_calls()
            self._nursery = None
            for call in self._calls.values():  # such as `run_on_trio`
                cancel(call.scope)
        result.unwrap()

    def _accept_no_calls(self) -> None:
        with self._calling:
            self._token = None

    async def _hold(self) -> None:
        """Hold the runtime open until it is left or aborted, or fails."""
        leaving, scope = trio.Event(), trio.CancelScope()
        _on_trio(self._left, functools.partial(set_event, leaving))
        _on_trio(self._aborted, functools.partial(cancel, scope))
        with scope:
            async with self._opening() as runtime:
                self.opened.set_result(runtime)
                await leaving.wait()
        if not self.opened.done():
            raise ActorStopped("the runtime was ended while it was opening")


def _on_trio(asked: Future[R], function: Callable[[], object]) -> None:
    """Call a function in the Trio thread as soon as another thread cancels the future."""
    token = trio.lowlevel.current_trio_token()

    def call(_: Future[R]) -> None:
        if asked.cancelled():
            with contextlib.suppress(trio.RunFinishedError):
                until_memory(token.run_sync_soon, function)

    asked.add_done_callback(call)


def _settle(future: Future[R], result: outcome.Outcome[R]) -> None:
    """Set the result of a future, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(result, outcome.Error):
        future.set_exception(result.error)
    else:
        future.set_result(result.unwrap())


async def await_future(future: Future[R], interval: float = LOST_INTERVAL) -> R:
    """Wait for a result on asyncio. If the task is cancelled, so is the future.

    Without memory, asyncio may lose the callback for which this waits. So it also looks at the
    future every `interval` seconds.
    """
    wrapped = asyncio.wrap_future(future)
    try:
        while True:  # at least once: a task that was cancelled before notices it here
            await asyncio.wait([wrapped], timeout=interval)
            if wrapped.done() or future.done():
                return wrapped.result() if wrapped.done() else future.result()
    finally:
        wrapped.cancel()


def wait_for(future: Future[R]) -> R:
    """Wait for a result. Ctrl-C interrupts the wait."""
    # Python handles a signal that arrives just before a wait only when the wait ends.
    while not future.done():
        with contextlib.suppress(TimeoutError):
            future.exception(SIGNAL_INTERVAL)
    return future.result()
