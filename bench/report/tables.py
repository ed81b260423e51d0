"""The tables of a result, for a terminal and for bench/README.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bench.errors import CommandError
from bench.report.results import Result, Spread

QUICK = "QUICK: fewer repetitions and less data than the goals are stated for."
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def align(lines: Sequence[Sequence[str]]) -> str:
    """Lay out rows of words in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def render(result: Result) -> str:
    """Show the circumstances of a run, its goals and its tables."""
    return "\n\n".join([_about(result), _goals(result), *_cells(result)])


def _about(result: Result) -> str:
    machine = {name: str(value) for name, value in result.machine.items()}
    when, commit, cores, processor, files, python = (
        machine.get(name, "?")
        for name in ("when", "commit", "cores", "processor", "file_system", "python")
    )
    versions = {
        f"{name} {version}"
        for each in result.versions.values()
        for name, version in each.items()
        if name not in {"python", "url"}
    }
    quick = " --quick" if result.quick else ""
    lines = [
        f"python -m bench {result.benchmark}{quick}: {result.seconds:.0f} s, {when}, "
        f"commit {commit}",
        f"{cores} cores of {processor}, {files}, Python {python}",
        ", ".join(sorted(versions)),
        *([QUICK] if result.quick else []),
        "median [lowest..highest] of interleaved repetitions",
    ]
    return "\n".join(lines)


def _goals(result: Result) -> str:
    lines = [["goal", "target", "measured", ""]]
    for goal in result.goals:
        measured = "-" if goal.measured is None else f"{goal.measured.text(2)} {goal.unit}"
        lines.append([goal.goal, goal.target, measured, goal.outcome])
    return align(lines)


def _cells(result: Result) -> Iterable[str]:
    for table in result.tables:
        lines = [[table.title, *(column.heading for column in table.columns)]]
        for who in result.who(table.cell):
            spreads = [(result.spread(table.cell, who, c.figure), c.digits) for c in table.columns]
            lines.append([f"  {who}", *(text_or_dash(*each) for each in spreads)])
        if len(lines) > 1:
            yield align(lines)


def text_or_dash(spread: Spread | None, digits: int) -> str:
    return "-" if spread is None else spread.text(digits)


def fill(page: str, shown: Iterable[Result]) -> str:
    """Replace the result blocks of a Markdown page by the current tables."""
    texts = {result.benchmark: f"```\n{render(result)}\n```\n" for result in shown}

    def block(found: re.Match[str]) -> str:
        if found[2] not in texts:
            raise CommandError(f"There is no result of {found[2]} for the README.")
        return found[1] + texts[found[2]] + found[3]

    return BLOCK.sub(block, page)
