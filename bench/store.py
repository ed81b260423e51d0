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
from bench.store_cells import FULL, QUICK, Cells, Plan
from bench.store_goals import GOALS, tables


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    return command.run("store", __doc__ or "", arguments, _measure)


def _measure(folder: Path, *, quick: bool) -> dict[str, report.Json]:
    plan = QUICK if quick else FULL
    board = Board()
    machine = report.machine(folder)
    with fleet(folder) as drivers:
        versions: dict[str, report.Json] = {name: dict(d.about) for name, d in drivers.items()}
        cells = Cells(plan, drivers, board, folder)
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
    _print(board, plan, machine, versions, quick=quick)
    return {
        "benchmark": "store",
        "quick": quick,
        "machine": machine,
        "versions": versions,
        "durability": "journal_mode=WAL, synchronous=FULL, checked on every store",
        "plan": attrs.asdict(plan),
        **report.document(board, GOALS),
    }


def _print(
    board: Board,
    plan: Plan,
    machine: dict[str, report.Json],
    versions: dict[str, report.Json],
    *,
    quick: bool,
) -> None:
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    print("\n".join(f"{name}: {value}" for name, value in versions.items()))
    if quick:
        print("\nQUICK: fewer repetitions and smaller files than the goals are stated for.")
    print(
        f"\nmedian [lowest..highest] of {plan.repetitions} interleaved repetitions, WAL and FULL\n"
    )
    print(report.tables(board, tables(plan)))
    print(f"\n{report.goals(board, GOALS)}")
