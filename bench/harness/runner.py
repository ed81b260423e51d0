"""Runs the cells of a benchmark: contenders take turns, and each repetition starts with another."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import attrs

from bench.harness.measurements import Measurements
from bench.harness.progress import Steps

T = TypeVar("T")


class Asked(Protocol):
    """A driver, as far as the runner uses it."""

    def ask(self, do: str, **arguments: object) -> dict[str, Any]: ...


@attrs.frozen
class Database:
    """A database that a driver fills before it is used, and that is shared by those who name it."""

    driver: str
    sessions: int
    turns: int
    """Messages per session."""
    renew: bool = False
    """Whether every repetition gets a new one."""

    @property
    def file_name(self) -> str:
        return f"filled-{self.driver}-{self.sessions}-{self.turns}.db"


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
    """One measurement, done by all contenders."""

    name: str
    contenders: tuple[Contender, ...]
    on_disk: bool = True
    """Whether the contenders need the path of a database."""


@attrs.frozen
class Group:
    """Cells that are measured together: all in one repetition, then all in the next."""

    repetitions: int
    cells: tuple[Cell, ...]


def rotate(everyone: Sequence[T], repetition: int) -> list[T]:
    """Return everyone in turn, beginning with another one in each repetition."""
    first = repetition % len(everyone)
    return [*everyone[first:], *everyone[:first]]


def run_cells(
    groups: Sequence[Group], drivers: Mapping[str, Asked], folder: Path, steps: Steps
) -> Measurements:
    """Measure all cells, with the contenders whose driver is there."""
    runner = Runner(drivers, folder)
    schedules = [list(runner.schedule(group)) for group in groups]
    steps.expect(sum(map(len, schedules)))
    for schedule in schedules:
        for text, task in schedule:
            steps.step(text)
            task()
        for path in list(folder.glob("filled-*")):
            remove(path)
    return runner.measurements


@attrs.frozen
class Runner:
    drivers: Mapping[str, Asked]
    folder: Path
    measurements: Measurements = attrs.Factory(Measurements)

    def schedule(self, group: Group) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the steps of a group: a description, and the function that does it."""
        filled: set[Database] = set()
        for repetition in range(group.repetitions):
            for cell in group.cells:
                present = [each for each in cell.contenders if each.driver in self.drivers]
                for database in dict.fromkeys(each.database for each in present if each.database):
                    if database not in filled or database.renew:
                        size = f"{database.sessions * database.turns:,} messages"
                        text = f"{cell.name}: {database.driver} stores {size}"
                        yield text, partial(self.fill, database)
                        filled.add(database)
                text = f"{cell.name}: repetition {repetition + 1} of {group.repetitions}"
                yield text, partial(self.measure, cell, rotate(present, repetition))

    def fill(self, database: Database) -> None:
        path = self.folder / database.file_name
        remove(path)
        self.drivers[database.driver].ask(
            "fill", path=str(path), sessions=database.sessions, turns=database.turns
        )

    def measure(self, cell: Cell, contenders: Sequence[Contender]) -> None:
        fresh = self.folder / "fresh"
        for each in contenders:
            path = self.folder / each.database.file_name if each.database else fresh
            where = {"path": str(path)} if cell.on_disk else {}
            figures = self.drivers[each.driver].ask(each.do, **where, **each.arguments)
            self.measurements.add(cell.name, each.who, figures)
            remove(fresh)


def remove(path: Path) -> None:
    """Remove a folder, or a database with the files beside it."""
    shutil.rmtree(path, ignore_errors=True)
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()
