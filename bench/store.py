"""The store beside its peers, in one run: same rows, same durability, interleaved repetitions.

Read: store_goals for the promises, store_cells for the work, peers/ for what each driver does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from bench import report
from bench.board import Board
from bench.drivers import DriverFailed, fleet
from bench.store_cells import FULL, QUICK, Cells, Plan
from bench.store_goals import GOALS, tables

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "store.json"


def main(arguments: Sequence[str]) -> int:
    """Measure, print the tables and the goals, write the file."""
    options = _options(arguments)
    plan = QUICK if options.quick else FULL
    started = time.monotonic()
    # Not in /tmp, which is memory on many machines: a flush to memory would measure nothing.
    with tempfile.TemporaryDirectory(prefix=".run-", dir=options.dir) as folder:
        try:
            results = _measure(plan, Path(folder), quick=options.quick)
        except DriverFailed as failure:
            print(f"The benchmark stopped: {failure}", file=sys.stderr)
            return 1
    report.write(options.out, {**results, "seconds": round(time.monotonic() - started)})
    print(f"\n{time.monotonic() - started:.0f} s; written to {options.out}")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench store", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two minutes, smaller files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of results (JSON)")
    parser.add_argument("--dir", type=Path, default=HERE, help="where the databases are made")
    return parser.parse_args(arguments)


def _measure(plan: Plan, folder: Path, *, quick: bool) -> dict[str, report.Json]:
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
