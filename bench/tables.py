"""What a benchmark prints: from its file of results, as everything else that shows it."""

from __future__ import annotations

from bench import report, written
from bench.board import Spread
from bench.written import Result


def text(result: Result) -> str:
    """What a benchmark prints: what was run where, its goals, its tables."""
    return "\n\n".join([about(result), goals(result), *cells(result)])


def about(result: Result) -> str:
    """Where and when it was measured."""
    machine = {"commit": "?", "when": "?", "cores": "?", "processor": "?", **result.machine}
    machine = {"file_system": "?", "python": "?", **machine}
    versions = {
        f"{name} {version}"
        for each in result.versions.values()
        if isinstance(each, dict)
        for name, version in each.items()
        if name not in {"python", "url"}
    }
    lines = [
        f"python -m bench {result.benchmark}{' --quick' if result.quick else ''}:"
        f" {result.seconds:.0f} s, {machine['when']}, commit {machine['commit']}",
        f"{machine['cores']} cores of {machine['processor']}, {machine['file_system']},"
        f" Python {machine['python']}",
        ", ".join(sorted(versions)),
    ]
    if result.quick:
        lines.append("QUICK: fewer repetitions and smaller files than the goals are stated for.")
    return "\n".join([*lines, "median [lowest..highest] of interleaved repetitions"])


def goals(result: Result) -> str:
    """Each goal with what was measured against it."""
    lines = [["goal", "target", "measured", ""]]
    for goal in result.goals:
        seen = "-" if goal.measured is None else f"{_words(goal.measured, 2)} {goal.unit()}"
        lines.append([goal.goal, goal.target, seen, goal.outcome])
    return report.aligned(lines)


def cells(result: Result) -> list[str]:
    """Each cell as lines of: who, then median [lowest..highest] per figure."""
    shown = []
    for table in result.tables:
        lines = [[table.title, *(column.heading for column in table.columns)]]
        for who in result.who(table.cell):
            spreads = [(result.spread(table.cell, who, c.figure), c.digits) for c in table.columns]
            lines.append([f"  {who}", *(_words(spread, digits) for spread, digits in spreads)])
        if len(lines) > 1:
            shown.append(report.aligned(lines))
    return shown


def _words(spread: written.Spread | None, digits: int) -> str:
    values = [] if spread is None else [value for value in spread.values if value is not None]
    return Spread.of(values).text(digits) if values else "-"
