"""The table in the terminal and the file of results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs

from bench.board import Board, Goal, Ref

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


@attrs.frozen
class Column:
    """A figure to show, under which heading, with how many digits."""

    figure: str
    heading: str
    digits: int = 1


@attrs.frozen
class Table:
    """How a cell is shown."""

    cell: str
    title: str
    columns: tuple[Column, ...]


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
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def tables(board: Board, shown: Iterable[Table]) -> str:
    """Each cell as lines of: who, then median [lowest..highest] per figure."""
    parts = []
    for table in shown:
        lines = [[table.title, *(column.heading for column in table.columns)]]
        for who in board.who(table.cell):
            spreads = [(board.spread(Ref(table.cell, who, c.figure)), c) for c in table.columns]
            lines.append(
                [f"  {who}", *(s.text(c.digits) if s is not None else "-" for s, c in spreads)]
            )
        if len(lines) > 1:
            parts.append(aligned(lines))
    return "\n\n".join(parts)


def goals(board: Board, wanted: Iterable[Goal]) -> str:
    """Each goal with what was measured against it."""
    lines = [["goal", "target", "measured, median [lowest..highest]", ""]]
    for goal in wanted:
        spread = board.measured(goal)
        seen = "-" if spread is None else f"{spread.text(2)} {goal.unit}"
        lines.append([goal.text, goal.rule(), seen, goal.outcome(spread)])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def document(board: Board, wanted: Iterable[Goal]) -> dict[str, Json]:
    """Everything measured, for a file."""
    figures: list[Json] = []
    for ref in board.figures:
        spread = board.spread(ref)
        assert spread is not None
        figures.append({**attrs.asdict(ref), **attrs.asdict(spread)})
    outcomes: list[Json] = []
    for goal in wanted:
        spread = board.measured(goal)
        outcomes.append(
            {
                "goal": goal.text,
                "target": goal.rule(),
                "outcome": goal.outcome(spread),
                "measured": None if spread is None else attrs.asdict(spread),
            }
        )
    return {"goals": outcomes, "figures": figures}


def finish(
    name: str,
    board: Board,
    shown: Sequence[Table],
    wanted: Sequence[Goal],
    *,
    about: Mapping[str, Json],
    quick: bool,
) -> dict[str, Json]:
    """Print what was measured, and return it for a file."""
    described = {**about["machine"], **about["versions"]}  # type: ignore[dict-item]
    print("\n".join(f"{key}: {value}" for key, value in described.items()))
    if quick:
        print("\nQUICK: fewer repetitions and smaller files than the goals are stated for.")
    print("\nmedian [lowest..highest] of interleaved repetitions\n")
    print(tables(board, shown))
    print(f"\n{goals(board, wanted)}")
    return {"benchmark": name, "quick": quick, **about, **document(board, wanted)}


def write(path: Path, content: Mapping[str, Json]) -> None:
    """The results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)
