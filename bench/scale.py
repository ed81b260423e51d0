"""`python -m bench scale`: what a node and many nodes can hold, derived from measured unit costs.

Every formula is checked against a simulation, and the simulation against what was measured.
`--write` puts the tables into docs/scale.md. Exit codes: 0; 1 where two that should agree do not;
2 where a figure is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.command import HERE, Parser
from bench.scale_tables import Block, blocks
from bench.unit_costs import Missing, Results, units

PAGE = HERE.parent / "docs" / "scale.md"
SEED = 1


def main(arguments: Sequence[str]) -> int:
    """Print the tables, or write them into the page; the exit code."""
    parser = Parser(
        prog="python -m bench scale", description="What one node and many nodes can hold."
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of the simulation")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of results")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    results = Results(options.results)
    try:
        made = blocks(results, units(results), options.seed)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    if options.write:
        try:
            report.write_text(PAGE, filled(PAGE.read_text(), made))
        except OSError as error:
            print(f"{PAGE.name} cannot be written: {error.strerror}.", file=sys.stderr)
            return 2
    else:
        print("\n\n".join(block.text for block in made))
    return code(made)


def code(made: Sequence[Block]) -> int:
    """How the command ends."""
    return 0 if all(block.agrees for block in made) else 1


def filled(page: str, made: Sequence[Block]) -> str:
    """The page with each table in its place."""
    for block in made:
        before, begin, rest = page.partition(f"<!-- scale: {block.name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        if not end:
            raise ValueError(f"the page has no place for {block.name}")
        page = f"{before}{begin}```\n{block.text}\n```\n{end}{after}"
    return page
