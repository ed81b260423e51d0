"""What a benchmark measures, and how it is shown, as values and as a file of results."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import attrs

from bench.board import Board, Goal

Better = Literal["lower", "higher", "neither"]
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@attrs.frozen
class Column:
    """A figure to show, under which heading, with how many digits."""

    figure: str
    heading: str
    digits: int = 1
    better: Better = "lower"
    explains: str = ""
    """One sentence for somebody who sees this figure for the first time."""


@attrs.frozen
class Table:
    """How a cell is shown."""

    cell: str
    title: str
    columns: tuple[Column, ...]
    explains: str = ""


@attrs.frozen
class Axis:
    """What runs along a side of a plot."""

    label: str
    log: bool = False


@attrs.frozen
class Line:
    """One contender in a plot: where along the x axis which cell is."""

    who: str
    cells: Mapping[float, str]


@attrs.frozen
class Plot:
    """How one figure grows over several cells."""

    title: str
    figure: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    explains: str = ""


def machine(folder: Path) -> dict[str, Json]:
    """Where the figures come from; `folder` is where the files were."""
    model = [
        line.partition(":")[2].strip()
        for line in _read("/proc/cpuinfo").splitlines()
        if line.startswith("model name")
    ]
    return {
        "system": platform.platform(),
        "processor": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "load_before": load(),
        "commit": _commit(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load() -> list[Json]:
    """How busy the machine was in the last minutes."""
    return [round(average, 2) for average in os.getloadavg()]


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""


def _file_system(folder: Path) -> str:
    """The type of the file system that holds the folder: the longest mount point above it."""
    mounts = [line.split()[1:3] for line in _read("/proc/mounts").splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "unknown"


def _commit() -> str:
    """Which code this is; results are none."""
    try:
        changed = _git("status", "--porcelain", "--", ".", ":(top,exclude)bench/results")
        return _git("describe", "--always", "--abbrev=12") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    top = Path(__file__).parents[1]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=top
    ).stdout.strip()


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


@attrs.frozen
class Sheet:
    """How a benchmark is shown: its goals, which are ratios mostly, then its tables and plots."""

    goals: Sequence[Goal]
    tables: Sequence[Table]
    plots: Sequence[Plot] = ()


@attrs.frozen
class Measured:
    """What a benchmark has found, where, and how it is shown."""

    board: Board
    sheet: Sheet
    machine: Mapping[str, Json]
    versions: Mapping[str, Json]
    plan: Mapping[str, Json]
    foreign: Sequence[str] | None = None
    """Whose figures tell nothing of our code; None where that is everybody but ours."""


def document(measured: Measured, *, quick: bool = False) -> dict[str, Json]:
    """Everything measured and how it is shown, for a file: a page can be made of it alone."""
    board, sheet = measured.board, measured.sheet
    figures: list[Json] = []
    for ref in board.figures:
        spread = board.spread(ref)
        if spread is not None:
            figures.append({**attrs.asdict(ref), **attrs.asdict(spread)})
    outcomes: list[Json] = []
    for goal in sheet.goals:
        spread = board.measured(goal)
        outcomes.append(
            {
                "goal": goal.text,
                "explains": goal.explains,
                "target": goal.rule(),
                "better": "higher" if goal.at_least else "lower",
                "unit": goal.unit,
                "outcome": goal.outcome(spread, quick=quick),
                "measured": None if spread is None else attrs.asdict(spread),
            }
        )
    return {
        "machine": measured.machine,
        "versions": measured.versions,
        "plan": measured.plan,
        "foreign": measured.foreign,
        "goals": outcomes,
        "figures": figures,
        "tables": [attrs.asdict(table) for table in sheet.tables],
        "plots": [_plot(plot) for plot in sheet.plots],
    }


def _plot(plot: Plot) -> dict[str, Json]:
    """Cells as pairs: a number is no key of a JSON object."""
    lines: list[Json] = [
        {"who": line.who, "cells": [[x, cell] for x, cell in line.cells.items()]}
        for line in plot.lines
    ]
    return {**attrs.asdict(plot), "lines": lines}


def write(path: Path, content: Mapping[str, Json]) -> None:
    """The results as JSON, which has no infinity: null stands for it. Seven digits are enough."""
    lines = [f"{json.dumps(key)}: {_lines(_finite(value))}" for key, value in content.items()]
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _lines(value: Json) -> str:
    """A list has a line for each of its parts, so that files are short and changes are seen."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(each, allow_nan=False) for each in value) + "\n]"


def write_text(path: Path, text: str) -> None:
    """A file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _finite(value: Json) -> Json:
    match value:
        case float():
            return float(f"{value:.7g}") if math.isfinite(value) else None
        case str():
            return value
        case Mapping():
            return {key: _finite(each) for key, each in value.items()}
        case Sequence():
            return [_finite(each) for each in value]
        case _:
            return value
