"""Two results of the same benchmark: what got worse or better beyond the noise both have measured.

First what counts most: the goals that are ratios. Both sides of a ratio were measured in the same
repetition, so a slow machine cancels out, and ratios may be compared across machines. Then what is
absolute: the other goals, and our figures with a direction. They depend on the machine and on how
much was done, so they are judged only where those are the same, and with limits widened until they
hold for the peers' figures. The peers are not judged themselves: they are what tells the machine's
moods from ours. What noise is, and how far it reaches, is in `noise`.

Exit code: 0 without regressions, 1 with, 2 where the files cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import attrs
import msgspec

from bench import noise
from bench.board import Outcome, Ref
from bench.noise import Pair
from bench.report import Better, aligned

Verdict = Literal["regression", "improvement", "within noise", "not comparable"]
OURS = "ours"
MACHINE = ("processor", "cores", "file_system")
SOFTWARE = ("system", "python")
HELP = """\
Compares two files of results of the same benchmark, both quick or both full. Flags what moved
further than the repetitions of the two runs scatter. Ratios are compared on any machines, absolute
figures only on the same one. Exit code: 0 without regressions, 1 with, 2 for files that cannot be
compared.
"""


class BadInput(Exception):
    """The files cannot be compared; one sentence says why."""


@attrs.frozen
class Repetitions:
    """A goal's measured values."""

    values: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


@attrs.frozen
class Judged:
    """A goal in a file."""

    goal: str
    target: Annotated[str, msgspec.Meta(pattern="^[<>]= ")]
    outcome: Outcome
    measured: Repetitions | None

    @property
    def better(self) -> Better:
        return "higher" if self.target.startswith(">=") else "lower"

    @property
    def unit(self) -> str:
        """What follows the number of the target: older files have it nowhere else."""
        return " ".join(self.target.split()[2:])


@attrs.frozen
class Figure:
    """A figure in a file."""

    cell: str
    who: str
    figure: str
    values: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]


@attrs.frozen
class Heading:
    """A column of a table in a file."""

    figure: str
    heading: str
    better: Better


@attrs.frozen
class Shown:
    """A table in a file."""

    cell: str
    columns: tuple[Heading, ...]


@attrs.frozen
class Result:
    """What is compared of a file that `report.document` made."""

    benchmark: str
    quick: bool
    machine: dict[str, object]
    plan: dict[str, object]
    goals: tuple[Judged, ...]
    figures: tuple[Figure, ...]
    versions: dict[str, dict[str, object]] = attrs.Factory(dict)
    tables: tuple[Shown, ...] = ()
    """Older files have none."""


@attrs.frozen
class Item:
    """One thing that is in both files."""

    what: str
    pair: Pair
    better: Better
    unit: str
    lost: bool = False
    """A goal that was met and is not any more."""

    @property
    def ratio(self) -> bool:
        return self.unit == "x"


@attrs.frozen
class Limits:
    """How far things may move by noise."""

    floor: float
    ratio: float
    absolute: float
    """The chances of a false alarm."""
    wider: float

    def of(self, item: Item) -> float | None:
        if item.ratio:
            return noise.limit(item.pair, self.floor, self.ratio)
        limit = noise.limit(item.pair, self.floor, self.absolute)
        return limit if limit is None or item.pair.exact else limit * self.wider


@attrs.frozen
class Row:
    """One thing compared; `change` and `noise` are shares of the old value."""

    what: str
    unit: str
    ratio: bool
    better: Better
    old: float
    new: float
    change: float | None
    noise: tuple[float, float] | None
    verdict: Verdict
    lost: bool
    worse: float
    """How much worse, on the scale on which it was judged."""


@attrs.frozen
class Comparison:
    """Everything found, worst first."""

    rows: tuple[Row, ...]
    remarks: tuple[str, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]

    def count(self) -> Counter[Verdict]:
        return Counter(row.verdict for row in self.rows)


def main(arguments: Sequence[str]) -> int:
    """Compare two files, print what was found; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=HELP)
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


def read(path: Path) -> Result:
    """A file of results."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}.") from error
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} is not a result of a benchmark: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not JSON: {error}.") from error


def compare(old: Result, new: Result) -> Comparison:
    """What moved from the old result to the new one."""
    if old.benchmark != new.benchmark:
        raise BadInput(f"These are different benchmarks: {old.benchmark} and {new.benchmark}.")
    if old.quick != new.quick:
        quick = "old" if old.quick else "new"
        raise BadInput(f"Only the {quick} result is of a quick run: they did different work.")
    before, after = _figures(old), _figures(new)
    both = {ref: Pair(before[ref], after[ref]) for ref in before if ref in after}
    ours, peers = _sides(both)
    figures = _directed(ours, new.tables or old.tables)
    items = [*_goals(old, new), *figures]
    limits = _limits(items, both.values(), peers.values())
    apart = _apart(old, new)
    rows = [_row(item, limits.of(item), apart=bool(apart)) for item in items]
    remarks = [*apart, *_software(old, new), *_undirected(len(ours) - len(figures), old, new)]
    if not apart:
        remarks += _about_peers(peers, limits.wider)
    if not limits.floor:
        remarks.append("No figure varied in its repetitions, so the noise of most is unknown.")
    return Comparison(
        tuple(sorted(rows, key=_worst_first)), tuple(remarks), _only(old, new), _only(new, old)
    )


def _figures(result: Result) -> dict[Ref, tuple[float, ...]]:
    return {Ref(each.cell, each.who, each.figure): each.values for each in result.figures}


def _measured(result: Result) -> dict[str, tuple[Judged, tuple[float, ...]]]:
    return {each.goal: (each, each.measured.values) for each in result.goals if each.measured}


def _sides(both: Mapping[Ref, Pair]) -> tuple[dict[Ref, Pair], dict[Ref, Pair]]:
    """Our figures and the peers'; a benchmark in which nobody is called ours has no peers."""
    ours = {ref: pair for ref, pair in both.items() if ref.who.startswith(OURS)}
    if not ours:
        return dict(both), {}
    return ours, {ref: pair for ref, pair in both.items() if ref not in ours}


def _goals(old: Result, new: Result) -> list[Item]:
    before, after = _measured(old), _measured(new)
    return [
        Item(
            text,
            Pair(before[text][1], values),
            goal.better,
            goal.unit,
            lost=(before[text][0].outcome, goal.outcome) == ("pass", "FAIL"),
        )
        for text, (goal, values) in after.items()
        if text in before
    ]


def _directed(ours: Mapping[Ref, Pair], tables: Sequence[Shown]) -> list[Item]:
    """The figures of which a table says what is better; their unit is in the heading."""
    columns = {(table.cell, each.figure): each for table in tables for each in table.columns}
    items = []
    for ref, pair in ours.items():
        column = columns.get((ref.cell, ref.figure))
        if column is not None and column.better != "neither":
            items.append(Item(f"{ref.cell}: {ref.who}, {column.heading}", pair, column.better, ""))
    return items


def _limits(items: Sequence[Item], figures: Collection[Pair], peers: Collection[Pair]) -> Limits:
    ratios = [item.pair for item in items if item.ratio]
    floor = noise.floor([*ratios, *figures])
    absolute = noise.chance(len(items) - len(ratios))
    wider = noise.widening(peers, floor, absolute)
    return Limits(floor, noise.chance(len(ratios)), absolute, wider)


def _row(item: Item, limit: float | None, *, apart: bool) -> Row:
    pair = item.pair
    worse = -pair.moved if item.better == "higher" else pair.moved
    old, new = pair.typical(pair.old), pair.typical(pair.new)
    verdict: Verdict = "within noise"
    if limit is None or (apart and not item.ratio):
        verdict = "not comparable"
    elif abs(worse) > limit:
        verdict = "regression" if worse > 0 else "improvement"
    return Row(
        item.what, item.unit, item.ratio, item.better, old, new,
        change=_share(pair, pair.moved, old), noise=_range(pair, limit, old),
        verdict=verdict, lost=item.lost, worse=worse,
    )  # fmt: skip


def _share(pair: Pair, moved: float, old: float) -> float | None:
    """A distance on the scale of the pair, as a share of the old value."""
    if pair.by_factors:
        return math.expm1(moved) if moved < 700 else None
    share = moved * pair.greatest / old if old > 0 else math.inf
    return share if math.isfinite(share) else None


def _range(pair: Pair, limit: float | None, old: float) -> tuple[float, float] | None:
    if limit is None:
        return None
    low, high = _share(pair, -limit, old), _share(pair, limit, old)
    return None if low is None or high is None else (low, high)


def _worst_first(row: Row) -> tuple[int, bool, float]:
    order: Sequence[Verdict] = ("regression", "improvement", "within noise", "not comparable")
    return order.index(row.verdict), not row.lost, -row.worse


def _apart(old: Result, new: Result) -> list[str]:
    """Why absolute figures cannot be compared; nothing where they can."""
    reasons = [
        f"The {name.replace('_', ' ')} differs ({old.machine.get(name)}, then "
        f"{new.machine.get(name)}): only ratios are judged."
        for name in MACHINE
        if old.machine.get(name) != new.machine.get(name)
    ]
    # How often something was repeated makes a figure surer, not another one.
    names = [name for name in {**old.plan, **new.plan} if "repetitions" not in name]
    if differ := [name for name in names if old.plan.get(name) != new.plan.get(name)]:
        reasons.append(f"The plans differ ({', '.join(differ)}): only ratios are judged.")
    return reasons


def _software(old: Result, new: Result) -> list[str]:
    """What else may explain a change."""
    before, after = _programs(old), _programs(new)
    return [
        f"{name} was {before[name]}, is {after[name]}."
        for name in before
        if name in after and before[name] != after[name]
    ]


def _programs(result: Result) -> dict[str, object]:
    about = {name: result.machine[name] for name in SOFTWARE if name in result.machine}
    for who, versions in result.versions.items():
        # A model's address is another one in each run.
        about |= {f"{who}: {name}": each for name, each in versions.items() if name != "url"}
    return about


def _undirected(count: int, old: Result, new: Result) -> list[str]:
    if not count:
        return []
    if not (old.tables or new.tables):
        return ["Neither file says which way its figures are better: only goals are compared."]
    return [f"{count} of our figures have no better direction and are not compared."]


def _about_peers(peers: Collection[Ref], wider: float) -> list[str]:
    if not peers:
        return ["No peer is in both files: a slower machine would look like slower code."]
    if wider == 1:
        return []
    return [
        f"Limits of absolute figures are {wider:.2f} times as wide as their noise: "
        "so much did the peers move, whose code is the same."
    ]


def _only(here: Result, there: Result) -> tuple[str, ...]:
    """What is not in the other file; of somebody who is not there at all, only the name."""
    others = _figures(there)
    known = {(ref.cell, ref.who) for ref in others}
    names = [goal for goal in _measured(here) if goal not in _measured(there)]
    for ref in _figures(here):
        if ref not in others:
            name = f"{ref.cell}: {ref.who}"
            names.append(f"{name}, {ref.figure}" if (ref.cell, ref.who) in known else name)
    return tuple(dict.fromkeys(names))


def text(old: Result, new: Result, found: Comparison, *, all_: bool) -> str:
    """What was found, for a terminal."""
    parts = [f"{old.benchmark}\nold: {_origin(old)}\nnew: {_origin(new)}", *found.remarks]
    rows = [
        row
        for row in found.rows
        if all_ or row.lost or row.verdict in {"regression", "improvement"}
    ]
    if rows:
        heading = ["mean of the repetitions", "old", "new", "change", "noise", ""]
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
    if lost := sum(row.lost and row.verdict != "regression" for row in found.rows):
        words.append(f"{_plural(lost, 'goal')} lost without a regression")
    return ", ".join(words)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _origin(result: Result) -> str:
    return f"{result.machine.get('commit', 'unknown')}, {result.machine.get('when', 'unknown')}"


def _line(row: Row) -> list[str]:
    noise = "-" if row.noise is None else f"{_percent(row.noise[0])} .. {_percent(row.noise[1])}"
    change = "-" if row.change is None else _percent(row.change)
    verdict = f"pass -> FAIL, {row.verdict}" if row.lost else row.verdict
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
            "counts": found.count(),
            "summary": summary(found),
            **attrs.asdict(found),
        },
        indent=1,
    )
