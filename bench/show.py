"""`python -m bench show [FILE ...]`: the tables of results that were written down.

`--write` puts those of bench/results/ into bench/README.md, so that it says what was measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.board import Spread

HERE = Path(__file__).parent
README = HERE / "README.md"
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
Document = Mapping[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Print tables, or write them into the README."""
    parser = argparse.ArgumentParser(prog="python -m bench show", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="default: all of bench/results/")
    parser.add_argument("--write", action="store_true", help="into bench/README.md")
    options = parser.parse_args(arguments)
    if options.write:
        README.write_text(written(README.read_text()))
        return 0
    for file in options.files or sorted((HERE / "results").glob("*.json")):
        try:
            print(text(json.loads(file.read_text())))
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"{file} has no results: {error}", file=sys.stderr)
            return 2
    return 0


def written(page: str) -> str:
    """The page with the results of today in its blocks."""
    return BLOCK.sub(lambda found: found[1] + _block(found[2]) + found[3], page)


def _block(name: str) -> str:
    document = json.loads((HERE / "results" / f"{name}.json").read_text())
    return f"```\n{text(document)}\n```\n"


def text(document: Document) -> str:
    """What a benchmark has printed: where it was, its goals, its tables."""
    return "\n\n".join([_about(document), _goals(document), *_tables(document)])


def _about(document: Document) -> str:
    machine = document["machine"]
    options = " --quick" if document["quick"] else ""
    return (
        f"python -m bench {document['benchmark']}{options}: {document['seconds']} s,"
        f" commit {machine['commit']}, {machine['when']}\n"
        f"{machine['cores']} cores of {machine['processor']}, {machine['file_system']},"
        f" Python {machine['python']}; median [lowest..highest]"
    )


def _goals(document: Document) -> str:
    lines = [["goal", "target", "measured", ""]]
    for goal in document["goals"]:
        measured = goal["measured"]
        unit = goal.get("unit", "")
        seen = "-" if measured is None else f"{Spread(**measured).text(2)} {unit}".rstrip()
        lines.append([goal["goal"], goal["target"], seen, goal["outcome"]])
    return report.aligned(lines)


def _tables(document: Document) -> list[str]:
    figures = {(each["cell"], each["who"], each["figure"]): each for each in document["figures"]}
    shown = []
    for table in document["tables"]:
        cell, columns = table["cell"], table["columns"]
        lines = [[table["title"], *(column["heading"] for column in columns)]]
        for who in dict.fromkeys(key[1] for key in figures if key[0] == cell):
            row = [figures.get((cell, who, column["figure"])) for column in columns]
            words = [
                _words(each, column["digits"]) for each, column in zip(row, columns, strict=True)
            ]
            lines.append([f"  {who}", *words])
        if len(lines) > 1:
            shown.append(report.aligned(lines))
    return shown


def _words(figure: Document | None, digits: int) -> str:
    if figure is None:
        return "-"
    spread = {name: figure[name] for name in ("median", "low", "high", "q1", "q3", "values")}
    return Spread(**spread).text(digits)
