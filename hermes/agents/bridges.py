"""Agents that do not run on Trio: plain functions in threads, and coroutines of asyncio.

Cancelled, they are told to stop and get a grace period. What still runs then is abandoned: what it
says is refused, its agent is not used again, and while too many are left no other turn is begun.
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

from hermes.agents.threads import LoopTask, LoopTurn, RemoteTurn, ThreadResult, ThreadTurn, outside
from hermes.messages import AgentSpec, TurnResult
from hermes.protocols import Turn

log = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
MAX_ABANDONED = 4
MAX_THREADS = 40
TOO_MANY = (
    "{number} answers did not stop when they were told to and still run; "
    "no other is begun before one of them ends"
)

Answer: TypeAlias = str | TurnResult
Blocking: TypeAlias = Callable[[ThreadTurn], Answer]
OnAsyncio: TypeAlias = Callable[[LoopTurn], Awaitable[Answer]]


@attrs.frozen
class BridgeStatistics:
    """How many turns run, and how many were abandoned and have not ended yet."""

    running: int
    abandoned: int


class Begin(Protocol):
    """Begins a turn elsewhere; returns the turn as it is used there, and what stops it."""

    def __call__(
        self, turn: Turn, away: ThreadResult[Answer], /
    ) -> tuple[RemoteTurn, Callable[[], None]]: ...


@attrs.define(eq=False)
class Crossings:
    """The turns of a builder's agents. Threads change it, by single steps on its sets."""

    begin: Begin
    grace_seconds: float
    max_abandoned: int
    running: set[ThreadResult[Answer]] = attrs.Factory(set)
    abandoned: set[ThreadResult[Answer]] = attrs.Factory(set)

    def abandon(self, turn_id: int, away: ThreadResult[Answer]) -> None:
        """Leave a turn alone that did not stop, and count it until it ends."""
        log.warning("turn %d did not stop within %g s: left", turn_id, self.grace_seconds)

        def ended() -> None:
            self.abandoned.discard(away)
            log.info("the late end of turn %d has no effect", turn_id)

        self.abandoned.add(away)
        away.then = ended
        if away.over:  # meanwhile, and perhaps before it could see `then`
            self.abandoned.discard(away)


@attrs.define(eq=False)
class BridgeAgent:
    """Runs turns elsewhere; `abandoned` when one did not stop, and no other may follow it."""

    on_trio: ClassVar[bool] = True
    crossings: Crossings
    abandoned: bool = False

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer with what the function returns."""
        crossings = self.crossings
        if len(crossings.abandoned) >= crossings.max_abandoned:
            error = TOO_MANY.format(number=len(crossings.abandoned))
            return TurnResult(failed=True, error=error, api_calls=0)
        away: ThreadResult[Answer] = ThreadResult()
        theirs, stop = crossings.begin(turn, away)
        crossings.running.add(away)
        try:
            said = await away.wait(stop, crossings.grace_seconds)
        finally:
            theirs.end()
            crossings.running.discard(away)
            if not away.over:
                self.abandoned = True
                crossings.abandon(turn.turn_id, away)
        return TurnResult(text=said) if isinstance(said, str) else said


class Bridge:
    """A builder of agents that run elsewhere."""

    def __init__(self, begin: Begin, grace_seconds: float, max_abandoned: int) -> None:
        self._crossings = Crossings(begin, grace_seconds, max_abandoned)

    def __call__(self, spec: AgentSpec) -> BridgeAgent:
        """Build one; they share the bound."""
        return BridgeAgent(self._crossings)

    def statistics(self) -> BridgeStatistics:
        """How many turns run now."""
        return BridgeStatistics(len(self._crossings.running), len(self._crossings.abandoned))


@attrs.define(eq=False)
class LimitedAgent(BridgeAgent):
    """Waits for one of the threads that its builder may use."""

    limiter: Callable[[], trio.CapacityLimiter] = attrs.field(kw_only=True)

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer with what the function returns."""
        async with self.limiter():
            return await super().run(turn)


class BlockingBridge(Bridge):
    """Builds agents that run a plain function, each turn in a worker thread of Trio's.

    Those threads are daemons: none of them keeps the process from exiting.
    """

    def __init__(
        self, fn: Blocking, *, grace_seconds: float, max_abandoned: int, max_threads: int
    ) -> None:
        super().__init__(self._begin, grace_seconds, max_abandoned)
        self._fn = fn
        self._max_threads = max_threads
        # One for each run of Trio: a builder may serve several, in several threads.
        self._limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("threads")

    def __call__(self, spec: AgentSpec) -> BridgeAgent:
        """Build one; they share the bounds."""
        return LimitedAgent(self._crossings, limiter=self._limiter)

    def _limiter(self) -> trio.CapacityLimiter:
        try:
            return self._limiters.get()
        except LookupError:
            limiter = trio.CapacityLimiter(self._max_threads)
            self._limiters.set(limiter)
            return limiter

    def _begin(
        self, turn: Turn, away: ThreadResult[Answer]
    ) -> tuple[RemoteTurn, Callable[[], None]]:
        theirs = ThreadTurn(turn)
        work = functools.partial(outside().run, self._fn, theirs)
        name = f"hermes turn {turn.turn_id}"
        trio.lowlevel.start_thread_soon(work, away.finish, name)
        return theirs, theirs.end


class AsyncioBridge(Bridge):
    """Builds agents that run a coroutine function on asyncio, all on one loop in one thread.

    The loop is asyncio's own and not trio_asyncio's: importing that would change asyncio for the
    whole process, and its loop ends with the first error that nobody waits for. It is begun by the
    first turn and goes on until `close` or the end of the process, because clients that were made
    on it are of no use on another.
    """

    def __init__(self, fn: OnAsyncio, *, grace_seconds: float, max_abandoned: int) -> None:
        super().__init__(self._begin, grace_seconds, max_abandoned)
        self._fn = fn
        self._starting = threading.Lock()  # two runtimes in two threads may share it
        self._thread: LoopThread | None = None

    def _begin(
        self, turn: Turn, away: ThreadResult[Answer]
    ) -> tuple[RemoteTurn, Callable[[], None]]:
        theirs = LoopTurn(turn)
        task = LoopTask(self._loop(), away, functools.partial(self._fn, theirs))

        def stop() -> None:
            theirs.end()
            task.stop()

        return theirs, stop

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread()
            return self._thread.loop

    def close(self) -> None:
        """Cancel what runs on the loop, and end its thread; another turn would begin another."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(self._crossings.grace_seconds)


class LoopThread:
    """An event loop of asyncio's in a thread that does not keep the process from exiting."""

    def __init__(self) -> None:
        # Named, since after an import of trio_asyncio the default is another.
        self.loop: asyncio.AbstractEventLoop = asyncio.SelectorEventLoop()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="hermes asyncio", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            while not self._closing:
                try:
                    runner.get_loop().run_forever()
                except BaseException:
                    log.exception("a task of asyncio's wanted to end its loop, which goes on")

    def close(self, seconds: float) -> None:
        """End it; waits no longer than so many seconds."""
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(seconds)


def blocking_agent(
    fn: Blocking,
    *,
    grace_seconds: float = GRACE_SECONDS,
    max_abandoned: int = MAX_ABANDONED,
    max_threads: int = MAX_THREADS,
) -> BlockingBridge:
    """A builder for `open_runtime` from a plain function: `fn(turn)` answers, in a thread."""
    if inspect.iscoroutinefunction(fn):
        raise TypeError("blocking_agent takes a plain function; for a coroutine: asyncio_agent")
    return BlockingBridge(
        fn, grace_seconds=grace_seconds, max_abandoned=max_abandoned, max_threads=max_threads
    )


def asyncio_agent(
    fn: OnAsyncio, *, grace_seconds: float = GRACE_SECONDS, max_abandoned: int = MAX_ABANDONED
) -> AsyncioBridge:
    """A builder for `open_runtime` from a coroutine function of asyncio's: `await fn(turn)`."""
    if not inspect.iscoroutinefunction(fn):
        raise TypeError("asyncio_agent takes a coroutine function; for a plain one: blocking_agent")
    return AsyncioBridge(fn, grace_seconds=grace_seconds, max_abandoned=max_abandoned)
