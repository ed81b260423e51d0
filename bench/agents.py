"""Agents with a model, beside hermes-agent's own on the same server: turns, streaming, imports.

The model is `hermes.testing`'s, in a process of its own: it answers at once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import attrs

from bench import command, peers_env, report
from bench.board import Board, Goal, Ref
from bench.drivers import Driver, driver
from bench.progress import Steps
from bench.report import Column, Measured, Sheet, Table
from bench.runtime import remove

OURS = "ours"
THEIRS = "hermes-agent"
BARE = "bare httpx2 stream"
MODULES = {
    "ours": "bench.peers.ours_agents",
    "hermes-agent": "bench.peers.hermes_gateway",
    "model": "bench.peers.loopback",
}
READY = "ours, with open_runtime"
# Names of `hermes` are loaded when they are asked for: so what a host then waits for is told, too.
IMPORTS = {
    OURS: ("ours", "import hermes"),
    READY: ("ours", "import hermes; hermes.open_runtime"),
    THEIRS: ("hermes-agent", "import gateway.run"),
}
WEIGH = (
    "import resource, sys, time; begun = time.perf_counter(); {code}; "
    "print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


@attrs.frozen(kw_only=True)
class Plan:
    """How much of everything."""

    repetitions: int
    turns: int
    peer_turns: int
    many: int
    streams: int


FULL = Plan(repetitions=3, turns=200, peer_turns=6, many=10_000, streams=15)
QUICK = Plan(repetitions=1, turns=50, peer_turns=3, many=500, streams=5)


def goals(plan: Plan) -> tuple[Goal, ...]:
    """What issue 4 asks for."""
    few, long = cells(plan)
    return (
        _less(few, 15),
        _less(long, 60),
        Goal("streaming: until the first piece", Ref("streaming", OURS, "first_ms"), 1.2,
             Ref("streaming", BARE, "first_ms")),
        Goal("streaming: each piece", Ref("streaming", OURS, "piece_us"), 1.2,
             Ref("streaming", BARE, "piece_us")),
        Goal("importing: ours / hermes-agent's gateway.run", Ref("importing", OURS, "seconds"), 0.6,
             Ref("importing", THEIRS, "seconds")),
        Goal("importing, until open_runtime can be called: ours / gateway.run",
             Ref("importing", READY, "seconds"), 0.6, Ref("importing", THEIRS, "seconds")),
        Goal("importing: resident", Ref("importing", READY, "mib"), 60, unit="MiB"),
    )  # fmt: skip


def _less(cell: str, least: float) -> Goal:
    theirs, ours = Ref(cell, THEIRS, "p50_ms"), Ref(cell, OURS, "p50_ms")
    return Goal(f"{cell}: {THEIRS} / ours", theirs, least, ours, at_least=True)


def cells(plan: Plan) -> tuple[str, str]:
    """The cells of whole turns."""
    return "a turn, 10 messages", f"a turn, {plan.many:,} messages"


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    return command.run("agents", __doc__ or "", arguments, _measure)


def _measure(folder: Path, steps: Steps, *, quick: bool) -> Measured:
    plan = QUICK if quick else FULL
    board = Board()
    machine = report.machine(folder)
    pythons = {"ours": Path(sys.executable), "model": Path(sys.executable)}
    if (peer := peers_env.interpreter("hermes-agent")) is not None:
        pythons["hermes-agent"] = peer
    with ExitStack() as stack:
        fleet = {
            name: stack.enter_context(driver(name, python, folder, MODULES[name]))
            for name, python in pythons.items()
        }
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in fleet.items()}
        url = fleet["model"].about["url"]
        steps.expect(plan.repetitions)
        for repetition in range(plan.repetitions):
            steps.step(f"repetition {repetition + 1} of {plan.repetitions}")
            _turns(plan, fleet, board, folder, url)
            board.add(
                "streaming", OURS, fleet["ours"].ask("streaming", url=url, times=plan.streams)
            )
            board.add("streaming", BARE, fleet["ours"].ask("bare", url=url, times=plan.streams))
            for who, (name, code) in IMPORTS.items():
                if name in pythons:
                    board.add("importing", who, weigh(pythons[name], code, folder))
    machine["load_after"] = report.load()
    return Measured(board, Sheet(goals(plan), _tables(plan)), machine, versions, attrs.asdict(plan))


def _turns(plan: Plan, fleet: Mapping[str, Driver], board: Board, folder: Path, url: str) -> None:
    fresh = folder / "fresh"
    for cell, history in zip(cells(plan), (10, plan.many), strict=True):
        size = {"path": str(fresh), "url": url, "history": history}
        board.add(cell, OURS, fleet["ours"].ask("turns", **size, count=plan.turns))
        remove(fresh)
        if "hermes-agent" in fleet:
            figures = fleet["hermes-agent"].ask("model_turns", **size, count=plan.peer_turns)
            board.add(cell, THEIRS, figures)
            remove(fresh)


def weigh(python: Path, code: str, home: Path) -> dict[str, float]:
    """How long an import takes, and how much memory a process has after it."""
    time.sleep(0.1)
    done = subprocess.run(
        [python, "-c", WEIGH.format(code=code)],
        check=True,
        capture_output=True,
        text=True,
        env={"HOME": str(home), "HERMES_HOME": str(home)},
        cwd=Path(__file__).parents[1],
    )
    seconds, kib = done.stdout.split()[-2:]
    return {"seconds": float(seconds), "mib": int(kib) / 1024}


def _tables(plan: Plan) -> list[Table]:
    turn = (
        Column("p50_ms", "p50 ms", 2),
        Column("p99_ms", "p99 ms", 1),
        Column("rate", "turns/s", 1),
    )
    return [
        *(Table(cell, f"{cell} of history, over HTTP", turn) for cell in cells(plan)),
        Table(
            "streaming",
            "a streamed answer",
            (Column("first_ms", "first piece ms", 2), Column("piece_us", "each piece us", 1)),
        ),
        Table("importing", "importing", (Column("seconds", "s", 2), Column("mib", "MiB"))),
    ]
