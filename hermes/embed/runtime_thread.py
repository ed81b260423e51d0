"""A runtime in a separate Trio thread, for hosts that are not on Trio."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import anyio
import outcome
import trio
from anyio.from_thread import BlockingPortal

from hermes.actors.runtime import Runtime
from hermes.errors import ActorStopped, HermesError
from hermes.forks import FORKED, watch_forks
from hermes.user_code import contained, leaf, loggable

R = TypeVar("R")

SIGNAL_INTERVAL = 1.0
"""Seconds after which a waiting thread looks for signals, such as Ctrl-C."""


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
        self._portal: BlockingPortal | None = None
        """Accepts calls, while the runtime is open."""
        self._calls: set[trio.CancelScope] = set()
        """The scopes of the calls that run now."""
        self._cut_off = False
        """Whether calls that still run are cancelled, because the runtime has ended."""
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
        # The portal's own future is not used: if it is cancelled while the call ends, anyio raises.
        future: Future[R] = Future()
        scope = trio.CancelScope()
        with self._calling:
            if self._portal is None:
                raise self._end_error()
            self._portal.start_task_soon(self._run_call, function, future, scope)
        return future

    async def _run_call(
        self, function: Callable[[], Awaitable[R]], future: Future[R], scope: trio.CancelScope
    ) -> None:
        """Run a call. It fails with the end of the runtime, if that comes first."""
        _on_trio(future, scope.cancel)
        self._calls.add(scope)
        if self._cut_off:
            scope.cancel()
        result: outcome.Outcome[R] | None = None
        try:
            with scope, contained() as caught:
                result = outcome.Value(await function())
            if caught.error is not None:
                result = outcome.Error(caught.error)
        finally:
            self._calls.remove(scope)
            _settle(future, result or outcome.Error(self._end_error()))

    def _cut_off_calls(self) -> None:
        """Cancel the calls that still run, such as `run_on_trio`: the runtime has ended."""
        self._cut_off = True
        for scope in self._calls:
            scope.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether calls are refused because the runtime has ended, not in a forked process."""
        return self.opened.done() and self._portal is None and not self.is_fork

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
        result = outcome.capture(lambda: anyio.run(self._main, backend="trio"))
        if isinstance(result, outcome.Error) and not self.opened.done():
            self.opened.set_exception(result.error)
        self.ended.set_result(None)

    async def _main(self) -> None:
        async with BlockingPortal() as portal:
            self._portal = portal
            result = await outcome.acapture(self._hold)
            if self.opened.done() and isinstance(result, outcome.Error):
                self.failure = result.error  # before the portal is closed: callers are told
            await trio.to_thread.run_sync(self._accept_no_calls)
            self._cut_off_calls()
        result.unwrap()

    def _accept_no_calls(self) -> None:
        """Wait until no call is on its way: a portal that is closed meanwhile would lose it."""
        with self._calling:
            self._portal = None

    async def _hold(self) -> None:
        """Hold the runtime open until it is left or aborted, or fails."""
        leaving, scope = trio.Event(), trio.CancelScope()
        _on_trio(self._left, leaving.set)
        _on_trio(self._aborted, scope.cancel)
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
                token.run_sync_soon(function)

    asked.add_done_callback(call)


def _settle(future: Future[R], result: outcome.Outcome[R]) -> None:
    """Set the result of a future, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(result, outcome.Error):
        future.set_exception(result.error)
    else:
        future.set_result(result.unwrap())


def wait_for(future: Future[R]) -> R:
    """Wait for a result. Ctrl-C interrupts the wait."""
    # Python handles a signal that arrives just before a wait only when the wait ends.
    while not future.done():
        with contextlib.suppress(TimeoutError):
            future.exception(SIGNAL_INTERVAL)
    return future.result()
