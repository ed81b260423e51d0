"""`python -m bench show [FILE ...]`: the tables of results that were written down.

`--write` puts those of bench/results/ into bench/README.md, so that it says what was measured.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report, tables, written
from bench.command import RESULTS, Parser
from bench.written import NotAResult

README = Path(__file__).parent / "README.md"
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Print tables, or write them into the README."""
    parser = Parser(prog="python -m bench show", description=__doc__)
    parser.add_argument(
        "files", metavar="FILE", nargs="*", type=Path, help="default: all of bench/results/"
    )
    parser.add_argument("--write", action="store_true", help="into bench/README.md")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            report.write_text(README, filled(README.read_text()))
        else:
            named = [written.read(file) for file in options.files]
            shown = map(written.parse, named or written.beside(RESULTS))
            print("\n\n".join(map(tables.text, shown)))
    except (NotAResult, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def filled(page: str) -> str:
    """A page with the results of today in its blocks."""
    return BLOCK.sub(lambda found: found[1] + _block(found[2]) + found[3], page)


def _block(name: str) -> str:
    result = written.parse(written.read(RESULTS / f"{name}.json"))
    return f"```\n{tables.text(result)}\n```\n"
