"""Files of results, read back to be shown: leniently, because older files show less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.report import Json


class NotAResult(Exception):
    """This file is none that a benchmark wrote; the text says which and why."""


class Spread(msgspec.Struct, frozen=True):
    """A figure over its repetitions; null where it was no number."""

    median: float | None = None
    low: float | None = None
    high: float | None = None
    values: tuple[float | None, ...] = ()


class Figure(Spread, frozen=True, kw_only=True):
    """Whose figure, in which cell."""

    cell: str
    who: str
    figure: str


class Goal(msgspec.Struct, frozen=True):
    """A promise with what was measured against it."""

    goal: str
    target: str = ""
    outcome: str = "not measured"
    measured: Spread | None = None
    explains: str = ""

    def limit(self) -> float | None:
        """The number of the target, which reads like `>= 1.8 x`."""
        try:
            return finite(float(self.target.split()[1].replace(",", "")))
        except (IndexError, ValueError):
            return None

    def unit(self) -> str:
        return self.target.partition(" ")[2].partition(" ")[2]


class Column(msgspec.Struct, frozen=True):
    """How a figure is shown."""

    figure: str
    heading: str
    digits: int = 1
    better: str = ""
    explains: str = ""


class Table(msgspec.Struct, frozen=True):
    """How a cell is shown."""

    cell: str
    title: str
    columns: tuple[Column, ...] = ()
    explains: str = ""


class Axis(msgspec.Struct, frozen=True):
    label: str = ""
    log: bool = False


class Line(msgspec.Struct, frozen=True):
    """Whose figure, and in which cell it is at which x."""

    who: str
    cells: tuple[tuple[float, str], ...] = ()


class Plot(msgspec.Struct, frozen=True):
    """How a figure grows over several cells."""

    title: str
    figure: str
    x: Axis = Axis()
    y: Axis = Axis()
    lines: tuple[Line, ...] = ()
    explains: str = ""


class Result(msgspec.Struct, frozen=True):
    """One run of one benchmark. Older files have fewer fields."""

    benchmark: str
    about: str = ""
    quick: bool = False
    seconds: float = 0
    machine: dict[str, object] = {}
    versions: dict[str, object] = {}
    plan: dict[str, object] = {}
    goals: tuple[Goal, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()

    def spread(self, cell: str, who: str, figure: str) -> Spread | None:
        wanted = (cell, who, figure)
        found = (each for each in self.figures if (each.cell, each.who, each.figure) == wanted)
        return next(found, None)

    def who(self, cell: str) -> list[str]:
        """Everybody in the cell, in the order of the file."""
        return list(dict.fromkeys(each.who for each in self.figures if each.cell == cell))


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def parse(document: Json) -> Result:
    """A document as `report.document` makes it."""
    try:
        return msgspec.convert(document, Result)
    except msgspec.ValidationError as error:
        raise NotAResult(str(error)) from error


def read(path: Path) -> Json:
    """The document in a file, checked."""
    try:
        document: Json = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise NotAResult(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAResult(f"{path} is not a file of results: it is not JSON.") from error
    try:
        parse(document)
    except NotAResult as error:
        raise NotAResult(f"{path} is not a file of results: {error}.") from error
    return document


ORDER = ("switch", "runtime", "agents", "store")


def place(benchmark: str) -> int:
    """The headline comes first."""
    return ORDER.index(benchmark) if benchmark in ORDER else len(ORDER)


def beside(folder: Path) -> Sequence[Json]:
    """Every result in a folder, the headline first; other JSON files are passed over."""
    documents = []
    for path in sorted(folder.glob("*.json"), key=lambda path: (place(path.stem), path)):
        try:
            documents.append(read(path))
        except NotAResult:
            continue
    return documents
