"""The cost of one operation of each kind, derived from result files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs

from bench.errors import CommandError
from bench.report import results
from bench.report.results import Result

KIB, MIB = 1024.0, 1024.0**2
CROWD = 100
"""Concurrent sessions in the cell in which the interpreter is the bottleneck."""
LONG, SHORT = 10_000, 10
"""Messages of the longest and the shortest history that was measured."""
ALONE, CROWDED = "10 messages, one session", f"{CROWD} sessions at once"
MINE = "ours, actor"


class Medians:
    """The medians of the full runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, Result] = {}

    def get(self, benchmark: str, cell: str, who: str, figure: str) -> float:
        """Return a median. Raises CommandError if it was not measured."""
        path = self._folder / f"{benchmark}.json"
        if benchmark not in self._read:
            self._read[benchmark] = results.read(path)
        result = self._read[benchmark]
        spread = None if result.quick else result.spread(cell, who, figure)
        if spread is None:
            missing = f'{path} has no {figure} of "{who}" in "{cell}" from a full run'
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


def unit_costs(medians: Medians) -> UnitCosts:
    """Derive all costs. Raises CommandError if a figure is missing or contradicts another."""
    store, runtime, agents = (partial(medians.get, name) for name in ("store", "runtime", "agents"))
    flush = 1 / store("100 sessions", "fdatasync", "rate")
    append = 1 / store("100 sessions", MINE, "rate")
    commit = 1 / store("one session", MINE, "rate") - append - flush
    indexed, stored = (
        store("stored, 100 sessions", MINE, name) for name in ("searchable_rate", "rate")
    )
    short, long = (
        agents(f"a turn, {size:,} messages", "ours", "cpu_ms") / 1e3 for size in (SHORT, LONG)
    )
    costs = UnitCosts(
        flush=flush,
        append=append,
        commit=commit,
        # Concurrent sessions form two groups of which one commits while the other works, so a turn
        # of all of them takes their work and two commits of each group.
        turn=1 / runtime(CROWDED, "ours", "rate") - 4 * (commit + flush) / CROWD,
        index=1 / indexed - 1 / stored,
        call=short - runtime(ALONE, "ours", "cpu_ms") / 1e3,
        message=(long - short) / (LONG - SHORT),
        piece=agents("streaming", "ours", "piece_us") / 1e6,
        process=agents("importing", "ours, with open_runtime", "mib") * MIB,
        actor=runtime("idle", "ours", "kib") * KIB,
        warm=runtime("a warm session", "ours", "kib") * KIB,
        stored=runtime(CROWDED, "ours", "disk_bytes") / 2,
    )
    for name, value in attrs.asdict(costs).items():
        if value <= 0:
            raise CommandError(f"The results contradict each other: {name} is {value:.3g}.")
    return costs
