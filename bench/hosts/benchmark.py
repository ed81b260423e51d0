"""The hosts benchmark: streams in asyncio and synchronous programs, compared with Trio."""

from __future__ import annotations

import attrs

from bench.harness.benchmark import Benchmark, Cell, Contender, Group, measure_cells
from bench.harness.measurements import Goal, Ref
from bench.report.results import Column

TRIO, ASYNCIO, BLOCKING = "on Trio", "on asyncio", "without an event loop"
COMMANDS = {TRIO: "on_trio", ASYNCIO: "on_asyncio", BLOCKING: "in_threads"}
AT_ONCE, ONE_BY_ONE = "at once", "one by one"
STREAMED = (
    Column("p50_ms", "p50 ms", 2, explains="Median time from the message to the last event."),
    Column("p99_ms", "p99 ms", 1, explains="99th percentile of that time."),
    Column("cpu_ms", "CPU ms", 2, explains="Processor time of a stream, in all threads."),
)


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work; the defaults are a full run."""

    repetitions: int = 9
    streams: int = 100
    pieces: int = 200


FULL = Plan()
QUICK = Plan(repetitions=3, streams=20)


def groups(plan: Plan) -> list[Group]:
    """An agent that emits all pieces at once, and one that lets other tasks run in between."""
    explained = {
        AT_ONCE: f"An agent on the loop of its host emits {plan.pieces} pieces without waiting, "
        "and a reader of the same program reads all events.",
        ONE_BY_ONE: "The same, but the agent lets other tasks run after each piece.",
    }
    cells = [
        Cell(name, f"a stream of {plan.pieces} pieces, {name}", STREAMED, explains,
             tuple(Contender(who, "ours", do, {"pieces": plan.pieces, "count": plan.streams,
                                               "pause": name == ONE_BY_ONE})
                   for who, do in COMMANDS.items()))
        for name, explains in explained.items()
    ]  # fmt: skip
    return [Group(plan.repetitions, tuple(cells))]


def goals(plan: Plan) -> list[Goal]:
    """Every host may take at most twice as long as Trio."""
    return [
        Goal(f"{plan.pieces} pieces {cell}: {who} / {TRIO}", Ref(cell, who, "p50_ms"), 2,
             Ref(cell, TRIO, "p50_ms"),
             explains="Time of a stream in this host; 1 means that the other thread is free.")
        for cell in (AT_ONCE, ONE_BY_ONE)
        for who in (ASYNCIO, BLOCKING)
    ]  # fmt: skip


HOSTS = Benchmark(
    name="hosts",
    about="Streams in asyncio and synchronous programs, compared with Trio in one run.",
    modules={"ours": "bench.hosts.ours"},
    measure=measure_cells(FULL, QUICK, groups, goals),
)
