"""One timed loop of appends, the same for everybody.

Standard library only: the peers' interpreters import it too.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable
from time import perf_counter

from bench.peers.wire import Figures

WARM_UP = 20
LIMIT = 120.0
NAP = 0.001


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


class Run:
    """Goes on until the time and the count are both reached, or for LIMIT seconds."""

    def __init__(self, seconds: float, count: int = 0) -> None:
        self.seconds = seconds
        self.count = count
        self.latencies: list[float] = []
        self.stalls: list[float] = []
        self.started = perf_counter()
        self.elapsed = 0.0

    def going(self) -> bool:
        elapsed = perf_counter() - self.started
        return (elapsed < self.seconds or len(self.latencies) < self.count) and elapsed < LIMIT

    def add(self, started: float) -> None:
        """One append, begun at `started`, is durable now."""
        self.latencies.append(perf_counter() - started)

    def napped(self, started: float) -> None:
        """A nap in the same event loop, begun at `started`, is over: what it lasted too long."""
        self.stalls.append(perf_counter() - started - NAP)

    def finish(self) -> None:
        self.elapsed = perf_counter() - self.started

    def figures(self) -> Figures:
        figures = {
            "count": float(len(self.latencies)),
            "rate": len(self.latencies) / self.elapsed,
            "p50_ms": statistics.median(self.latencies) * 1e3,
            "p99_ms": percentile(self.latencies, 0.99) * 1e3,
            "worst_ms": max(self.latencies) * 1e3,
        }
        if self.stalls:
            figures["stall_p99_ms"] = percentile(self.stalls, 0.99) * 1e3
        return figures

    def searched(self, seconds: float, hits: int) -> Figures:
        """The figures with what it took until a word of the last append was found."""
        if hits != 1:
            raise AssertionError(f"the word of the last append was found {hits} times")
        sustained = len(self.latencies) / (self.elapsed + seconds)
        return {**self.figures(), "catch_up_ms": seconds * 1e3, "searchable_rate": sustained}


def blocking(append: Callable[[int], object], seconds: float) -> Run:
    """One caller, no event loop; `append` is told its turn."""
    for turn in range(WARM_UP):
        append(turn)
    run = Run(seconds)
    turn = WARM_UP
    while run.going():
        started = perf_counter()
        append(turn)
        run.add(started)
        turn += 1
    run.finish()
    return run


Append = Callable[[int, int], Awaitable[object]]
"""An append in an event loop; it is told its caller and its turn."""


async def warm_up(append: Append, callers: int, caller: int) -> None:
    for turn in range(warm_up_turns(callers)):
        await append(caller, turn)


async def call(run: Run, append: Append, callers: int, caller: int) -> None:
    """Append, await it, append the next, for as long as the run goes on."""
    turn = warm_up_turns(callers)
    while run.going():
        started = perf_counter()
        await append(caller, turn)
        run.add(started)
        turn += 1


def warm_up_turns(callers: int) -> int:
    return max(2, WARM_UP // callers)


async def with_asyncio(append: Append, callers: int, seconds: float, count: int) -> Run:
    """Many callers in one loop, each awaiting its append before the next."""

    async def nap() -> None:
        while True:
            started = perf_counter()
            await asyncio.sleep(NAP)
            run.napped(started)

    await asyncio.gather(*(warm_up(append, callers, caller) for caller in range(callers)))
    run = Run(seconds, count)
    sleepers = [asyncio.ensure_future(nap())] if callers > 1 else []  # alone, it would disturb
    await asyncio.gather(*(call(run, append, callers, caller) for caller in range(callers)))
    run.finish()
    for sleeper in sleepers:
        sleeper.cancel()
    return run
