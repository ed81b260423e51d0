"""Work in another thread that a Trio task waits for, and the turn as seen from there."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import attrs
import outcome
import trio

from hermes import user_code
from hermes.agents.crossing import await_on_trio, thread_context
from hermes.agents.remote_runtime import LoopRuntime, ThreadRuntime
from hermes.background import set_event, until_memory
from hermes.errors import TurnClosed
from hermes.events import AgentEvent
from hermes.messages import (
    ConversationSettings,
    CostTotals,
    JsonObject,
    Message,
    SearchHit,
    Source,
    StoredMessage,
    Usage,
)
from hermes.protocols import Turn

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


class RemoteTurn:
    """A turn for code in another thread; its methods call the runtime's thread."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._token = trio.lowlevel.current_trio_token()
        self._closed = threading.Event()
        self.error: BaseException | None = None
        """Why an event could not be published, if the agent was not told."""

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        return self._turn.session_key

    @property
    def session_id(self) -> str:
        """The current session of the conversation."""
        return self._turn.session_id

    @property
    def turn_id(self) -> int:
        """The id of the turn; the same if the turn runs again after a crash."""
        return self._turn.turn_id

    @property
    def source(self) -> Source:
        """Where the first message of the turn comes from."""
        return self._turn.source

    @property
    def settings(self) -> ConversationSettings:
        """The settings of the conversation when the turn began."""
        return self._turn.settings

    @property
    def metadata(self) -> JsonObject:
        """The metadata of the messages."""
        return self._turn.metadata

    @property
    def input(self) -> Sequence[Message]:
        """The messages to answer."""
        return self._turn.input

    @property
    def text(self) -> str:
        """The input as one text."""
        return self._turn.text

    @property
    def decided_calls(self) -> Sequence[int]:
        """The numbers of the tool calls that the input approves or denies."""
        return self._turn.decided_calls

    @property
    def history(self) -> Sequence[Message | StoredMessage]:
        """The stored rows before this turn. Not a copy: do not keep it after the turn."""
        return self._turn.history

    @property
    def deadline(self) -> float:
        """When the turn is cancelled, on Trio's clock."""
        return self._turn.deadline

    @property
    def records(self) -> None:
        """Always None: tools that record their calls need the runtime's own thread."""
        return

    def ordinal(self, tool: str, arguments: str) -> int:
        """Count a tool call; returns how often the same call was made before in this run."""
        return self._call(lambda: self._turn.ordinal(tool, arguments))

    def messages(self) -> list[Message]:
        """Return history and input as valid messages for a model."""
        return self._turn.messages()

    def charge(self, usage: Usage) -> None:
        """Record a call to a provider; it counts whether or not the turn succeeds."""
        self._call(lambda: self._turn.charge(usage))

    def steered(self) -> list[Message]:
        """Return messages that arrived during the turn and should be taken into account now."""
        return self._call(self._turn.steered)

    def end(self) -> None:
        """Close the turn: from now on its methods raise `TurnClosed`."""
        self._closed.set()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error

    def _call(self, function: Callable[[], R]) -> R:
        """Call a function in the runtime's thread, and return its result."""

        def call() -> R:
            self._check_open()
            return function()

        self._check_open()
        try:
            return trio.from_thread.run_sync(call, trio_token=self._token)
        except trio.RunFinishedError:
            raise self._closed_error() from None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self._closed_error()

    def _closed_error(self) -> TurnClosed:
        return TurnClosed(f"turn {self.turn_id} is over")


class ThreadTurn(RemoteTurn):
    """A turn for a function in a thread. The function should check `cancelled` from time to time.

    Methods raise `TurnClosed` after the turn has ended or was cancelled.
    """

    @property
    def cancelled(self) -> bool:
        """Whether the function should stop, because its answer is no longer wanted."""
        return self._closed.is_set()

    def wait_cancelled(self, seconds: float | None = None) -> bool:
        """Sleep until the turn is cancelled, at most `seconds`; returns `cancelled`."""
        return self._closed.wait(seconds)

    def spent(self) -> CostTotals:
        """Return what the conversation, its user and the day have cost, running turns included."""
        return self._await(self._turn.spent)

    def search(
        self, words: str, *, role: str | None = None, limit: int = 20
    ) -> Sequence[SearchHit]:
        """Search the messages of this conversation, earlier sessions included; best match first."""
        return self._await(functools.partial(self._turn.search, words, role=role, limit=limit))

    @property
    def runtime(self) -> ThreadRuntime:
        """The conversation of the turn, and others. Raises `TurnClosed` if the turn is over."""
        self._check_open()
        return ThreadRuntime(self._turn.runtime, self._await)

    def _await(self, work: Callable[[], Awaitable[R]], /) -> R:
        """Run an async function in the runtime's thread, and return its result."""
        self._check_open()
        return trio.from_thread.run(work, trio_token=self._token)

    def emit(self, event: AgentEvent) -> None:
        """Publish an event; returns when the runtime has published it."""
        self._call(lambda: self._turn.emit(event))


class LoopTurn(RemoteTurn):
    """A turn for a coroutine on the event loop of another thread.

    Methods raise `TurnClosed` after the turn has ended or was cancelled.
    """

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._events: Handover[AgentEvent] = Handover(self._token.run_sync_soon, self._emit)

    async def spent(self) -> CostTotals:
        """Return what the conversation, its user and the day have cost, running turns included."""
        return await self._await(self._turn.spent)

    async def search(
        self, words: str, *, role: str | None = None, limit: int = 20
    ) -> Sequence[SearchHit]:
        """Search the messages of this conversation, earlier sessions included; best match first."""
        search = functools.partial(self._turn.search, words, role=role, limit=limit)
        return await self._await(search)

    @property
    def runtime(self) -> LoopRuntime:
        """The conversation of the turn, and others. Raises `TurnClosed` if the turn is over."""
        self._check_open()
        return LoopRuntime(self._turn.runtime, self._await)

    async def _await(self, function: Callable[[], Awaitable[R]], /) -> R:
        """Run an async function in the runtime's thread, and return its result."""
        self._check_open()
        try:
            return await await_on_trio(self._token, function)
        except trio.RunFinishedError:
            raise self._closed_error() from None

    def emit(self, event: AgentEvent) -> None:
        """Publish an event; does not wait, but keeps the order."""
        self._check_open()
        try:
            self._events.put(event)
        except trio.RunFinishedError:
            raise self._closed_error() from None

    def _emit(self, event: AgentEvent) -> None:
        # Trio ends with an exception that leaves this function.
        with user_code.contained() as caught:
            self._turn.emit(event)
        if isinstance(caught.error, TurnClosed):
            self.end()
        elif caught.error is not None:
            self._fail(caught.error)
