"""The store beside its peers, in one run: same rows, same durability, interleaved repetitions.

Read: store_goals for the promises, store_cells for the work, peers/ for what each driver does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from bench import command, report
from bench.board import Board
from bench.drivers import fleet
from bench.progress import Steps
from bench.report import Measured
from bench.store_cells import FULL, QUICK, Cells
from bench.store_goals import sheet


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    return command.run("store", __doc__ or "", arguments, _measure)


def _measure(folder: Path, steps: Steps, *, quick: bool) -> Measured:
    plan = QUICK if quick else FULL
    board = Board()
    machine = report.machine(folder)
    with fleet(folder) as drivers:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in drivers.items()}
        Cells(plan, drivers, board, folder, steps).all()
    machine["load_after"] = report.load()
    return Measured(board, sheet(plan), machine, versions, attrs.asdict(plan))
