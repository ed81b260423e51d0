"""Agents outside of Trio: functions in threads, and coroutine functions on asyncio.

A turn that is cancelled gets a grace period to stop. If it still runs then, it is abandoned: its
events are refused, its agent is not used again, and if too many abandoned turns are left, no new
turn starts.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol, TypeAlias

import attrs
import trio

from hermes.agents.crossing import thread_context
from hermes.agents.remote_files import answer_in_thread, answer_on_loop
from hermes.agents.remote_turns import LoopTurn, RemoteTurn, ThreadTurn
from hermes.agents.threads import LoopTask, ThreadResult
from hermes.agents.turn_texts import texts_of
from hermes.background import holding
from hermes.messages import AgentSpec, TurnResult
from hermes.protocols import Agent, RunsOnTrio, SupportsAbandon, Turn

log: logging.Logger = logging.getLogger(__name__)

GRACE_PERIOD = 5.0
MAX_ABANDONED = 4
MAX_THREADS = 40

Answer: TypeAlias = str | TurnResult
ThreadFunction: TypeAlias = Callable[[ThreadTurn], Answer]
AsyncioFunction: TypeAlias = Callable[[LoopTurn], Awaitable[Answer]]


@attrs.frozen
class BridgeStatistics:
    """The number of turns that run, and of abandoned turns that have not ended yet."""

    running: int
    abandoned: int


class StartTurn(Protocol):
    """Starts a turn in another thread; returns the turn as used there, and a function to stop it.

    The outcome is passed to `result.finish`.
    """

    def __call__(
        self, turn: Turn, result: ThreadResult[Answer], /
    ) -> tuple[RemoteTurn, Callable[[], None]]: ...


@attrs.define(eq=False)
class BridgeState:
    """The turns of all agents of one bridge.

    Several threads change it; each change is a single operation on a set.
    """

    start_turn: StartTurn
    grace_period: float
    max_abandoned: float
    running: set[ThreadResult[Answer]] = attrs.Factory(set)
    abandoned: set[ThreadResult[Answer]] = attrs.Factory(set)
    on_idle: Callable[[], None] | None = None
    """Called when the last abandoned turn has ended, in its own thread."""

    def abandon(self, turn: Turn, result: ThreadResult[Answer]) -> None:
        """Count a turn that did not stop as abandoned until it ends."""
        turn_id, extra = turn.turn_id, {"metadata": turn.metadata}
        text = "turn %d did not stop within %g s: abandoned"
        log.warning(text, turn_id, self.grace_period, extra=extra)

        def on_finish() -> None:
            text = "the abandoned turn %d has ended; its result is ignored"
            log.info(text, turn_id, extra=extra)
            self.abandoned.discard(result)
            if self.on_idle is not None and not self.abandoned:
                self.on_idle()

        self.abandoned.add(result)
        result.on_finish = on_finish
        if result.done:  # it ended meanwhile, and perhaps before on_finish was set
            self.abandoned.discard(result)


@attrs.define(eq=False)
class BridgeAgent(Agent, SupportsAbandon, RunsOnTrio):
    """An agent whose turns run in another thread."""

    on_trio: ClassVar[bool] = True
    state: BridgeState
    _left: ThreadResult[Answer] | None = attrs.field(init=False, default=None)

    @property
    def abandoned(self) -> bool:
        """Whether a turn did not stop and still runs; the runtime then discards the agent."""
        return self._left is not None and not self._left.done

    async def run(self, turn: Turn, /) -> TurnResult:
        """Run the function, and return its result."""
        state = self.state
        if len(state.abandoned) >= state.max_abandoned:
            error = texts_of(turn).too_many_abandoned.format(number=len(state.abandoned))
            return TurnResult(failed=True, error=error, api_calls=0)
        result: ThreadResult[Answer] = ThreadResult()
        remote, stop = state.start_turn(turn, result)
        state.running.add(result)
        try:
            answer = await result.wait(stop, state.grace_period)
            if remote.error is not None:
                raise remote.error
        finally:
            remote.end()
            state.running.discard(result)
            if not result.done:
                self._left = result
                state.abandon(turn, result)
        return TurnResult(text=answer) if isinstance(answer, str) else answer

    def for_conversation(self) -> BridgeAgent:
        """Return the same agent for another conversation; it is abandoned separately."""
        return attrs.evolve(self)


class Bridge:
    """A builder of agents whose turns run in another thread."""

    def __init__(self, start_turn: StartTurn, grace_period: float, max_abandoned: int) -> None:
        self._state = BridgeState(start_turn, grace_period, max_abandoned)

    def __call__(self, spec: AgentSpec) -> BridgeAgent:
        """Build an agent; all agents of a bridge share its limits."""
        return BridgeAgent(self._state)

    def statistics(self) -> BridgeStatistics:
        """Return the number of running and abandoned turns."""
        return BridgeStatistics(len(self._state.running), len(self._state.abandoned))


@attrs.define(eq=False)
class LimitedAgent(BridgeAgent):
    """A bridge agent that first waits for one of a limited number of threads."""

    limiter: Callable[[], trio.CapacityLimiter] = attrs.field(kw_only=True)

    async def run(self, turn: Turn, /) -> TurnResult:
        """Run the function, and return its result."""
        async with holding(self.limiter()):
            return await super().run(turn)


class BlockingBridge(Bridge):
    """Builds agents that run a function, each turn in one of Trio's worker threads.

    These are daemon threads, so an abandoned turn does not keep the process from exiting.
    """

    def __init__(
        self, fn: ThreadFunction, *, grace_period: float, max_abandoned: int, max_threads: int
    ) -> None:
        super().__init__(self._start_turn, grace_period, max_abandoned)
        self._fn = fn
        self._max_threads = max_threads
        # One limiter for each Trio run: several runs, in several threads, may share a bridge.
        self._limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("threads")

    def __call__(self, spec: AgentSpec) -> BridgeAgent:
        """Build an agent; all agents of a bridge share its limits."""
        return LimitedAgent(self._state, limiter=self._limiter)

    def _limiter(self) -> trio.CapacityLimiter:
        try:
            return self._limiters.get()
        except LookupError:
            limiter = trio.CapacityLimiter(self._max_threads)
            self._limiters.set(limiter)
            return limiter

    def _start_turn(
        self, turn: Turn, result: ThreadResult[Answer]
    ) -> tuple[RemoteTurn, Callable[[], None]]:
        remote = ThreadTurn(turn)
        work = functools.partial(thread_context().run, answer_in_thread, self._fn, remote)
        name = f"hermes turn {turn.turn_id}"
        trio.lowlevel.start_thread_soon(work, result.finish, name)
        return remote, remote.end


class AsyncioBridge(Bridge):
    """Builds agents that run a coroutine function on asyncio; all turns share one loop and thread.

    The loop is asyncio's own, not that of trio_asyncio: importing trio_asyncio changes asyncio for
    the whole process, and its loop ends with the first exception that nobody waits for. The first
    turn starts the loop. It runs until `close` or the end of the process, because clients that were
    created on one loop cannot be used on another.
    """

    def __init__(self, fn: AsyncioFunction, *, grace_period: float, max_abandoned: int) -> None:
        super().__init__(self._start_turn, grace_period, max_abandoned)
        self._fn = fn
        self._lock = threading.Lock()  # runtimes in several threads may share a bridge
        self._thread: LoopThread | None = None

    def _start_turn(
        self, turn: Turn, result: ThreadResult[Answer]
    ) -> tuple[RemoteTurn, Callable[[], None]]:
        remote = LoopTurn(turn)
        work = functools.partial(answer_on_loop, self._fn, remote)
        task = LoopTask(self._loop(), result, work)

        def stop() -> None:
            remote.end()
            task.stop()

        return remote, stop

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            return self._thread.loop

    def close(self) -> None:
        """Cancel all tasks of the loop and stop its thread; another turn would start a new loop."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(self._state.grace_period)


class LoopThread:
    """An asyncio event loop in a daemon thread."""

    def __init__(self) -> None:
        # Not asyncio.new_event_loop: after an import of trio_asyncio that makes another kind.
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hermes asyncio", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            while not self._closing:
                try:
                    runner.get_loop().run_forever()
                except BaseException:  # a SystemExit of one task must not stop all others
                    log.exception("an asyncio task tried to stop its event loop; it keeps running")

    def close(self, timeout: float) -> None:
        """Stop the loop, and wait for its thread for at most `timeout` seconds."""
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)


def blocking_agent(
    fn: ThreadFunction,
    *,
    grace_period: float = GRACE_PERIOD,
    max_abandoned: int = MAX_ABANDONED,
    max_threads: int = MAX_THREADS,
) -> BlockingBridge:
    """Make a builder of agents from a plain function, which runs in a thread.

    Args:
        fn: Called with a `ThreadTurn`; returns the answer as a string or a `TurnResult`.
        grace_period: How long a cancelled turn may run on, in seconds, before it is abandoned.
        max_abandoned: With this many abandoned turns, new turns fail.
        max_threads: Maximum number of threads; further turns wait.

    Raises `TypeError` for a coroutine function.
    """
    if inspect.iscoroutinefunction(fn):
        raise TypeError("blocking_agent takes a plain function; use asyncio_agent for a coroutine")
    return BlockingBridge(
        fn, grace_period=grace_period, max_abandoned=max_abandoned, max_threads=max_threads
    )


def asyncio_agent(
    fn: AsyncioFunction,
    *,
    grace_period: float = GRACE_PERIOD,
    max_abandoned: int = MAX_ABANDONED,
) -> AsyncioBridge:
    """Make a builder of agents from a coroutine function, which runs on asyncio.

    Args:
        fn: Called with a `LoopTurn`; returns the answer as a string or a `TurnResult`.
        grace_period: How long a cancelled turn may run on, in seconds, before it is abandoned.
        max_abandoned: With this many abandoned turns, new turns fail.

    Raises `TypeError` for a plain function.
    """
    if not inspect.iscoroutinefunction(fn):
        raise TypeError("asyncio_agent takes a coroutine function; use blocking_agent for others")
    return AsyncioBridge(fn, grace_period=grace_period, max_abandoned=max_abandoned)
