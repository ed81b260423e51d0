"""The runtime beside its peers, in one run: messages between actors, and whole durable turns.

Read: runtime_cells for what is measured, runtime_sheet for how it is shown, peers/ours_runtime for
our side, peers/messaging for what every driver does alike.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from bench import command, peers_env, report
from bench.board import Board
from bench.drivers import Driver, together
from bench.progress import Steps
from bench.report import Measured
from bench.runtime_cells import FULL, QUICK, Cell, Contender, Plan, of_files, of_messages
from bench.runtime_sheet import sheet

MODULES = {
    "ours": "bench.peers.ours_runtime",
    "floors": "bench.peers.trio_floors",
    "pykka": "bench.peers.pykka_actors",
    "xoscar": "bench.peers.xoscar_actors",
    "autogen-core": "bench.peers.autogen_agents",
    "hermes-agent": "bench.peers.hermes_gateway",
}
OUR_OWN = ("ours", "floors")


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    return command.run("runtime", __doc__ or "", arguments, _measure)


def _measure(folder: Path, steps: Steps, *, quick: bool) -> Measured:
    plan = QUICK if quick else FULL
    machine = report.machine(folder)
    steps.expect(count(plan) + 1)
    steps.step("starting everybody")
    with fleet(folder, _pythons()) as drivers:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in drivers.items()}
        board = measured(plan, drivers, folder, steps)
    machine["load_after"] = report.load()
    return Measured(board, sheet(plan), machine, versions, attrs.asdict(plan))


def _pythons() -> dict[str, Path]:
    """Everybody's interpreter; a peer that cannot be installed is missing."""
    found = {name: peers_env.interpreter(name) for name in MODULES if name not in OUR_OWN}
    peers = {name: python for name, python in found.items() if python is not None}
    return {**dict.fromkeys(OUR_OWN, Path(sys.executable)), **peers}


@contextmanager
def fleet(folder: Path, pythons: Mapping[str, Path]) -> Iterator[dict[str, Driver]]:
    """A driver for each of these interpreters, until the block ends."""
    with together(folder, pythons, MODULES) as drivers:
        yield drivers


def count(plan: Plan) -> int:
    """How many steps `measured` takes."""
    return plan.repetitions + plan.turn_repetitions * len(of_files(plan))


def measured(plan: Plan, drivers: Mapping[str, Driver], folder: Path, steps: Steps) -> Board:
    """Every cell of the plan, as often as it says, for everybody who is there."""
    board = Board()
    for repetition in range(plan.repetitions):
        steps.step(f"messages: repetition {repetition + 1} of {plan.repetitions}")
        for cell in of_messages(plan):
            for who in in_turn(cell, drivers, repetition):
                board.add(cell.name, who.who, drivers[who.driver].ask(who.do, **who.arguments))
    fresh = folder / "fresh"
    for repetition in range(plan.turn_repetitions):
        for cell in of_files(plan):
            steps.step(f"{cell.name}: repetition {repetition + 1} of {plan.turn_repetitions}")
            for who in in_turn(cell, drivers, repetition):
                figures = drivers[who.driver].ask(who.do, path=str(fresh), **who.arguments)
                board.add(cell.name, who.who, figures)
                remove(fresh)
    return board


def in_turn(cell: Cell, present: Container[str], repetition: int) -> list[Contender]:
    """Everybody in the cell whose driver is there; each repetition begins with another one."""
    who = [each for each in cell.contenders if each.driver in present]
    first = repetition % len(who)
    return who[first:] + who[:first]


def remove(path: Path) -> None:
    """Remove what a measurement has left."""
    shutil.rmtree(path, ignore_errors=True)
    for each in path.parent.glob(f"{path.name}*"):
        if each.is_file():
            each.unlink()
