"""What changed between two results of one benchmark, and which changes noise does not explain.

Goals that are ratios come first. Both sides of a ratio are measured in the same repetition, so a
slow machine cancels out, and ratios are compared across machines. Absolute figures are judged only
if machine and plan are the same, and with limits that are widened until they hold for every figure
of the peers. Peers are not judged: they tell a change of the machine from a change of our code.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import attrs

from bench.compare import noise
from bench.compare.noise import Pair
from bench.errors import CommandError
from bench.harness.measurements import Ref
from bench.report.results import Better, Column, GoalResult, Result, Table

Verdict = Literal["regression", "improvement", "within noise", "not comparable"]
VERDICTS: Sequence[Verdict] = ("regression", "improvement", "within noise", "not comparable")
OURS = "ours"
MACHINE = ("processor", "cores", "file_system")
SOFTWARE = ("system", "python")
MAX_LOG = 700.0
"""Just below the logarithm of the greatest float."""
NO_PEERS = "No peer is in both files: a slower machine would look like slower code."
NO_NOISE = "No figure varied between repetitions, so the noise of most figures is unknown."


@attrs.frozen
class Row:
    """A goal or a figure that is in both files, and what is said of its change."""

    what: str
    pair: Pair
    better: Better
    unit: str = ""
    lost: str | None = None
    """Set if a goal was met in the old file and is not in the new one."""
    limits: tuple[float, float] | None = None
    """From how much better to how much worse is noise, on the scale of the pair."""
    verdict: Verdict = "not comparable"

    @property
    def ratio(self) -> bool:
        return self.unit == "x"

    @property
    def worse(self) -> float:
        """How much worse the new value is, on the scale of the pair."""
        return -self.pair.moved if self.better == "higher" else self.pair.moved

    @property
    def change(self) -> float | None:
        """The change as a share of the old value."""
        return self._share(self.pair.moved)

    @property
    def noise(self) -> tuple[float, float] | None:
        """The changes that noise explains, as shares of the old value."""
        if self.limits is None:
            return None
        low, high = self.limits
        low, high = (low, high) if self.better == "lower" else (-high, -low)
        least, most = self._share(low), self._share(high)
        return None if least is None or most is None else (least, most)

    def _share(self, moved: float) -> float | None:
        if self.pair.logarithmic:
            return math.expm1(moved) if moved < MAX_LOG else None
        old = self.pair.mean(self.pair.old)
        share = moved * self.pair.greatest / old if old > 0 else math.inf
        return share if math.isfinite(share) else None

    def judged(self, limits: tuple[float, float] | None, *, comparable: bool) -> Row:
        verdict: Verdict = "within noise"
        if limits is None or not comparable:
            verdict = "not comparable"
        elif not limits[0] <= self.worse <= limits[1]:
            verdict = "regression" if self.worse > 0 else "improvement"
        return attrs.evolve(self, limits=limits, verdict=verdict)


@attrs.frozen
class Limits:
    """How far noise may move a figure."""

    floor: float
    ratio_probability: float
    absolute_probability: float
    drift: float = 0.0
    """How much worse the median peer is: what the machine did to everything."""
    wider: float = 1.0
    """How far beyond their own limits single peers moved: what it did to some."""

    def of(self, row: Row) -> tuple[float, float] | None:
        """From how much better to how much worse is noise; None if that is unknown."""
        probability = self.ratio_probability if row.ratio else self.absolute_probability
        limit = noise.limit(row.pair, self.floor, probability)
        if limit is None:
            return None
        if row.ratio or row.pair.exact:
            return -limit, limit
        # The drift is tolerated, not subtracted: a figure that did not move is never flagged.
        return min(0, self.drift) - self.wider * limit, max(0, self.drift) + self.wider * limit

    def widened(self, peers: Collection[Row]) -> Limits:
        """Return limits that hold for every figure of the peers."""
        varying = [row for row in peers if not row.pair.constant]
        directed = [row for row in varying if row.better != "neither"]
        drift = statistics.median(row.worse for row in directed) if directed else 0.0
        beyond = [1.0]
        for row in directed or varying:
            limit = noise.limit(row.pair, self.floor, self.absolute_probability)
            beyond.append(abs(row.worse - drift) / limit if limit else 1.0)
        return attrs.evolve(self, drift=drift, wider=max(beyond))

    def remarks(self) -> list[str]:
        """Say what the peers show of the machine."""
        seen = []
        if abs(self.drift) > noise.EXACT:
            how = "worse" if self.drift > 0 else "better"
            seen.append(f"the median peer is {math.expm1(min(MAX_LOG, abs(self.drift))):.0%} {how}")
        if self.wider > 1:
            seen.append(f"peers moved up to {self.wider:.1f} times as far as noise explains")
        text = f"Although their code is the same, {' and '.join(seen)}: ours may do the same."
        return [text] if seen else []


@attrs.frozen
class Comparison:
    """All rows, the worst first."""

    rows: tuple[Row, ...]
    remarks: tuple[str, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]

    def count(self) -> Counter[Verdict]:
        return Counter(row.verdict for row in self.rows)


def compare(old: Result, new: Result) -> Comparison:
    """Compare two results. Raises CommandError if they did different work."""
    if old.benchmark != new.benchmark:
        raise CommandError(f"The benchmarks differ: {old.benchmark} and {new.benchmark}.")
    if old.quick != new.quick:
        raise CommandError(f"Only the {'old' if old.quick else 'new'} result is of a quick run.")
    before, after = _figures(old), _figures(new)
    both = {ref: Pair(before[ref], after[ref]) for ref in before if ref in after}
    ours, peers = _rows(both, new.tables, new.foreign)
    directed = [row for row in ours if row.better != "neither"]
    rows = _goals(old, new) + directed
    ratios = [row.pair for row in rows if row.ratio]
    limits = Limits(
        noise.floor([*ratios, *both.values()]),
        noise.shared_probability(len(ratios)),
        noise.shared_probability(len(rows) - len(ratios)),
    ).widened(peers)
    apart = _differences(old, new)
    rows = [row.judged(limits.of(row), comparable=row.ratio or not apart) for row in rows]
    rows.sort(key=lambda row: (VERDICTS.index(row.verdict), row.lost is None, -row.worse))
    remarks = [*apart, *_software(old, new)]
    if len(ours) > len(directed):
        remarks.append(f"{len(ours) - len(directed)} figures are not compared: no direction.")
    if not apart and len(ratios) < len(rows):
        remarks += limits.remarks() if peers else [NO_PEERS]
    remarks += [] if limits.floor else [NO_NOISE]
    if reach := [row.noise[1] for row in rows if row.ratio and row.noise]:
        remarks.append(
            f"The median ratio is flagged if it rises by {statistics.median(reach):.0%}."
        )
    return Comparison(tuple(rows), tuple(remarks), _only(old, new), _only(new, old))


def _figures(result: Result) -> dict[Ref, tuple[float, ...]]:
    return {Ref(each.cell, each.who, each.figure): each.values for each in result.figures}


def _rows(
    both: Mapping[Ref, Pair], tables: Sequence[Table], foreign: Collection[str] | None
) -> tuple[list[Row], list[Row]]:
    """Return our figures and those of the peers, with headings and directions of the tables."""
    columns = {(table.cell, each.figure): each for table in tables for each in table.columns}
    ours, peers = [], []
    for ref, pair in both.items():
        unknown = Column(ref.figure, ref.figure, better="neither")
        column = columns.get((ref.cell, ref.figure), unknown)
        row = Row(f"{ref.cell}: {ref.who}, {column.heading}", pair, column.better)
        if ref.who.startswith(OURS):
            ours.append(row)
        elif foreign is None or ref.who in foreign:
            peers.append(row)
    return ours, peers


def _goals(old: Result, new: Result) -> list[Row]:
    before = {goal.goal: goal for goal in old.goals}
    rows = []
    for goal in new.goals:
        earlier = before.get(goal.goal)
        if goal.measured and earlier and earlier.measured:
            pair = Pair(earlier.measured.values, goal.measured.values)
            rows.append(Row(goal.goal, pair, goal.better, goal.unit, _lost(earlier, goal)))
    return rows


def _lost(old: GoalResult, new: GoalResult) -> str | None:
    if (old.outcome, new.outcome) != ("pass", "FAIL") or not (old.measured and new.measured):
        return None
    medians = f"medians {old.measured.median:.4g}, then {new.measured.median:.4g}"
    return f"pass -> FAIL ({medians}; target {new.target})"


def _differences(old: Result, new: Result) -> list[str]:
    """Return why absolute figures cannot be compared; nothing if they can."""
    reasons = [
        f"The {name.replace('_', ' ')} differs ({old.machine.get(name)}, then "
        f"{new.machine.get(name)}): only ratios are judged."
        for name in MACHINE
        if old.machine.get(name) != new.machine.get(name)
    ]
    # More repetitions make a figure more precise, not different.
    names = [name for name in {**old.plan, **new.plan} if "repetitions" not in name]
    if changed := [name for name in names if old.plan.get(name) != new.plan.get(name)]:
        reasons.append(f"The plans differ ({', '.join(changed)}): only ratios are judged.")
    return reasons


def _software(old: Result, new: Result) -> list[str]:
    before, after = _programs(old), _programs(new)
    changed = [name for name in before if name in after and before[name] != after[name]]
    return [f"{name} was {before[name]}, is {after[name]}." for name in changed]


def _programs(result: Result) -> dict[str, object]:
    programs = {name: result.machine.get(name) for name in SOFTWARE}
    for who, versions in result.versions.items():
        # The URL of the loopback model is different in each run.
        programs |= {f"{who}: {name}": each for name, each in versions.items() if name != "url"}
    return programs


def _only(here: Result, there: Result) -> tuple[str, ...]:
    """List what the other file lacks; of a contender that is missing entirely, only the name."""
    others = _figures(there)
    known = {(ref.cell, ref.who) for ref in others}
    goals = {goal.goal for goal in there.goals if goal.measured}
    names = [goal.goal for goal in here.goals if goal.measured and goal.goal not in goals]
    for ref in _figures(here):
        if ref not in others:
            name = f"{ref.cell}: {ref.who}"
            names.append(f"{name}, {ref.figure}" if (ref.cell, ref.who) in known else name)
    return tuple(dict.fromkeys(names))
