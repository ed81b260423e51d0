"""The tables of a result, for a terminal and for bench/README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.report.results import CommandError, Result

QUICK = "QUICK: fewer repetitions and less data than the goals are stated for."


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
        rows = [[table.title, *(column.heading for column in table.columns)]]
        for who, spreads in result.rows(table).items():
            shown = zip(spreads, table.columns, strict=True)
            rows.append([f"  {who}", *(s.text(c.digits) if s else "-" for s, c in shown)])
        if rows[1:]:
            parts.append(align(rows))
    return "\n\n".join(parts)


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


def fill(page: str, kind: str, made: Mapping[str, str]) -> str:
    """Replace each named block of this kind in a Markdown page by a text."""
    for name, text in made.items():
        before, begin, rest = page.partition(f"<!-- {kind}: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise CommandError(f"The page has no place for the {kind} of {name}.")
        page = f"{before}{begin}```\n{text}\n```\n{end}{after}"
    return page
