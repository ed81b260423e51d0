"""The timed loops: the same warm-up, clock and figures for every driver."""

from __future__ import annotations

import asyncio
import math
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from bench.harness.protocol import Figures

WARM_UP = 20
WARM_UP_MESSAGES = 200
LIMIT = 120.0
NAP = 0.001

Call = Callable[[int, int], Awaitable[object]]
"""One timed operation in an event loop; it gets the number of its caller and of its turn."""


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


class Run:
    """Latencies of a timed loop, which ends when both the time and the count are reached."""

    def __init__(self, seconds: float, count: int = 0) -> None:
        self.latencies: list[float] = []
        self.stalls: list[float] = []
        self._seconds = seconds
        self._count = count
        self._cpu = process_time()
        self._started = perf_counter()

    def going(self) -> bool:
        elapsed = perf_counter() - self._started
        wanted = elapsed < self._seconds or len(self.latencies) < self._count
        return wanted and elapsed < LIMIT

    def add(self, started: float) -> None:
        """Record an operation that began at `started` and is complete now."""
        self.latencies.append(perf_counter() - started)

    def add_nap(self, started: float) -> None:
        """Record a sleep in the same event loop: how much longer it took than it should have."""
        self.stalls.append(perf_counter() - started - NAP)

    def finish(self) -> None:
        self.elapsed = perf_counter() - self._started
        self.cpu_ms = (process_time() - self._cpu) / len(self.latencies) * 1e3

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

    def figures_with_cpu(self) -> Figures:
        return {**self.figures(), "cpu_ms": self.cpu_ms}

    def figures_with_search(self, seconds: float, hits: int) -> Figures:
        """Add the rate until a search found the last append, which took `seconds` more."""
        if hits != 1:
            raise AssertionError(f"the search found the last append {hits} times instead of once")
        sustained = len(self.latencies) / (self.elapsed + seconds)
        return {**self.figures(), "catch_up_ms": seconds * 1e3, "searchable_rate": sustained}


def time_blocking(call: Callable[[int], object], seconds: float, count: int = 0) -> Run:
    """Time one caller without an event loop."""
    for turn in range(WARM_UP):
        call(turn)
    run = Run(seconds, count)
    turn = WARM_UP
    while run.going():
        started = perf_counter()
        call(turn)
        run.add(started)
        turn += 1
    run.finish()
    return run


def warm_up_turns(callers: int) -> int:
    return max(2, WARM_UP // callers)


async def call_repeatedly(run: Run, call: Call, caller: int, turn: int) -> None:
    """Await one call after the other, beginning with this turn, while the run goes on."""
    while run.going():
        started = perf_counter()
        await call(caller, turn)
        run.add(started)
        turn += 1


async def warm_up(call: Call, caller: int, turns: int) -> None:
    for turn in range(turns):
        await call(caller, turn)


async def time_asyncio(
    call: Call, callers: int, seconds: float, count: int = 0, *, turns: int = 0, stalls: bool = True
) -> Run:
    """Time concurrent callers in one asyncio loop, after a warm-up of `turns` for each.

    With several callers, also measure how late a task that sleeps 1 ms is woken up (`stalls`).
    """

    async def nap() -> None:
        while True:
            started = perf_counter()
            await asyncio.sleep(NAP)
            run.add_nap(started)

    turns = turns or warm_up_turns(callers)
    await asyncio.gather(*(warm_up(call, caller, turns) for caller in range(callers)))
    run = Run(seconds, count)
    napping = [asyncio.ensure_future(nap())] if callers > 1 and stalls else []
    await asyncio.gather(*(call_repeatedly(run, call, caller, turns) for caller in range(callers)))
    run.finish()
    for task in napping:
        task.cancel()
    return run


def message_figures(count: int, seconds: float) -> Figures:
    return {"count": float(count), "rate": count / seconds, "us": seconds / count * 1e6}


def _check(number: int, reply: int) -> None:
    if reply != number + 1:
        raise AssertionError(f"the reply to {number} was {reply}")


def ask_blocking(ask: Callable[[int], int], count: int) -> Figures:
    """Time requests to an actor that adds one to a number, one after the other."""
    for number in range(WARM_UP_MESSAGES):
        ask(number)
    started = perf_counter()
    for number in range(count):
        _check(number, ask(number))
    return message_figures(count, perf_counter() - started)


async def ask_async(ask: Callable[[int], Awaitable[int]], count: int) -> Figures:
    """Do the same as `ask_blocking` in any event loop."""
    for number in range(WARM_UP_MESSAGES):
        await ask(number)
    started = perf_counter()
    for number in range(count):
        _check(number, await ask(number))
    return message_figures(count, perf_counter() - started)


def time_opening(
    open_file: Callable[[], Any], query: Callable[[Any], object], times: int
) -> Figures:
    """Open a file and query a session, several times; the first time only warms up."""
    opened, answered = [], []
    for _ in range(times + 1):
        started = perf_counter()
        store = open_file()
        opened.append(perf_counter() - started)
        if not query(store):
            raise AssertionError("a stored session was not found")
        answered.append(perf_counter() - started)
        store.close()
    return {
        "ms": statistics.median(answered[1:]) * 1e3,
        "open_ms": statistics.median(opened[1:]) * 1e3,
    }


def durability_figures(execute: Callable[[str], Any]) -> Figures:
    """Read the journal mode and the flush setting back from a connection."""
    journal, synchronous = (
        execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    )
    return {"wal": float(journal == "wal"), "synchronous": float(synchronous)}


# The peak is read from /proc: getrusage would include the process that started this one.
IMPORTING = """
import time
started = time.perf_counter()
{code}
seconds = time.perf_counter() - started
with open("/proc/self/status") as status:
    print(seconds, *(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def importing(code: str) -> Figures:
    """Run import statements in a new process: how long they take, and the memory of the process."""
    program = [sys.executable, "-c", IMPORTING.format(code=code)]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True)
    seconds, kib = done.stdout.split()[-2:]
    return {"seconds": float(seconds), "mib": int(kib) / 1024}


def size_figures(path: Path) -> Figures:
    """The size of a database with the files beside it (log, shared memory, lock)."""
    size = sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))
    return {"mib": size / 2**20}
