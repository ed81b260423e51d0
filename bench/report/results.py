"""The result file of a benchmark: its model, and the only reader and writer.

A file contains the figures and how to present them, so tables and pages can be made from the file
alone. Cells, rows (`who`), figures and goals are identified by their names, also across files:
`compare` matches by them, so renaming one makes it incomparable with older files.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Better = Literal["lower", "higher", "neither"]
Outcome = Literal["pass", "FAIL", "not judged", "not measured"]
"""Goals apply to full runs: a quick run that misses one is `not judged`."""
ORDER = ("switch", "runtime", "agents", "store", "hosts", "files", "http", "cluster")


class CommandError(Exception):
    """A command cannot be carried out. The text is a sentence for the user; exit code 2."""


class Spread(Struct, frozen=True):
    """The distribution of a figure over its repetitions."""

    median: float
    low: float
    high: float
    q1: float
    q3: float
    values: Annotated[tuple[float, ...], Meta(min_length=1)]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Summarize the finite values, to seven digits; None if there are none."""
        finite = tuple(float(f"{value:.7g}") for value in values if math.isfinite(value))
        if not finite:
            return None
        q1, median, q3 = (
            statistics.quantiles(finite, n=4, method="inclusive") if finite[1:] else finite * 3
        )
        return cls(median, min(finite), max(finite), q1, q3, finite)

    def text(self, digits: int) -> str:
        """Return `median [lowest..highest]`."""
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f}..{self.high:,.{digits}f}]"


class Figure(Spread, frozen=True, kw_only=True):
    """A figure of one contender in one cell."""

    cell: str
    who: str
    figure: str


class GoalResult(Struct, frozen=True):
    """A goal and what was measured for it. `target` reads like `>= 1.8 x`."""

    goal: str
    explains: str
    target: str
    better: Better
    unit: str
    outcome: Outcome
    measured: Spread | None


class Column(Struct, frozen=True):
    """A figure in a table; `explains` is one sentence for a first-time reader."""

    figure: str
    heading: str
    digits: int = 1
    better: Better = "lower"
    explains: str = ""


class Table(Struct, frozen=True):
    """How a cell is shown: one row per contender."""

    cell: str
    title: str
    columns: tuple[Column, ...]
    explains: str = ""


class Result(Struct, frozen=True):
    """One run of one benchmark."""

    benchmark: str
    about: str
    quick: bool
    seconds: float
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]
    plan: dict[str, Any]
    foreign: tuple[str, ...] | None
    """Rows whose figures do not depend on our code; None means all rows that are not ours."""
    goals: tuple[GoalResult, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]

    def spread(self, cell: str, who: str, figure: str) -> Figure | None:
        wanted = (cell, who, figure)
        return next((f for f in self.figures if (f.cell, f.who, f.figure) == wanted), None)

    def rows(self, table: Table) -> dict[str, list[Spread | None]]:
        """Return the figures of each contender in a table, in the order of the file."""
        everyone = dict.fromkeys(each.who for each in self.figures if each.cell == table.cell)
        return {
            who: [self.spread(table.cell, who, column.figure) for column in table.columns]
            for who in everyone
        }


def read(path: Path) -> Result:
    """Read a result file. Raises CommandError if it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{path} is not a result file: {error}.") from error


def read_folder(folder: Path) -> list[Result]:
    """Read the results of all benchmarks in a folder."""
    paths = [folder / f"{name}.json" for name in ORDER]
    return [read(path) for path in paths if path.exists()]


def write(path: Path, result: Result) -> None:
    """Write a result file: JSON with one line per figure, so that differences are readable."""
    lines = []
    for name, value in msgspec.to_builtins(result).items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, tuple | list) and value:
            text = ",\n".join(json.dumps(each, allow_nan=False) for each in value)
            text = f"[\n{text}\n]"
        lines.append(f"{json.dumps(name)}: {text}")
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
