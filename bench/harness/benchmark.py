"""What a benchmark consists of, and how its cells are measured."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from bench.harness.measurements import Goal, Measurements
from bench.harness.process import Driver
from bench.report.results import Column, Table

P = TypeVar("P", bound=attrs.AttrsInstance)
T = TypeVar("T")


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
    given: tuple[str, ...] = ("path",)
    """What contenders get: the `path` of a database, the `url` of the model or server, or both."""
    rounds: int = 0
    """If set, a repetition has so many rounds, in which contenders take turns: `begin`, in each
    round `go_on`, and `end`. Noise that lasts for seconds then affects all of them alike."""

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
    url = next((each.about["url"] for each in drivers.values() if "url" in each.about), "")
    for group in groups:
        for repetition in range(group.repetitions):
            for cell in group.cells:
                progress(f"{cell.name}: repetition {repetition + 1} of {group.repetitions}")
                present = [each for each in cell.contenders if each.driver in drivers]
                ordered = rotate(present, repetition)
                measure = _take_rounds if cell.rounds else _take_turns
                for who, figures in measure(cell, ordered, drivers, folder, url).items():
                    measurements.add(cell.name, who, figures)
        for filled in list(folder.glob("filled-*")):
            remove(filled)
    return measurements


def _take_turns(
    cell: Cell,
    contenders: Sequence[Contender],
    drivers: Mapping[str, Driver],
    folder: Path,
    url: str,
) -> dict[str, dict[str, float]]:
    """Measure one repetition, one contender after the other."""
    paths = {each.database: _fill(each, drivers, folder) for each in contenders}
    found = {}
    for each in contenders:
        known = {"path": paths[each.database], "url": url}
        given = {name: known[name] for name in cell.given}
        found[each.who] = drivers[each.driver].ask(each.do, **given, **each.arguments)
        remove(folder / "fresh")
    for path in (path for each, path in paths.items() if each and each.renew):
        remove(Path(path))
    return found


def _take_rounds(
    cell: Cell,
    contenders: Sequence[Contender],
    drivers: Mapping[str, Driver],
    folder: Path,
    url: str,
) -> dict[str, dict[str, float]]:
    """Measure one repetition in rounds. Every contender has a new database."""
    for number, each in enumerate(contenders):
        known = {"path": str(folder / f"fresh-{number}"), "url": url}
        given = {name: known[name] for name in cell.given}
        drivers[each.driver].ask("begin", who=each.who, **given, **each.arguments)
    for number in range(cell.rounds):
        for each in rotate(contenders, number):
            drivers[each.driver].ask("go_on", who=each.who)
    found = {each.who: drivers[each.driver].ask("end", who=each.who) for each in contenders}
    remove(folder / "fresh")
    return found


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


@attrs.frozen
class Benchmark:
    """A command that measures. `modules` are its drivers, by name."""

    name: str
    about: str
    modules: Mapping[str, str]
    measure: Callable[[Run], Measured]


def measure_cells(
    full: P, quick: P, groups: Callable[[P], Sequence[Group]], goals: Callable[[P], Sequence[Goal]]
) -> Callable[[Run], Measured]:
    """Return how a benchmark measures that consists of cells; each cell has a table."""

    def measure(run: Run) -> Measured:
        plan = quick if run.options.quick else full
        cells = [cell for group in groups(plan) for cell in group.cells]
        found = run_cells(groups(plan), run.drivers, run.folder)
        return Measured(attrs.asdict(plan), found, goals(plan), [cell.table for cell in cells])

    return measure
