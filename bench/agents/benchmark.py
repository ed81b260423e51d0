"""The agents benchmark: turns with a model over HTTP, streaming, and imports.

The model is the loopback model of `hermes.testing` in a process of its own; it replies at once.
"""

from __future__ import annotations

import attrs

from bench.harness.benchmark import Benchmark, Measured, Run
from bench.harness.measurements import Goal, Ref, Sheet
from bench.harness.runner import Cell, Contender, Group, run_cells
from bench.report.results import Axis, Column, Line, Plot, Table

OURS = "ours"
READY = "ours, with open_runtime"
THEIRS = "hermes-agent"
BARE = "bare httpx2 stream"
HISTORY = 10
STREAMING, IMPORTING = "streaming", "importing"


@attrs.frozen(kw_only=True)
class Plan:
    """The amount of work."""

    repetitions: int
    turns: int
    peer_turns: int
    many: int
    streams: int


FULL = Plan(repetitions=3, turns=200, peer_turns=6, many=10_000, streams=15)
QUICK = Plan(repetitions=1, turns=20, peer_turns=2, many=200, streams=3)


def turn_cells(plan: Plan) -> tuple[str, str]:
    """The names of the cells with whole turns."""
    return f"a turn, {HISTORY} messages", f"a turn, {plan.many:,} messages"


def groups(plan: Plan, url: str) -> list[Group]:
    """All cells; `url` is the address of the model."""
    cells = []
    for name, history in zip(turn_cells(plan), (HISTORY, plan.many), strict=True):
        asked = {"url": url, "history": history}
        ours = Contender(OURS, "ours", "turns", {**asked, "count": plan.turns})
        theirs = {**asked, "count": plan.peer_turns}
        cells.append(Cell(name, (ours, Contender(THEIRS, "hermes-agent", "model_turns", theirs))))
    stream = {"url": url, "times": plan.streams}
    streaming = (
        Contender(OURS, "ours", "streaming", stream),
        Contender(BARE, "ours", "bare", stream),
    )
    # `import hermes` loads names on first use, so what a host really waits for is a row, too.
    importing = (
        Contender(OURS, "ours", "importing", {"code": "import hermes"}),
        Contender(READY, "ours", "importing", {"code": "import hermes; hermes.open_runtime"}),
        Contender(THEIRS, "hermes-agent", "importing", {"code": "import gateway.run"}),
    )
    cells.append(Cell(STREAMING, streaming, on_disk=False))
    cells.append(Cell(IMPORTING, importing, on_disk=False))
    return [Group(plan.repetitions, tuple(cells))]


def goals(plan: Plan) -> tuple[Goal, ...]:
    few, long = turn_cells(plan)
    imported = Ref(IMPORTING, THEIRS, "seconds")
    return (
        _turn_time(few, 15, "short"),
        _turn_time(long, 60, "long"),
        Goal("streaming: until the first piece", Ref(STREAMING, OURS, "first_ms"), 1.2,
             Ref(STREAMING, BARE, "first_ms"),
             explains="Time until the first text; 1 means that our provider adds nothing."),
        Goal("streaming: each piece", Ref(STREAMING, OURS, "piece_us"), 1.2,
             Ref(STREAMING, BARE, "piece_us"),
             explains="Time of every further piece, compared with httpx2's own event parser."),
        Goal("importing: ours / hermes-agent's gateway.run", Ref(IMPORTING, OURS, "seconds"), 0.6,
             imported, explains="Time of `import hermes` in a fresh process."),
        Goal("importing, until open_runtime can be called: ours / gateway.run",
             Ref(IMPORTING, READY, "seconds"), 0.6, imported,
             explains="The same until a runtime can be opened: names are loaded on first use."),
        Goal("importing: resident", Ref(IMPORTING, READY, "mib"), 60, unit="MiB",
             explains="Memory of a process that can open a runtime."),
    )  # fmt: skip


def _turn_time(cell: str, least: float, what: str) -> Goal:
    theirs, ours = Ref(cell, THEIRS, "p50_ms"), Ref(cell, OURS, "p50_ms")
    explains = f"Time of a turn in a {what} conversation, with a model that replies at once."
    return Goal(f"{cell}: {THEIRS} / ours", theirs, least, ours, at_least=True, explains=explains)


TURNS = (
    Column("p50_ms", "p50 ms", 2, explains="Median time of a turn."),
    Column("p99_ms", "p99 ms", 1, explains="99th percentile of the time of a turn."),
    Column("rate", "turns/s", 1, "higher", "Turns of one conversation per second."),
    Column("cpu_ms", "CPU ms", 2, explains="Processor time of a turn."),
)
STREAMED = (
    Column("first_ms", "first piece ms", 2, explains="From the request to the first piece."),
    Column("piece_us", "each piece us", 1, explains="Mean time from one piece to the next."),
)
IMPORTED = (
    Column("seconds", "s", 2, explains="Import time in a fresh process."),
    Column("mib", "MiB", explains="Memory of the process afterwards."),
)


def sheet(plan: Plan) -> Sheet:
    """Return the presentation of the results."""
    few, long = turn_cells(plan)
    tables = (
        Table(few, f"{few} of history, over HTTP", TURNS,
              "From a message to its stored reply in a short conversation. The model replies at "
              "once, so everything but the model is measured."),
        Table(long, f"{long} of history, over HTTP", TURNS,
              "The same in a long conversation, all of which is sent to the model."),
        Table(STREAMING, "a streamed answer", STREAMED,
              "A reply of 2,000 pieces, read by our provider, and by httpx2 alone, which decodes "
              "the JSON of each event."),
        Table(IMPORTING, "importing", IMPORTED, "What every start of a program waits for."),
    )  # fmt: skip
    lines = tuple(Line(who, ((HISTORY, few), (plan.many, long))) for who in (OURS, THEIRS))
    growth = Plot(
        "A turn with a model, by length of the conversation", "p50_ms",
        Axis("messages of history", log=True), Axis("median turn, ms", log=True), lines,
        "How the time of a turn grows with the history; lower and flatter is better.",
    )  # fmt: skip
    return Sheet(goals(plan), tables, (growth,))


def measure(run: Run) -> Measured:
    plan = QUICK if run.quick else FULL
    cells = groups(plan, run.drivers["model"].about["url"])
    measurements = run_cells(cells, run.drivers, run.folder, run.steps)
    return Measured(measurements, sheet(plan), attrs.asdict(plan))


AGENTS = Benchmark(
    name="agents",
    about="Agents with a model over HTTP: whole turns, streaming, and imports.",
    modules={
        "ours": "bench.agents.ours",
        "hermes-agent": "bench.peers.hermes_gateway",
        "model": "bench.agents.model",
    },
    measure=measure,
)
