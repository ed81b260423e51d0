"""The runtime beside its peers, in one run: messages between actors, and whole durable turns.

Read: peers/ours_runtime for our side, peers/messaging for what every driver does alike.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs

from bench import command, peers_env, report
from bench.board import Board, Goal, Ref
from bench.drivers import Driver, driver
from bench.progress import Steps
from bench.report import Column, Measured, Sheet, Table

OURS = "ours"
CHANNEL = "trio channel"
FLOOR = "bare reschedule"
GATEWAY = "hermes-agent gateway"
MODULES = {
    "ours": "bench.peers.ours_runtime",
    "floors": "bench.peers.trio_floors",
    "pykka": "bench.peers.pykka_actors",
    "xoscar": "bench.peers.xoscar_actors",
    "autogen-core": "bench.peers.autogen_agents",
    "hermes-agent": "bench.peers.hermes_gateway",
}
MESSAGE_PEERS = {"Pykka": "pykka", "xoscar": "xoscar", "autogen-core": "autogen-core"}


@attrs.frozen(kw_only=True)
class Plan:
    """How much of everything."""

    repetitions: int
    asks: int
    tells: int
    peer_asks: int
    idle: int
    turns: int
    peer_turns: int
    turn_repetitions: int
    many: int
    seconds: float


FULL = Plan(
    repetitions=15, asks=20_000, tells=100_000, peer_asks=3_000, idle=10_000, turns=300,
    peer_turns=20, turn_repetitions=3, many=10_000, seconds=3.0,
)  # fmt: skip
QUICK = Plan(
    repetitions=3, asks=5_000, tells=20_000, peer_asks=500, idle=2_000, turns=100,
    peer_turns=5, turn_repetitions=1, many=300, seconds=1.0,
)  # fmt: skip


def _goal(text: str, cell: str, theirs: str, least: float, figure: str = "rate") -> Goal:
    ours = Ref(cell, OURS, figure)
    return Goal(text, ours, least, Ref(cell, theirs, figure), at_least=True)


def _less(cell: str, least: float) -> Goal:
    text = f"{cell}: overhead of {GATEWAY} / ours"
    theirs, ours = Ref(cell, GATEWAY, "p50_ms"), Ref(cell, OURS, "p50_ms")
    return Goal(text, theirs, least, ours, at_least=True)


def goals(plan: Plan) -> tuple[Goal, ...]:
    """What issue 3 asks for."""
    few, long, known, crowd = cells(plan)
    return (
        _goal("ask: ours / trio channel", "ask", CHANNEL, 1.5),
        _goal("ask: ours / bare reschedule", "ask", FLOOR, 0.75),
        _goal("ask: ours / Pykka", "ask", "Pykka", 1.8),
        _goal("ask: ours / xoscar", "ask", "xoscar", 5),
        _goal("ask: ours / autogen-core", "ask", "autogen-core", 10),
        _goal("tell: ours / trio channel", "tell", CHANNEL, 2),
        Goal("an idle actor", Ref("idle", OURS, "kib"), 3.4, unit="KiB"),
        _less(few, 15),
        _less(long, 60),
        _less(known, 300),
        _goal(f"{crowd}: ours / {GATEWAY}", crowd, GATEWAY, 100),
        Goal(
            "flat: long history / short",
            Ref(long, OURS, "p50_ms"), 1.5, Ref(few, OURS, "p50_ms"),
        ),
        Goal(
            "flat: many sessions / one",
            Ref(known, OURS, "p50_ms"), 1.3, Ref(few, OURS, "p50_ms"),
        ),
    )  # fmt: skip


def cells(plan: Plan) -> tuple[str, str, str, str]:
    """The cells of whole turns."""
    return (
        "10 messages, one session",
        f"{plan.many:,} messages of history",
        f"{plan.many:,} known sessions",
        "100 sessions at once",
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    return command.run("runtime", __doc__ or "", arguments, _measure)


@contextmanager
def _fleet(folder: Path) -> Iterator[dict[str, Driver]]:
    pythons = {"ours": Path(sys.executable), "floors": Path(sys.executable)}
    for peer in ("pykka", "xoscar", "autogen-core", "hermes-agent"):
        python = peers_env.interpreter(peer)
        if python is not None:
            pythons[peer] = python
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(driver(name, python, folder, MODULES[name]))
            for name, python in pythons.items()
        }


def _measure(folder: Path, steps: Steps, *, quick: bool) -> Measured:
    plan = QUICK if quick else FULL
    board = Board()
    machine = report.machine(folder)
    with _fleet(folder) as fleet:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in fleet.items()}
        _messages(plan, fleet, board, steps)
        _turns(plan, fleet, board, folder, steps)
    machine["load_after"] = report.load()
    return Measured(board, Sheet(goals(plan), _tables(plan)), machine, versions, attrs.asdict(plan))


def _messages(plan: Plan, fleet: Mapping[str, Driver], board: Board, steps: Steps) -> None:
    asks: list[tuple[str, str, str, int]] = [
        (OURS, "ours", "ask", plan.asks),
        (CHANNEL, "floors", "ask", plan.asks),
        (FLOOR, "floors", "ping_pong", plan.asks),
        *((who, name, "ask", plan.peer_asks) for who, name in MESSAGE_PEERS.items()),
    ]
    tells = [(OURS, "ours", "tell", plan.tells), (CHANNEL, "floors", "tell", plan.tells)]
    steps.expect(plan.repetitions)
    for repetition in range(plan.repetitions):
        steps.step(f"messages: repetition {repetition + 1} of {plan.repetitions}")
        for cell, contenders in (("ask", asks), ("tell", tells)):
            present = [each for each in contenders if each[1] in fleet]
            first = repetition % len(present)
            for who, name, do, count in present[first:] + present[:first]:
                board.add(cell, who, fleet[name].ask(do, count=count))


def _turns(
    plan: Plan, fleet: Mapping[str, Driver], board: Board, folder: Path, steps: Steps
) -> None:
    few, long, known, crowd = cells(plan)
    sizes = {few: (10, 1), long: (plan.many, 1), known: (10, plan.many)}
    sides = [(OURS, "ours", plan.turns), (GATEWAY, "hermes-agent", plan.peer_turns)]
    fresh = folder / "fresh"
    steps.expect(plan.turn_repetitions * (len(sizes) + 1))
    for repetition in range(plan.turn_repetitions):
        board.add("idle", OURS, fleet["ours"].ask("idle", path=str(fresh), count=plan.idle))
        remove(fresh)
        for cell, (history, sessions) in sizes.items():
            steps.step(f"{cell}: repetition {repetition + 1} of {plan.turn_repetitions}")
            for who, name, count in sides[repetition % 2 :] + sides[: repetition % 2]:
                if name in fleet:
                    size = {"history": history, "sessions": sessions, "count": count}
                    board.add(cell, who, fleet[name].ask("turns", path=str(fresh), **size))
                    remove(fresh)
        steps.step(f"{crowd}: repetition {repetition + 1} of {plan.turn_repetitions}")
        for who, name, _ in sides:
            if name in fleet:
                size = {"callers": 100, "seconds": plan.seconds}
                board.add(crowd, who, fleet[name].ask("turns_at_once", path=str(fresh), **size))
                remove(fresh)


def remove(path: Path) -> None:
    """Remove what a measurement has left."""
    shutil.rmtree(path, ignore_errors=True)
    for each in path.parent.glob(f"{path.name}*"):
        if each.is_file():
            each.unlink()


def _tables(plan: Plan) -> list[Table]:
    rate = (Column("rate", "per second", 0), Column("us", "us", 1))
    turn = (
        Column("p50_ms", "p50 ms", 2),
        Column("p99_ms", "p99 ms", 1),
        Column("rate", "turns/s", 1),
    )
    return [
        Table("ask", "ask: one caller, one actor", rate),
        Table("tell", "tell: until all are processed", rate),
        Table("idle", "an idle actor", (Column("kib", "KiB", 2),)),
        *(Table(cell, f"a durable turn: {cell}", turn) for cell in cells(plan)),
    ]
