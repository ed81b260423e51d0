"""`python -m bench scale`: the capacity of one node, derived from result files.

The formulas are explained in docs/scale.md, which shows the tables. Workloads are assumed.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import attrs

from bench.report import results
from bench.report.results import CommandError
from bench.report.tables import align, fill

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
KIB, MIB = 1024.0, 1024.0**2
CROWD = 100
"""Concurrent sessions in the cell in which the interpreter is the bottleneck."""
LONG, SHORT = 10_000, 10
"""Messages of the longest and the shortest history that was measured."""
ALONE, CROWDED = "10 messages, one session", f"{CROWD} sessions at once"
TOLERANCE = 0.5
"""Between a derived and a measured rate: absolute figures vary by 40 % on a shared machine."""
UTILIZATION = 0.7
"""The planned share of the maximum rate: waiting times grow as 1 / (1 - utilization)."""
MINUTES = 5
"""Minutes between two messages of a person who chats."""
MESSAGE, CONNECTION = 1 * KIB, 64 * KIB
"""Assumed sizes in memory: a message with Python's objects, a TLS connection to a model."""
SIGMA = 0.6
"""Assumed spread of the lognormal latency of a model."""


class Medians:
    """The medians of the full runs in a folder."""

    def __init__(self, folder: Path) -> None:
        names = ("store", "runtime", "agents")
        self._results = {name: results.read(folder / f"{name}.json") for name in names}

    def get(self, benchmark: str, cell: str, who: str, figure: str) -> float:
        """Return a median. Raises CommandError if it was not measured."""
        result = self._results[benchmark]
        spread = None if result.quick else result.spread(cell, who, figure)
        if spread is None:
            missing = f'There is no {figure} of "{who}" in "{cell}" from a full run'
            raise CommandError(f"{missing}: run `python -m bench {benchmark}`.")
        return spread.median


def _cost(source: str) -> float:
    """A field of UnitCosts, with where it comes from."""
    value: float = attrs.field(metadata={"source": source})
    return value


@attrs.frozen(kw_only=True)
class UnitCosts:
    """What a node pays for each operation, in seconds or bytes."""

    flush: float = _cost("store, 100 sessions, fdatasync: 1 / rate")
    append: float = _cost("store, 100 sessions, ours: 1 / rate")
    commit: float = _cost("store, one session, ours: 1 / rate - append - flush")
    turn: float = _cost(f"runtime, {CROWDED}: 1 / rate - 4 (commit + flush) / {CROWD}")
    index: float = _cost("store, stored, 100 sessions: 1 / searchable_rate - 1 / rate")
    call: float = _cost("agents, a turn, 10 messages: cpu_ms - runtime's")
    message: float = _cost("agents, a turn: (cpu_ms with 10,000 messages - with 10) / 9,990")
    piece: float = _cost("agents, streaming: piece_us")
    process: float = _cost("agents, importing: mib")
    actor: float = _cost("runtime, idle: kib")
    warm: float = _cost("runtime, a warm session: kib (with 10 messages)")
    stored: float = _cost(f"runtime, {CROWDED}: disk_bytes / 2")

    def turns_per_second(self, sessions: int) -> float:
        """The rate of sessions that never pause, without indexing."""
        commit = self.commit + self.flush
        commits = 2 if sessions == 1 else 4
        return sessions / (sessions * self.turn + commits * commit)


def unit_costs(medians: Medians) -> UnitCosts:
    """Derive all costs. Raises CommandError if a figure is missing or contradicts another."""
    store, runtime, agents = (partial(medians.get, name) for name in ("store", "runtime", "agents"))
    mine, ours = "ours, actor", "ours"
    flush = 1 / store("100 sessions", "fdatasync", "rate")
    append = 1 / store("100 sessions", mine, "rate")
    commit = 1 / store("one session", mine, "rate") - append - flush
    stored = "stored, 100 sessions"
    short, long = (
        agents(f"a turn, {size:,} messages", ours, "cpu_ms") / 1e3 for size in (SHORT, LONG)
    )
    costs = UnitCosts(
        flush=flush,
        append=append,
        commit=commit,
        # Concurrent sessions form two groups of which one commits while the other works, so a turn
        # of all of them takes their work and two commits of each group.
        turn=1 / runtime(CROWDED, ours, "rate") - 4 * (commit + flush) / CROWD,
        index=1 / store(stored, mine, "searchable_rate") - 1 / store(stored, mine, "rate"),
        call=short - runtime(ALONE, ours, "cpu_ms") / 1e3,
        message=(long - short) / (LONG - SHORT),
        piece=agents("streaming", ours, "piece_us") / 1e6,
        process=agents("importing", "ours, with open_runtime", "mib") * MIB,
        actor=runtime("idle", ours, "kib") * KIB,
        warm=runtime("a warm session", ours, "kib") * KIB,
        stored=runtime(CROWDED, ours, "disk_bytes") / 2,
    )
    for name, value in attrs.asdict(costs).items():
        if value <= 0:
            raise CommandError(f"The results contradict each other: {name} is {value:.3g}.")
    return costs


@attrs.frozen(kw_only=True)
class Shape:
    """A kind of turn."""

    name: str
    calls: int
    pieces: int = 0
    """Streamed pieces of each reply."""
    history: int = SHORT
    """Messages sent with each call."""
    seconds: float = 0.0
    """Median latency of a call."""
    tokens: int = 0
    """Tokens of all calls together."""

    @property
    def rows(self) -> int:
        """Messages stored per turn: two, and two for each tool call."""
        return 2 + 2 * max(0, self.calls - 1)

    @property
    def model_seconds(self) -> float:
        """Mean time that a turn waits for its model."""
        return self.calls * self.seconds * math.exp(SIGMA**2 / 2)

    def work(self, costs: UnitCosts) -> float:
        """The interpreter's seconds for a turn, without its share of commits."""
        call = costs.call + self.pieces * costs.piece + self.history * costs.message
        return costs.turn + self.rows * costs.index + self.calls * call

    def memory(self, costs: UnitCosts) -> float:
        """Bytes of an open turn: its agent, its transcript, its connection to the model."""
        transcript = (self.history - SHORT) * MESSAGE
        return costs.warm + transcript + (CONNECTION if self.calls else 0)


AT_ONCE = Shape(name="no model call", calls=0)
CHAT = Shape(name="one model call", calls=1, pieces=300, history=50, seconds=4, tokens=4_000)
TOOLS = Shape(
    name="ten calls, with tools", calls=10, pieces=100, history=200, seconds=3, tokens=150_000
)


def run(folder: Path, *, write: bool) -> int:
    """Print the tables of docs/scale.md, or write them into the page."""
    medians = Medians(folder)
    costs = unit_costs(medians)
    made = {
        "costs": _costs_table(costs),
        "measured": _measured_table(medians, costs),
        "node": _node_table(costs),
    }
    if write:
        results.write_text(PAGE, fill(PAGE.read_text(), "scale", made))
    else:
        print("\n\n".join(made.values()))
    return 0


def _costs_table(costs: UnitCosts) -> str:
    lines = [["unit", "cost", "source"]]
    for field in attrs.fields(UnitCosts):
        value = attrs.asdict(costs)[field.name]
        size = field.name in {"process", "actor", "warm", "stored"}
        cost = f"{value / KIB:,.2f} KiB" if size else f"{value * 1e3:.5f} ms"
        lines.append([field.name, cost, field.metadata["source"]])
    return align(lines)


def _measured_table(medians: Medians, costs: UnitCosts) -> str:
    lines = [["sessions at once", "measured turns/s", "derived turns/s"]]
    for sessions in (1, 10, 100):
        cell = ALONE if sessions == 1 else f"{sessions} sessions at once"
        measured = medians.get("runtime", cell, "ours", "rate")
        derived = costs.turns_per_second(sessions)
        if abs(derived / measured - 1) > TOLERANCE:
            rates = f"{derived:,.0f} turns/s are derived, but {measured:,.0f} were measured"
            raise CommandError(f"With {sessions} sessions at once, {rates}.")
        lines.append([f"{sessions}", f"{measured:,.0f}", f"{derived:,.0f}"])
    return align(lines)


def _node_table(costs: UnitCosts) -> str:
    heading = ["a turn", "CPU ms", "alone ms", "most turns/s", f"at {UTILIZATION:.0%}"]
    heading += [f"people, a message in {MINUTES} min", "open turns", "KiB each", "KiB on disk"]
    lines, assumed = [heading], []
    for shape in (AT_ONCE, CHAT, TOOLS):
        work = shape.work(costs)
        rate = UTILIZATION / work
        alone = work + 2 * (costs.commit + costs.flush)
        people = float(f"{rate * MINUTES * 60:.1e}")
        sizes = [f"{shape.memory(costs) / KIB:,.0f}", f"{shape.rows * costs.stored / KIB:.1f}"]
        rates = [f"{each:,.0f}" for each in (1 / work, rate, people, rate * shape.model_seconds)]
        lines.append([shape.name, f"{work * 1e3:.2f}", f"{alone * 1e3:.1f}", *rates, *sizes])
        assumed.append(
            f"{shape.name}: {shape.calls} x {shape.seconds:g} s (median), {shape.pieces} pieces "
            f"each, {shape.history} messages of history, {shape.tokens:,} tokens in all"
        )
    return "\n".join([align(lines), *assumed[1:]])
