"""What `python -m bench` needs to know about a benchmark in order to run it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from bench.harness.driver import Driver
from bench.harness.measurements import Goal, Measurements
from bench.harness.runner import Group, run_cells
from bench.report.results import Table


@attrs.frozen
class Measured:
    """What a benchmark measured, how much work that was (`plan`), and how it is presented."""

    plan: Mapping[str, object]
    measurements: Measurements
    goals: Sequence[Goal]
    tables: Sequence[Table]
    foreign: Sequence[str] | None = None
    """Rows that do not depend on our code; None means all rows that are not called ours."""


@attrs.frozen
class Run:
    """The circumstances of one run. `folder` is for databases and is removed afterwards."""

    drivers: Mapping[str, Driver]
    folder: Path
    options: argparse.Namespace

    def measure_cells(
        self, plan: attrs.AttrsInstance, groups: Sequence[Group], goals: Sequence[Goal]
    ) -> Measured:
        """Run all cells; each cell has a table."""
        measurements = run_cells(groups, self.drivers, self.folder)
        tables = [cell.table for group in groups for cell in group.cells]
        return Measured(attrs.asdict(plan), measurements, goals, tables)


@attrs.frozen
class Benchmark:
    """A command that measures. `modules` are its drivers, by name."""

    name: str
    about: str
    modules: Mapping[str, str]
    measure: Callable[[Run], Measured]
