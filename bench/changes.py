"""What moved between two results of the same benchmark, and what of it noise does not explain.

First what counts most: the goals that are ratios. Both sides of a ratio were measured in the same
repetition, so a slow machine cancels out, and ratios may be compared across machines. Then what is
absolute: the other goals, and our figures with a direction. They depend on the machine and on how
much was done, so they are judged only where those are the same, and with limits widened until they
hold for every figure of the peers. The peers are not judged themselves: they are what tells the
machine's moods from ours. What noise is, and how far it reaches, is in `noise`.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import attrs

from bench import noise
from bench.board import Ref
from bench.noise import Pair
from bench.report import Better
from bench.result_files import BadInput, Heading, Judged, Result, Shown

Verdict = Literal["regression", "improvement", "within noise", "not comparable"]
VERDICTS: Sequence[Verdict] = ("regression", "improvement", "within noise", "not comparable")
OURS = "ours"
MACHINE = ("processor", "cores", "file_system")
SOFTWARE = ("system", "python")
GREATEST = 700.0
"""The logarithm of what a float can hold, nearly."""
ALONE = "No peer is in both files: a slower machine would look like slower code."


@attrs.frozen
class Item:
    """One thing that is in both files."""

    what: str
    pair: Pair
    better: Better
    unit: str
    lost: str | None = None
    """How a goal was met and is not any more."""

    @property
    def ratio(self) -> bool:
        return self.unit == "x"

    @property
    def worse(self) -> float:
        """How much worse it is, on the scale of the pair."""
        return -self.pair.moved if self.better == "higher" else self.pair.moved


@attrs.frozen
class Limits:
    """How far things may get worse or better by noise."""

    floor: float
    ratio: float
    absolute: float
    """The chances of a false alarm."""
    drift: float = 0.0
    """How much worse the peers are, in the middle: what the machine did to everybody."""
    wider: float = 1.0
    """How far beyond their own limits the peers are from there: what it did to somebody."""

    def of(self, item: Item) -> tuple[float, float] | None:
        """From how much better to how much worse; None where nothing tells."""
        limit = noise.limit(item.pair, self.floor, self.ratio if item.ratio else self.absolute)
        if limit is None:
            return None
        if item.ratio or item.pair.exact:
            return -limit, limit
        # The drift is allowed, not taken off: a figure that did not move is never flagged.
        return min(0, self.drift) - self.wider * limit, max(0, self.drift) + self.wider * limit

    def like(self, peers: Collection[Item]) -> Limits:
        """The same, holding for every figure of the peers."""
        telling = [item for item in peers if not item.pair.steady]
        directed = [item for item in telling if item.better != "neither"]
        drift = statistics.median(item.worse for item in directed) if directed else 0.0
        beyond = [1.0]
        for item in directed or telling:
            limit = noise.limit(item.pair, self.floor, self.absolute)
            beyond.append(abs(item.worse - drift) / limit if limit else 1.0)
        return attrs.evolve(self, drift=drift, wider=max(beyond))


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
    lost: str | None
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


def compare(old: Result, new: Result) -> Comparison:
    """What moved from the old result to the new one."""
    if old.benchmark != new.benchmark:
        raise BadInput(f"These are different benchmarks: {old.benchmark} and {new.benchmark}.")
    if old.quick != new.quick:
        quick = "old" if old.quick else "new"
        raise BadInput(f"Only the {quick} result is of a quick run: they did different work.")
    before, after = _figures(old), _figures(new)
    both = {ref: Pair(before[ref], after[ref]) for ref in before if ref in after}
    ours, peers = _sides(_items(both, new.tables or old.tables), new.foreign)
    items = _goals(old, new) + [item for item in ours if item.better != "neither"]
    undirected = len(ours) - sum(item.better != "neither" for item in ours)
    limits = _limits(items, both.values()).like(peers)
    apart = _apart(old, new)
    rows = [_row(item, limits.of(item), apart=bool(apart)) for item in items]
    remarks = [*apart, *_software(old, new), *_undirected(undirected, old, new)]
    if not apart and not all(item.ratio for item in items):
        remarks += _about_peers(limits) if peers else [ALONE]
    if not limits.floor:
        remarks.append("No figure varied in its repetitions, so the noise of most is unknown.")
    remarks += _sight(rows)
    return Comparison(
        tuple(sorted(rows, key=_worst_first)), tuple(remarks), _only(old, new), _only(new, old)
    )


def _figures(result: Result) -> dict[Ref, tuple[float, ...]]:
    return {Ref(each.cell, each.who, each.figure): each.values for each in result.figures}


def _measured(result: Result) -> dict[str, tuple[Judged, tuple[float, ...]]]:
    return {each.goal: (each, each.measured.values) for each in result.goals if each.measured}


def _items(both: Mapping[Ref, Pair], tables: Sequence[Shown]) -> dict[Ref, Item]:
    """Each figure with what its table says: what is better, and the unit in the heading."""
    columns = {(table.cell, each.figure): each for table in tables for each in table.columns}
    items = {}
    for ref, pair in both.items():
        column = columns.get((ref.cell, ref.figure), Heading(ref.figure, ref.figure, "neither"))
        items[ref] = Item(f"{ref.cell}: {ref.who}, {column.heading}", pair, column.better, "")
    return items


def _sides(
    items: Mapping[Ref, Item], foreign: Collection[str] | None
) -> tuple[list[Item], list[Item]]:
    """Our figures and the peers'; a benchmark in which nobody is called ours has no peers."""
    ours = [item for ref, item in items.items() if ref.who.startswith(OURS)]
    if not ours:
        return list(items.values()), []
    others = {ref: item for ref, item in items.items() if not ref.who.startswith(OURS)}
    peers = others if foreign is None else {r: i for r, i in others.items() if r.who in foreign}
    return ours, list(peers.values())


def _goals(old: Result, new: Result) -> list[Item]:
    before, after = _measured(old), _measured(new)
    return [
        Item(
            text,
            Pair(before[text][1], values),
            goal.better,
            goal.unit,
            _lost(before[text][0], goal),
        )
        for text, (goal, values) in after.items()
        if text in before
    ]


def _lost(old: Judged, new: Judged) -> str | None:
    """The median decides on a goal, where the mean tells of changes: so medians are told here."""
    if (old.outcome, new.outcome) != ("pass", "FAIL") or not (old.measured and new.measured):
        return None
    medians = [f"{statistics.median(run.values):.4g}" for run in (old.measured, new.measured)]
    return f"pass -> FAIL (medians {medians[0]}, then {medians[1]}; target {new.target})"


def _limits(items: Sequence[Item], figures: Collection[Pair]) -> Limits:
    ratios = [item.pair for item in items if item.ratio]
    floor = noise.floor([*ratios, *figures])
    return Limits(floor, noise.chance(len(ratios)), noise.chance(len(items) - len(ratios)))


def _row(item: Item, limits: tuple[float, float] | None, *, apart: bool) -> Row:
    pair = item.pair
    verdict: Verdict = "within noise"
    if limits is None or (apart and not item.ratio):
        verdict = "not comparable"
    elif not limits[0] <= item.worse <= limits[1]:
        verdict = "regression" if item.worse > 0 else "improvement"
    return Row(
        item.what, item.unit, item.ratio, item.better, pair.typical(pair.old),
        pair.typical(pair.new), _share(pair, pair.moved), _range(item, limits), verdict,
        item.lost, item.worse,
    )  # fmt: skip


def _share(pair: Pair, moved: float) -> float | None:
    """A distance on the scale of the pair, as a share of the old value."""
    if pair.by_factors:
        return math.expm1(moved) if moved < GREATEST else None
    old = pair.typical(pair.old)
    share = moved * pair.greatest / old if old > 0 else math.inf
    return share if math.isfinite(share) else None


def _range(item: Item, limits: tuple[float, float] | None) -> tuple[float, float] | None:
    if limits is None:
        return None
    low, high = limits if item.better == "lower" else (-limits[1], -limits[0])
    least, most = _share(item.pair, low), _share(item.pair, high)
    return None if least is None or most is None else (least, most)


def _worst_first(row: Row) -> tuple[int, bool, float]:
    return VERDICTS.index(row.verdict), row.lost is None, -row.worse


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


def _about_peers(limits: Limits) -> list[str]:
    """What of the machine the peers have felt, where that is worth a sentence."""
    felt = []
    if abs(limits.drift) > noise.EXACT:
        how = "worse" if limits.drift > 0 else "better"
        felt.append(f"are {math.expm1(min(GREATEST, abs(limits.drift))):.0%} {how} in the middle")
    if limits.wider > 1:
        felt.append(f"moved up to {limits.wider:.1f} times as far as noise explains")
    if not felt:
        return []
    return [f"The peers ran the same code and {' and '.join(felt)}: figures of ours may do that."]


def _sight(rows: Sequence[Row]) -> list[str]:
    """How much these runs can see at all."""
    reach = [row.noise[1] for row in rows if row.ratio and row.noise is not None]
    if not reach:
        return []
    return [f"In the middle, a ratio has to rise by {statistics.median(reach):.0%} to be flagged."]


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
