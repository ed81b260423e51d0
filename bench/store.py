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
from bench.report import Measured, Sheet
from bench.store_cells import FULL, QUICK, Cells
from bench.store_goals import GOALS, tables


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    return command.run("store", __doc__ or "", arguments, _measure)


def _measure(folder: Path, steps: Steps, *, quick: bool) -> Measured:
    plan = QUICK if quick else FULL
    board = Board()
    machine = report.machine(folder)
    with fleet(folder) as drivers:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in drivers.items()}
        cells = Cells(plan, drivers, board, folder, steps)
        cells.durability()
        for cell in (
            cells.one_session,
            cells.hundred_sessions,
            cells.stored,
            cells.cost,
            cells.loading,
            cells.opening,
            cells.size,
        ):
            cell()
    machine["load_after"] = report.load()
    return Measured(board, Sheet(GOALS, tables(plan)), machine, versions, attrs.asdict(plan))
