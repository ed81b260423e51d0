"""What a benchmark consists of, and how its cells are measured and its goals are judged."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import attrs
from msgspec import structs

from bench.harness.process import Driver
from bench.report.results import Column, Figure, GoalResult, Outcome, Spread, Table

T = TypeVar("T")


class Ref(NamedTuple):
    """The name of a figure: in which cell, of which contender, and which figure."""

    cell: str
    who: str
    figure: str


@attrs.frozen
class Goal:
    """A target for a figure, or for its ratio to the figure `beside`.

    A ratio is taken within each repetition, so that noise which affects both sides cancels; the
    median of the ratios decides. `text` identifies the goal across result files.
    """

    text: str
    figure: Ref
    target: float
    beside: Ref | None = None
    at_least: bool = False
    unit: str = "x"
    explains: str = ""
    at_any_size: bool = False
    """Whether a quick run can fail it, too."""

    def outcome(self, spread: Spread | None, *, quick: bool) -> Outcome:
        if spread is None:
            return "not measured"
        if spread.median >= self.target if self.at_least else spread.median <= self.target:
            return "pass"
        return "not judged" if quick and not self.at_any_size else "FAIL"


def ratio(
    cell: str, figure: str, who: str, beside: str, least: float, explains: str, text: str = ""
) -> Goal:
    """A goal for the ratio of two contenders in one cell: at least so much."""
    text = text or f"{cell}: {who} / {beside}"
    refs = Ref(cell, who, figure), Ref(cell, beside, figure)
    return Goal(text, refs[0], least, refs[1], at_least=True, explains=explains)


@attrs.define
class Measurements:
    """All figures of a run, each in the order of its repetitions."""

    figures: dict[Ref, list[float]] = attrs.Factory(lambda: defaultdict(list))

    def add(self, cell: str, who: str, figures: Mapping[str, float]) -> None:
        """Add the figures of one repetition."""
        for name, value in figures.items():
            self.figures[Ref(cell, who, name)].append(value)

    def judge(self, goal: Goal, *, quick: bool = False) -> GoalResult:
        """Judge a goal by the median; repetitions without a number are left out."""
        values = self.figures.get(goal.figure, [])
        if goal.beside is not None:
            pairs = zip(values, self.figures.get(goal.beside, []), strict=False)
            values = [ours / theirs if theirs else math.nan for ours, theirs in pairs]
        spread = Spread.of(values)
        return GoalResult(
            goal=goal.text,
            explains=goal.explains,
            target=f"{'>=' if goal.at_least else '<='} {goal.target:g} {goal.unit}",
            better="higher" if goal.at_least else "lower",
            unit=goal.unit,
            outcome=goal.outcome(spread, quick=quick),
            measured=spread,
        )

    def all_figures(self) -> tuple[Figure, ...]:
        return tuple(
            Figure(**structs.asdict(spread), **ref._asdict())
            for ref, values in self.figures.items()
            if (spread := Spread.of(values))
        )


@attrs.frozen
class Database:
    """A database that a driver fills before it is used; contenders that name it share it."""

    driver: str
    sessions: int
    turns: int
    """Messages per session."""
    renew: bool = False
    """Whether every repetition gets a new one."""


@attrs.frozen
class Contender:
    """A row of a cell: which driver is asked to do what."""

    who: str
    driver: str
    do: str
    arguments: Mapping[str, object] = attrs.field(factory=dict, hash=False)
    database: Database | None = None
    """None: the driver creates a new database."""


@attrs.frozen
class Cell:
    """One measurement, done by all contenders, and the table that shows it."""

    name: str
    title: str
    columns: tuple[Column, ...]
    explains: str
    contenders: tuple[Contender, ...]
    on_disk: bool = True
    """Whether the contenders need the path of a database."""

    @property
    def table(self) -> Table:
        return Table(self.name, self.title, self.columns, self.explains)


@attrs.frozen
class Group:
    """Cells that are measured together: all in one repetition, then all in the next."""

    repetitions: int
    cells: tuple[Cell, ...]


def progress(text: str) -> None:
    """Print a step of a benchmark, with its time."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr)


def rotate(everyone: Sequence[T], repetition: int) -> list[T]:
    """Return everyone in turn, beginning with another one in each repetition."""
    first = repetition % len(everyone)
    return [*everyone[first:], *everyone[:first]]


def run_cells(groups: Sequence[Group], drivers: Mapping[str, Driver], folder: Path) -> Measurements:
    """Measure all cells, with the contenders whose driver is there."""
    measurements = Measurements()
    for group in groups:
        for repetition in range(group.repetitions):
            for cell in group.cells:
                progress(f"{cell.name}: repetition {repetition + 1} of {group.repetitions}")
                present = [each for each in cell.contenders if each.driver in drivers]
                databases = {each.database: _fill(each, drivers, folder) for each in present}
                for each in rotate(present, repetition):
                    where = {"path": databases[each.database]} if cell.on_disk else {}
                    figures = drivers[each.driver].ask(each.do, **where, **each.arguments)
                    measurements.add(cell.name, each.who, figures)
                    remove(folder / "fresh")
                for database, path in databases.items():
                    if database and database.renew:
                        remove(Path(path))
        for filled in list(folder.glob("filled-*")):
            remove(filled)
    return measurements


def _fill(contender: Contender, drivers: Mapping[str, Driver], folder: Path) -> str:
    """Return the path of a contender's database, and fill it if it does not exist yet."""
    database = contender.database
    if database is None:
        return str(folder / "fresh")
    size = {"sessions": database.sessions, "turns": database.turns}
    path = folder / f"filled-{database.driver}-{database.sessions}-{database.turns}.db"
    if not path.exists():
        progress(f"{database.driver} stores {database.sessions * database.turns:,} messages")
        drivers[database.driver].ask("fill", path=str(path), **size)
    return str(path)


def remove(path: Path) -> None:
    """Remove a folder, or a database with the files beside it."""
    shutil.rmtree(path, ignore_errors=True)
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()


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
