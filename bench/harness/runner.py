"""Runs the cells of a benchmark: contenders take turns, and each repetition starts with another."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs

from bench.harness.measurements import Measurements
from bench.report.results import Column, Table

T = TypeVar("T")


class Asked(Protocol):
    """A driver, as far as the runner uses it."""

    def ask(self, do: str, **arguments: object) -> dict[str, Any]: ...


@attrs.frozen
class Database:
    """A database that a driver fills before it is used; contenders that name it share it."""

    driver: str
    sessions: int
    turns: int
    """Messages per session."""
    renew: bool = False
    """Whether every repetition gets a new one."""

    def path(self, folder: Path) -> Path:
        return folder / f"filled-{self.driver}-{self.sessions}-{self.turns}.db"


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


def run_cells(groups: Sequence[Group], drivers: Mapping[str, Asked], folder: Path) -> Measurements:
    """Measure all cells, with the contenders whose driver is there."""
    runner = Runner(drivers, folder)
    for group in groups:
        for repetition in range(group.repetitions):
            for cell in group.cells:
                progress(f"{cell.name}: repetition {repetition + 1} of {group.repetitions}")
                runner.measure(cell, repetition)
        for path in list(folder.glob("filled-*")):
            remove(path)
    return runner.measurements


@attrs.frozen
class Runner:
    drivers: Mapping[str, Asked]
    folder: Path
    measurements: Measurements = attrs.Factory(Measurements)

    def measure(self, cell: Cell, repetition: int) -> None:
        present = [each for each in cell.contenders if each.driver in self.drivers]
        for database in dict.fromkeys(each.database for each in present if each.database):
            self.fill(database)
        fresh = self.folder / "fresh"
        for each in rotate(present, repetition):
            path = each.database.path(self.folder) if each.database else fresh
            where = {"path": str(path)} if cell.on_disk else {}
            figures = self.drivers[each.driver].ask(each.do, **where, **each.arguments)
            self.measurements.add(cell.name, each.who, figures)
            remove(fresh)

    def fill(self, database: Database) -> None:
        path = database.path(self.folder)
        if database.renew:
            remove(path)
        if not path.exists():
            progress(f"{database.driver} stores {database.sessions * database.turns:,} messages")
            size = {"sessions": database.sessions, "turns": database.turns}
            self.drivers[database.driver].ask("fill", path=str(path), **size)


def remove(path: Path) -> None:
    """Remove a folder, or a database with the files beside it."""
    shutil.rmtree(path, ignore_errors=True)
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()
