"""The tables of a result, for a terminal and for bench/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from bench.report.results import CommandError, Result, Table

QUICK = "QUICK: fewer repetitions and less data than the goals are stated for."
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def align(lines: Sequence[Sequence[str]]) -> str:
    """Lay out rows of text in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def render(result: Result) -> str:
    """Show the circumstances of a run, its goals and its tables."""
    goals = [["goal", "target", "measured", ""]]
    for goal in result.goals:
        measured = "-" if goal.measured is None else f"{goal.measured.text(2)} {goal.unit}"
        goals.append([goal.goal, goal.target, measured, goal.outcome])
    parts = [_circumstances(result), align(goals)]
    for table in result.tables:
        rows = [[f"  {who}", *_figures(result, table, who)] for who in result.who(table.cell)]
        if rows:
            parts.append(align([[table.title, *(c.heading for c in table.columns)], *rows]))
    return "\n\n".join(parts)


def _figures(result: Result, table: Table, who: str) -> Iterator[str]:
    for column in table.columns:
        spread = result.spread(table.cell, who, column.figure)
        yield "-" if spread is None else spread.text(column.digits)


def _circumstances(result: Result) -> str:
    about = {"cores": "?", "processor": "?", "file_system": "?", "python": "?", **result.machine}
    versions = {
        f"{name} {version}"
        for each in result.versions.values()
        for name, version in each.items()
        if name not in {"python", "url"}
    }
    lines = [
        f"python -m bench {result.benchmark}{' --quick' if result.quick else ''}: "
        f"{result.seconds:.0f} s, {about.get('when')}, commit {about.get('commit')}",
        "{cores} cores of {processor}, {file_system}, Python {python}".format_map(about),
        ", ".join(sorted(versions)),
        *([QUICK] if result.quick else []),
        "median [lowest..highest] of interleaved repetitions",
    ]
    return "\n".join(lines)


def fill(page: str, shown: Iterable[Result]) -> str:
    """Replace the result blocks of a Markdown page by the current tables."""
    texts = {result.benchmark: f"```\n{render(result)}\n```\n" for result in shown}

    def block(found: re.Match[str]) -> str:
        if found[2] not in texts:
            raise CommandError(f"There is no result of {found[2]} for the README.")
        return found[1] + texts[found[2]] + found[3]

    return BLOCK.sub(block, page)
