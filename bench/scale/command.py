"""`python -m bench scale`: print the tables of docs/scale.md, or write them into the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.command import HERE, RESULTS, Parser
from bench.errors import CommandError
from bench.report import results
from bench.scale.tables import tables
from bench.scale.unit_costs import Medians, unit_costs

PAGE = HERE.parent / "docs" / "scale.md"


def main(arguments: Sequence[str]) -> int:
    """Print or write the tables and return the exit code."""
    parser = Parser(
        prog="python -m bench scale",
        description="Derive the capacity of one node from the measured costs.",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of result files")
    parser.add_argument("--write", action="store_true", help="update docs/scale.md")
    options = parser.parse_args(arguments)
    medians = Medians(options.results)
    made = tables(medians, unit_costs(medians))
    if options.write:
        results.write_text(PAGE, fill(PAGE.read_text(), made))
    else:
        print("\n\n".join(made.values()))
    return 0


def fill(page: str, made: Mapping[str, str]) -> str:
    """Put each table into its place in the page."""
    for name, table in made.items():
        before, begin, rest = page.partition(f"<!-- scale: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise CommandError(f"{PAGE.name} has no place for the table {name}.")
        page = f"{before}{begin}```\n{table}\n```\n{end}{after}"
    return page
