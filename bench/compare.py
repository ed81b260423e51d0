"""`python -m bench compare old.json new.json`: what got worse or better beyond the noise.

Exit code: 0 without regressions, 1 with, 2 where the files cannot be compared. Read: changes for
what is compared with what, noise for how far noise reaches.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from bench.changes import VERDICTS, Comparison, Row, compare
from bench.command import Parser
from bench.report import aligned
from bench.result_files import BadInput, Result, read

HELP = """\
Compares two files of results of the same benchmark, both quick or both full. Flags what moved
further than the repetitions of the two runs scatter. Ratios are compared on any machines, absolute
figures only on the same one. Exit code: 0 without regressions, 1 with, 2 for files that cannot be
compared.
"""


def main(arguments: Sequence[str]) -> int:
    """Compare two files, print what was found; the exit code."""
    parser = Parser(prog="python -m bench compare", description=HELP)
    parser.add_argument("old", type=Path, help="the earlier file of results (JSON)")
    parser.add_argument("new", type=Path, help="the later one")
    parser.add_argument("--all", action="store_true", help="also show what is within noise")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")
    options = parser.parse_args(arguments)
    try:
        old, new = read(options.old), read(options.new)
        found = compare(old, new)
    except BadInput as reason:
        print(reason, file=sys.stderr)
        return 2
    print(as_json(old, new, found) if options.json else text(old, new, found, all_=options.all))
    return 1 if found.count()["regression"] else 0


def text(old: Result, new: Result, found: Comparison, *, all_: bool) -> str:
    """What was found, for a terminal."""
    parts = [f"{old.benchmark}\nold: {_origin(old)}\nnew: {_origin(new)}", *found.remarks]
    rows = [
        row
        for row in found.rows
        if all_ or row.lost or row.verdict in {"regression", "improvement"}
    ]
    if rows:
        heading = ["mean of the repetitions", "old", "new", "change", "noise", "verdict"]
        parts.append(aligned([heading, *map(_line, rows)]))
    for name, only in (("old", found.only_old), ("new", found.only_new)):
        if only:
            parts.append(f"Only in {name}: {'; '.join(only)}.")
    return "\n\n".join([*parts, summary(found)])


def summary(found: Comparison) -> str:
    """One line."""
    counts = found.count()
    words = [
        _plural(counts["regression"], "regression"),
        _plural(counts["improvement"], "improvement"),
        f"{counts['within noise']} within noise",
    ]
    if counts["not comparable"]:
        words.append(f"{counts['not comparable']} not comparable")
    if lost := sum(row.lost is not None and row.verdict != "regression" for row in found.rows):
        words.append(f"{_plural(lost, 'goal')} lost without a regression")
    return ", ".join(words)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _origin(result: Result) -> str:
    return f"{result.machine.get('commit', 'unknown')}, {result.machine.get('when', 'unknown')}"


def _line(row: Row) -> list[str]:
    noise = "-" if row.noise is None else f"{_percent(row.noise[0])} .. {_percent(row.noise[1])}"
    change = "-" if row.change is None else _percent(row.change)
    verdict = f"{row.lost}, {row.verdict}" if row.lost else row.verdict
    values = [f"{_number(value)} {row.unit}".rstrip() for value in (row.old, row.new)]
    return [row.what, *values, change, noise, verdict]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{100 * share:+,.{1 if abs(share) < 0.1 else 0}f} %"


def as_json(old: Result, new: Result, found: Comparison) -> str:
    """Everything that was compared, for a program."""
    return json.dumps(
        {
            "benchmark": old.benchmark,
            "quick": old.quick,
            "old": old.machine,
            "new": new.machine,
            "counts": {verdict: found.count()[verdict] for verdict in VERDICTS},
            "summary": summary(found),
            **attrs.asdict(found),
        },
        indent=1,
    )
