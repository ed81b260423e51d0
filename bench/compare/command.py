"""`python -m bench compare OLD NEW`: options and output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs

from bench.command import Parser
from bench.compare.comparison import VERDICTS, Comparison, Row, compare
from bench.report.results import Result, read
from bench.report.tables import align

HELP = """\
Compare two result files of the same benchmark, both quick or both full. A change is flagged if it
is larger than the variation of the repetitions explains. Ratios are compared across machines,
absolute figures only on the same machine. Exit code: 0 without regressions, 1 with regressions,
2 if the files cannot be compared.
"""


def main(arguments: Sequence[str]) -> int:
    """Compare two files and return the exit code."""
    parser = Parser(prog="python -m bench compare", description=HELP)
    parser.add_argument("old", type=Path, help="the earlier result file")
    parser.add_argument("new", type=Path, help="the later result file")
    parser.add_argument("--all", action="store_true", help="also show what is within noise")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")
    options = parser.parse_args(arguments)
    old, new = read(options.old), read(options.new)
    found = compare(old, new)
    print(as_json(found) if options.json else text(old, new, found, all_=options.all))
    return 1 if found.count()["regression"] else 0


def text(old: Result, new: Result, found: Comparison, *, all_: bool) -> str:
    """Describe a comparison for a terminal."""
    origins = [f"{each.machine.get('commit')}, {each.machine.get('when')}" for each in (old, new)]
    parts = [f"{old.benchmark}\nold: {origins[0]}\nnew: {origins[1]}", *found.remarks]
    flagged = {"regression", "improvement"}
    rows = [row for row in found.rows if all_ or row.lost or row.verdict in flagged]
    if rows:
        heading = ["mean of the repetitions", "old", "new", "change", "noise", "verdict"]
        parts.append(align([heading, *map(_line, rows)]))
    for name, only in (("old", found.only_old), ("new", found.only_new)):
        if only:
            parts.append(f"Only in {name}: {'; '.join(only)}.")
    return "\n\n".join([*parts, summary(found)])


def summary(found: Comparison) -> str:
    """Return one line of counts."""
    counts = found.count()
    words = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS]
    if lost := sum(row.lost is not None and row.verdict != "regression" for row in found.rows):
        words.append(f"{lost} lost goals without a regression")
    return ", ".join(words)


def _line(row: Row) -> list[str]:
    noise = "-" if row.noise is None else " .. ".join(map(_percent, row.noise))
    change = "-" if row.change is None else _percent(row.change)
    verdict = f"{row.lost}, {row.verdict}" if row.lost else row.verdict
    values = [f"{_number(row.pair.mean(run))} {row.unit}" for run in (row.pair.old, row.pair.new)]
    return [row.what, *values, change, noise, verdict]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:+,.{1 if abs(share) < 0.1 else 0}f} %"


def as_json(found: Comparison) -> str:
    """Describe a comparison for a program."""
    rows = [{**attrs.asdict(row), "change": row.change, "noise": row.noise} for row in found.rows]
    counts = {verdict: found.count()[verdict] for verdict in VERDICTS}
    return json.dumps({**attrs.asdict(found), "rows": rows, "counts": counts}, indent=1)
