"""Work in another thread that a task on Trio waits for, and a turn that can be used there."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import outcome
import trio
from sniffio import current_async_library_cvar

from hermes import user_code
from hermes.errors import TurnClosed
from hermes.events import AgentEvent
from hermes.messages import CostTotals, Message, Source, StoredMessage, Usage
from hermes.protocols import Turn

R = TypeVar("R")


def outside() -> contextvars.Context:
    """A copy of the context for code that does not run on Trio; a turn's cell is shared by it."""
    context = contextvars.copy_context()
    # anyio and all that is built on it would believe that they are on Trio there.
    context.run(current_async_library_cvar.set, None)
    return context


class ThreadResult(Generic[R]):
    """Work that runs elsewhere. Made on Trio, ended by `finish` in whatever thread it runs."""

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._ended = trio.Event()
        self._outcome: outcome.Outcome[R] | None = None
        self.held: object = None
        """What must live as long as this; asyncio itself does not hold its tasks."""
        self.then: Callable[[], None] | None = None
        """Called at the end of work that was abandoned, in its own thread."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._outcome is not None

    def finish(self, ended: outcome.Outcome[R]) -> None:
        """It has ended; this never raises, since there is nobody who could hear it."""
        self._outcome = ended
        with contextlib.suppress(trio.RunFinishedError):  # then nobody waits any more
            self._token.run_sync_soon(self._ended.set)
        if (then := self.then) is not None:
            then()

    async def wait(self, stop: Callable[[], None], grace: float) -> R:
        """Its result. Cancelled here it is told to stop, and waited for no longer than `grace`."""
        try:
            await self._ended.wait()
        except trio.Cancelled:
            stop()
            with trio.move_on_after(grace, shield=True):
                await self._ended.wait()
            raise
        assert self._outcome is not None
        try:
            return self._outcome.unwrap()
        except asyncio.CancelledError as error:
            raise RuntimeError("it was cancelled, and not by the runtime") from error
        except BaseException as error:
            if user_code.passing(error) is None:
                raise
            # Trio's cancellations and Ctrl-C come to nobody in another thread.
            raise RuntimeError(f"it raised {user_code.describe(error)}") from error


class LoopTask(Generic[R]):
    """Work that runs as a task of another thread's loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        away: ThreadResult[R],
        work: Callable[[], Awaitable[R]],
    ) -> None:
        self._loop = loop
        self._away = away
        self._work = work
        self._task: asyncio.Task[None] | None = None
        away.held = self
        loop.call_soon_threadsafe(self._begin, context=outside())

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        # Caught here: asyncio would let a SystemExit of a task end its whole loop.
        self._away.finish(await outcome.acapture(self._work))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step
            self._away.finish(outcome.Error(asyncio.CancelledError()))

    def stop(self) -> None:
        """Cancel it, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class RemoteTurn:
    """A turn as it is used in another thread: what is said there crosses to the runtime's."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._token = trio.lowlevel.current_trio_token()
        self._over = threading.Event()

    @property
    def session_key(self) -> str:
        return self._turn.session_key

    @property
    def session_id(self) -> str:
        return self._turn.session_id

    @property
    def turn_id(self) -> int:
        return self._turn.turn_id

    @property
    def source(self) -> Source:
        return self._turn.source

    @property
    def input(self) -> Sequence[Message]:
        return self._turn.input

    @property
    def text(self) -> str:
        return self._turn.text

    @property
    def history(self) -> Sequence[Message | StoredMessage]:
        return self._turn.history

    @property
    def deadline(self) -> float:
        return self._turn.deadline

    @property
    def records(self) -> None:
        """The store is awaited on the runtime's loop, not here."""
        return

    def ordinal(self, tool: str, arguments: str) -> int:
        """How often the same call came before in this run; counts this one."""
        return self._there(lambda: self._turn.ordinal(tool, arguments))

    def messages(self) -> list[Message]:
        """History and input as a model may be shown them."""
        return self._turn.messages()

    def charge(self, usage: Usage) -> None:
        """A provider was called: this is on the bill, whatever becomes of the turn."""
        self._there(lambda: self._turn.charge(usage))

    def steered(self) -> list[Message]:
        """Input that came meanwhile and asks to be heard now."""
        return self._there(self._turn.steered)

    def end(self) -> None:
        """It has answered or is to stop: what it says from now on is refused."""
        self._over.set()

    def _there(self, function: Callable[[], R]) -> R:
        """Call it in the runtime's thread, and wait."""

        def call() -> R:
            self._refuse_late()
            return function()

        self._refuse_late()
        try:
            return trio.from_thread.run_sync(call, trio_token=self._token)
        except trio.RunFinishedError:
            raise self._closed() from None

    def _refuse_late(self) -> None:
        if self._over.is_set():
            raise self._closed()

    def _closed(self) -> TurnClosed:
        return TurnClosed(f"turn {self.turn_id} is over")


class ThreadTurn(RemoteTurn):
    """A turn for a plain function in a thread; it asks `cancelled` whether to stop."""

    @property
    def cancelled(self) -> bool:
        """Whether it should stop: nobody wants its answer any more."""
        return self._over.is_set()

    def wait_cancelled(self, seconds: float | None = None) -> bool:
        """Sleep, but no longer than until it should stop; says whether it should."""
        return self._over.wait(seconds)

    def spent(self) -> CostTotals:
        """What this conversation has cost, and this day, with the turns that run."""
        return trio.from_thread.run(self._turn.spent, trio_token=self._token)

    def emit(self, event: AgentEvent) -> None:
        """Tell what happens; returns once it is told."""
        self._there(lambda: self._turn.emit(event))


class LoopTurn(RemoteTurn):
    """A turn for a coroutine on another thread's loop, which must not wait for us."""

    async def spent(self) -> CostTotals:
        """What this conversation has cost, and this day, with the turns that run."""
        return await asyncio.to_thread(
            lambda: trio.from_thread.run(self._turn.spent, trio_token=self._token)
        )

    def emit(self, event: AgentEvent) -> None:
        """Tell what happens; in order, and without a wait."""
        self._refuse_late()
        try:
            self._token.run_sync_soon(self._emit, event)
        except trio.RunFinishedError:
            raise self._closed() from None

    def _emit(self, event: AgentEvent) -> None:
        try:
            self._turn.emit(event)
        except TurnClosed:
            self.end()
