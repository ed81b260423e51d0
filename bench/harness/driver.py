"""What every driver uses: the protocol, and timed loops with the same warm-up and figures.

Drivers run in the environments of peers, so this uses the standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

WARM_UP = 20
WARM_UP_MESSAGES = 200
LIMIT = 120.0
NAP = 0.001

T = TypeVar("T")
Figures = dict[str, float]
Task = Callable[[], Coroutine[Any, Any, Any]]


def run_asyncio(task: Task) -> Any:
    return asyncio.run(task())


def serve(
    about: Mapping[str, str],
    *commands: Callable[..., Any],
    run: Callable[[Task], Any] = run_asyncio,
) -> None:
    """Answer requests by calling the functions they name, until standard input is closed.

    Requests and responses are lines of JSON; the first line describes the driver. `run` runs the
    commands that are coroutine functions, like `trio.run`.
    """
    known = {command.__name__: command for command in commands}
    # Anything the measured library prints goes to standard error and cannot corrupt a response.
    responses = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"python": platform.python_version(), **about}), file=responses)
    for line in sys.stdin:
        request = json.loads(line)
        response: dict[str, Any]
        try:
            call = partial(known[request["do"]], **request["with"])
            figures = run(call) if inspect.iscoroutinefunction(call.func) else call()
            response = {"figures": figures}
        except Exception as error:  # noqa: BLE001 - reported to the benchmark, which stops
            traceback.print_exc()
            response = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(response), file=responses)


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
        wanted = elapsed < self._seconds or len(self.latencies) < max(1, self._count)
        return wanted and elapsed < LIMIT

    def add(self, started: float) -> None:
        """Record an operation that began at `started` and is complete now."""
        self.latencies.append(perf_counter() - started)

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


async def gather(tasks: Sequence[Task]) -> None:
    await asyncio.gather(*(task() for task in tasks))


async def time_calls(
    call: Callable[[int, int], Awaitable[object]],
    callers: int,
    seconds: float,
    count: int = 0,
    *,
    turns: int = 0,
    stalls: bool = True,
    together: Callable[[Sequence[Task]], Awaitable[None]] = gather,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Run:
    """Time concurrent callers in one event loop, after a warm-up of `turns` for each.

    `call` gets the number of its caller and of its turn. With several callers, also measure how
    late a task that sleeps 1 ms is woken up (`stalls`). The defaults of `together`, which runs
    tasks concurrently, and of `sleep` are asyncio's.
    """
    turns = turns or max(2, WARM_UP // callers)
    working = set(range(callers))

    async def warm_up(caller: int) -> None:
        for turn in range(turns):
            await call(caller, turn)

    async def work(caller: int) -> None:
        turn = turns
        while run.going():
            started = perf_counter()
            await call(caller, turn)
            run.add(started)
            turn += 1
        working.remove(caller)
        if not working:
            run.finish()

    async def nap() -> None:
        while working:
            started = perf_counter()
            await sleep(NAP)
            run.stalls.append(perf_counter() - started - NAP)

    await together([partial(warm_up, caller) for caller in range(callers)])
    run = Run(seconds, count)
    tasks: list[Task] = [partial(work, caller) for caller in range(callers)]
    await together([*tasks, nap] if callers > 1 and stalls else tasks)
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


def check_durability(execute: Callable[[str], Any]) -> None:
    """Every store must use WAL mode with synchronous=FULL, as read back from its connection."""
    names = ("journal_mode", "synchronous")
    settings = [execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    if settings != ["wal", 2]:
        raise AssertionError(f"the store does not have the same durability: {settings}")


def call_in_new_process(call: Callable[..., T], *arguments: object) -> T:
    """Call a function in a new process, which imports everything again."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(call, *arguments).result()


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
