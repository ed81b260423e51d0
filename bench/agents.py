"""Agents with a model, beside hermes-agent's own on the same server: turns, streaming, imports.

The model is `hermes.testing`'s, in a process of its own: it answers at once.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from bench import command, peers_env, report
from bench.board import Board, Goal, Ref
from bench.drivers import Driver, DriverFailed, together
from bench.progress import Steps
from bench.report import Axis, Column, Line, Measured, Plot, Sheet, Table
from bench.runtime import remove

Who = TypeVar("Who")
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
# Not by getrusage: that counts the process which started this one, too.
WEIGH = """
import time
begun = time.perf_counter()
{code}
seconds = time.perf_counter() - begun
with open("/proc/self/status") as status:
    print(seconds, *(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@attrs.frozen(kw_only=True)
class Plan:
    """How much of everything."""

    repetitions: int
    turns: int
    peer_turns: int
    many: int
    streams: int


FULL = Plan(repetitions=3, turns=200, peer_turns=6, many=10_000, streams=15)
QUICK = Plan(repetitions=1, turns=20, peer_turns=2, many=200, streams=3)


def goals(plan: Plan) -> tuple[Goal, ...]:
    """What issue 4 asks for."""
    few, long = cells(plan)
    return (
        _less(few, 15, "How many times as long hermes-agent takes for a whole turn in a young "
              "conversation, with the same model that answers at once."),
        _less(long, 60, "The same in a long conversation: what a turn costs when there is much to "
              "read, check and send."),
        Goal(
            "streaming: until the first piece", Ref("streaming", OURS, "first_ms"), 1.2,
            Ref("streaming", BARE, "first_ms"),
            explains="Until a user sees the first word, beside httpx2 alone: 1 means that our "
            "provider adds nothing.",
        ),
        Goal(
            "streaming: each piece", Ref("streaming", OURS, "piece_us"), 1.2,
            Ref("streaming", BARE, "piece_us"),
            explains="Every further piece of an answer, beside httpx2's own reading of events.",
        ),
        Goal(
            "importing: ours / hermes-agent's gateway.run", Ref("importing", OURS, "seconds"), 0.6,
            Ref("importing", THEIRS, "seconds"),
            explains="What share of hermes-agent's time `import hermes` takes in a fresh process.",
        ),
        Goal(
            "importing, until open_runtime can be called: ours / gateway.run",
            Ref("importing", READY, "seconds"), 0.6, Ref("importing", THEIRS, "seconds"),
            explains="The same until a runtime can be opened, because names of `hermes` are loaded "
            "when they are asked for.",
        ),
        Goal(
            "importing: resident", Ref("importing", READY, "mib"), 60, unit="MiB",
            explains="How much memory a process has once it can open a runtime.",
        ),
    )  # fmt: skip


def _less(cell: str, least: float, explains: str) -> Goal:
    theirs, ours = Ref(cell, THEIRS, "p50_ms"), Ref(cell, OURS, "p50_ms")
    text = f"{cell}: {THEIRS} / ours"
    return Goal(text, theirs, least, ours, at_least=True, explains=explains)


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
    with together(folder, pythons, MODULES) as fleet:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in fleet.items()}
        url = fleet["model"].about["url"]
        steps.expect(plan.repetitions * (len(cells(plan)) * len(_sides(plan, fleet, 0)) + 2))
        for repetition in range(plan.repetitions):
            which = f"repetition {repetition + 1} of {plan.repetitions}"
            _turns(plan, fleet, board, folder, steps, repetition)
            steps.step(f"streaming: {which}")
            for who, do in _in_turn([(OURS, "streaming"), (BARE, "bare")], repetition):
                board.add("streaming", who, fleet["ours"].ask(do, url=url, times=plan.streams))
            steps.step(f"importing: {which}")
            for who, (name, code) in _in_turn(list(IMPORTS.items()), repetition):
                if name in pythons:
                    board.add("importing", who, weigh(pythons[name], code, folder))
    machine["load_after"] = report.load()
    return Measured(board, sheet(plan), machine, versions, attrs.asdict(plan))


def _sides(plan: Plan, fleet: Mapping[str, Driver], repetition: int) -> list[tuple[str, str, int]]:
    """Who takes turns: whose driver is asked what, and how many; each repetition another first."""
    sides = [(OURS, "turns", plan.turns), (THEIRS, "model_turns", plan.peer_turns)]
    return _in_turn([side for side in sides if side[0] in fleet], repetition)


def _in_turn(everybody: Sequence[Who], repetition: int) -> list[Who]:
    first = repetition % len(everybody)
    return [*everybody[first:], *everybody[:first]]


def _turns(
    plan: Plan,
    fleet: Mapping[str, Driver],
    board: Board,
    folder: Path,
    steps: Steps,
    repetition: int,
) -> None:
    fresh = folder / "fresh"
    url = fleet["model"].about["url"]
    for cell, history in zip(cells(plan), (10, plan.many), strict=True):
        for who, do, count in _sides(plan, fleet, repetition):
            steps.step(f"{cell}, {who}: repetition {repetition + 1} of {plan.repetitions}")
            ask = fleet[who].ask
            figures = ask(do, path=str(fresh), url=url, history=history, count=count)
            board.add(cell, who, figures)
            remove(fresh)


def weigh(python: Path, code: str, home: Path) -> dict[str, float]:
    """How long an import takes, and how much memory a process has after it."""
    time.sleep(0.1)
    done = subprocess.run(
        [python, "-c", WEIGH.format(code=code)],
        check=False,
        capture_output=True,
        text=True,
        env={"HOME": str(home), "HERMES_HOME": str(home)},
        cwd=Path(__file__).parents[1],
    )
    if done.returncode:
        raise DriverFailed(f"{code} failed: {done.stderr.strip()}")
    seconds, kib = done.stdout.split()[-2:]
    return {"seconds": float(seconds), "mib": int(kib) / 1024}


def sheet(plan: Plan) -> Sheet:
    few, long = cells(plan)
    turn = (
        Column("p50_ms", "p50 ms", 2, explains="Half of the turns took at most this long."),
        Column("p99_ms", "p99 ms", 1, explains="99 of 100 turns took at most this long."),
        Column("rate", "turns/s", 1, "higher", "Turns of one conversation per second."),
        Column("cpu_ms", "CPU ms", 2, explains="What a turn takes of one processor core."),
    )
    explained = {
        few: "From a message to its answer in a young conversation, stored and all, with a model "
        "on the same machine that answers at once: so what is seen is everything but the model.",
        long: "The same in a conversation that has gone on for long, all of which is sent.",
    }
    tables = [
        Table(cell, f"{cell} of history, over HTTP", turn, said) for cell, said in explained.items()
    ]
    return Sheet(goals(plan), [*tables, _STREAMING, _IMPORTING], [_growth(plan)])


_STREAMING = Table(
    "streaming",
    "a streamed answer",
    (
        Column("first_ms", "first piece ms", 2, explains="From the request to the first piece."),
        Column("piece_us", "each piece us", 1, explains="From a piece to the next, on average."),
    ),
    "An answer of 2,000 pieces, read by our provider, and by httpx2 alone with the JSON of each "
    "event.",
)
_IMPORTING = Table(
    "importing",
    "importing",
    (
        Column("seconds", "s", 2, explains="How long a fresh process takes to import."),
        Column("mib", "MiB", explains="Its memory after that."),
    ),
    "What every start of a program waits for.",
)


def _growth(plan: Plan) -> Plot:
    few, long = cells(plan)
    return Plot(
        "A turn with a model, by length of the conversation",
        "p50_ms",
        Axis("messages of history", log=True),
        Axis("median turn, ms", log=True),
        tuple(Line(who, {10: few, plan.many: long}) for who in (OURS, THEIRS)),
        "How the cost of a turn grows with history: the lower and the flatter, the better.",
    )
