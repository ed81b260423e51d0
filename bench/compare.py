"""What changed between two results of one benchmark, and which changes noise does not explain.

Our figures and the goals are compared by the mean logarithm of their repetitions, as in Student's
t-test, with two changes. The variance of a few repetitions is uncertain, so it is combined with the
typical variance of all figures (the floor). And figures that are compared together share the
probability of a false alarm. Absolute figures have limits that are widened until they hold for
every figure of the peers: their code did not change, so they show what the machine did.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import attrs

from bench.report.results import Better, CommandError, Result
from bench.report.tables import align

Verdict = Literal["regression", "improvement", "within noise", "not comparable"]
VERDICTS: Sequence[Verdict] = ("regression", "improvement", "within noise", "not comparable")
MACHINE = ("processor", "cores", "file_system")
FLOOR_WEIGHT = 3
"""The floor counts like this many repetitions."""
MAX_REPETITIONS = 8
"""More do not narrow the limit: what affects a whole run does not average out."""
FALSE_ALARMS, FALSE_ALARM = 0.05, 0.005
"""The probability that the same code is flagged in any figure, and the most for one figure."""
EXACT = math.log1p(0.005)
"""The limit for figures without noise, for rounding or one more page in a file."""
MAX_LOG = 700.0
"""Just below the logarithm of the greatest float."""
NO_PEERS = "No peer is in both files: a slower machine would look like slower code."


@attrs.frozen
class Row:
    """A goal or a figure that is in both files, and what is said of its change."""

    what: str
    old: tuple[float, ...]
    new: tuple[float, ...]
    better: Better
    unit: str = ""
    lost: str = ""
    """Set if a goal was met in the old file and is not in the new one."""
    noise: tuple[float, float] | None = None
    """From how much better to how much worse is noise, as logarithms."""
    verdict: Verdict = "not comparable"

    @property
    def ratio(self) -> bool:
        return self.unit == "x"

    @property
    def positive(self) -> bool:
        return min(self.old + self.new) > 0

    @property
    def constant(self) -> bool:
        """Whether all repetitions of each run are equal."""
        return len(set(self.old)) == len(set(self.new)) == 1

    @property
    def exact(self) -> bool:
        """Whether there is no noise; of a single repetition, only a whole number has none."""
        repeated = min(len(self.old), len(self.new)) > 1
        return self.constant and (repeated or (self.old[0] % 1 == self.new[0] % 1 == 0))

    @property
    def worse(self) -> float:
        """How much worse the new value is, as a logarithm; infinite if one of them is zero."""
        if self.positive:
            moved = _mean_log(self.new) - _mean_log(self.old)
        else:
            difference = max(self.new) - max(self.old)
            moved = difference * math.inf if difference else 0.0
        return -moved if self.better == "higher" else moved

    @property
    def varies(self) -> bool:
        """Whether its repetitions show noise."""
        return self.positive and not self.constant

    @property
    def freedom(self) -> int:
        return len(self.old) + len(self.new) - 2

    @property
    def squares(self) -> float:
        """The sum of squared deviations from the mean of each run."""
        means = [(run, _mean_log(run)) for run in (self.old, self.new)]
        return sum((math.log(value) - mean) ** 2 for run, mean in means for value in run)

    def line(self) -> list[str]:
        """The row of a table."""
        sign = -1 if self.better == "higher" else 1
        noise = " .. ".join(_percent(e) for e in sorted(sign * e for e in self.noise or ())) or "-"
        mean = statistics.geometric_mean if self.positive else statistics.fmean
        means = [f"{mean(run):,.4g} {self.unit}" for run in (self.old, self.new)]
        verdict = f"{self.lost}, {self.verdict}" if self.lost else self.verdict
        return [self.what, *means, _percent(sign * self.worse), noise, verdict]


def _mean_log(run: Iterable[float]) -> float:
    return statistics.fmean(map(math.log, run))


def _percent(logarithm: float) -> str:
    if logarithm > MAX_LOG:
        return "-"
    share = math.expm1(logarithm)
    return f"{100 * share:+,.{1 if abs(share) < 0.1 else 0}f} %"


def student(probability: float, freedom: float) -> float:
    """The two-sided quantile of Student's t, within 1 % from 3 degrees of freedom.

    After Gaver and Kafadar, "A retrievable recipe for inverse t", 1984.
    """
    z = statistics.NormalDist().inv_cdf(1 - probability / 2)
    return math.sqrt(freedom * math.expm1(z * z * (freedom - 1.5) / (freedom - 1) ** 2))


@attrs.frozen
class Noise:
    """How far noise may move a figure."""

    floor: float
    """The typical standard deviation of repetitions; 0 if nothing varied."""
    probability: float
    """The probability of a false alarm."""
    drift: float = 0.0
    """How much worse the median peer is: what the machine did to everything."""
    wider: float = 1.0
    """How far beyond their limits single peers moved: what it did to some."""

    def limit(self, row: Row) -> float | None:
        """How far noise may move a figure in either direction; None if that is unknown."""
        if row.exact:
            return EXACT
        if not row.positive or (row.constant and not self.floor):
            return None
        freedom = FLOOR_WEIGHT + row.freedom
        variance = (FLOOR_WEIGHT * self.floor**2 + row.squares) / freedom
        shares = sum(1 / min(MAX_REPETITIONS, len(run)) for run in (row.old, row.new))
        return student(self.probability, freedom) * math.sqrt(variance * shares)

    def judge(self, row: Row) -> Row:
        limit = self.limit(row)
        if limit is None:
            return row
        low, high = -limit, limit
        if not row.exact:
            # The drift is tolerated, not subtracted: a figure that did not move is never flagged.
            low = min(0, self.drift) - self.wider * limit
            high = max(0, self.drift) + self.wider * limit
        verdict: Verdict = "within noise"
        if not low <= row.worse <= high:
            verdict = "regression" if row.worse > 0 else "improvement"
        return attrs.evolve(row, noise=(low, high), verdict=verdict)

    def of_machine(self, peers: Iterable[Row]) -> Noise:
        """Return limits that hold for every figure of the peers."""
        varying = [row for row in peers if row.varies]
        drift = statistics.median([row.worse for row in varying] or [0.0])
        beyond = [abs(row.worse - drift) / (self.limit(row) or math.inf) for row in varying]
        return attrs.evolve(self, drift=drift, wider=max([1.0, *beyond]))

    def remark(self) -> str:
        share = math.expm1(min(MAX_LOG, abs(self.drift)))
        drift = f"{share:.0%} {'worse' if self.drift > 0 else 'better'}"
        return (
            f"Although their code is the same, the median peer is {drift}, and peers moved up to "
            f"{self.wider:.1f} times as far as noise explains: ours may do the same."
        )


@attrs.frozen
class Comparison:
    """All rows, the worst first."""

    rows: tuple[Row, ...]
    remarks: tuple[str, ...]

    def count(self, verdict: Verdict) -> int:
        return sum(row.verdict == verdict for row in self.rows)

    def text(self, *, show_all: bool) -> str:
        """Return what changed, or with `show_all` also what did not, for a terminal."""
        shown = [r for r in self.rows if show_all or r.lost or r.verdict in VERDICTS[:2]]
        heading = ["mean of the repetitions", "old", "new", "change", "noise", "verdict"]
        table = [align([heading, *(row.line() for row in shown)])] if shown else []
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in VERDICTS)
        return "\n\n".join([*self.remarks, *table, counts])


def compare(old: Result, new: Result) -> Comparison:
    """Compare two results. Raises CommandError if they did different work."""
    if old.benchmark != new.benchmark:
        raise CommandError(f"The benchmarks differ: {old.benchmark} and {new.benchmark}.")
    if old.quick != new.quick:
        raise CommandError(f"Only the {'old' if old.quick else 'new'} result is of a quick run.")
    figures = _figures(old, new)
    rows, peers = _goals(old, new) + figures["ours"], figures["peers"]
    ratios, absolute = ([row for row in rows if row.ratio is kind] for kind in (True, False))
    every = [*ratios, *itertools.chain(*figures.values())]
    deviations = [math.sqrt(row.squares / row.freedom) for row in every if row.varies]
    floor = statistics.median(deviations or [0.0])
    judged = [Noise(floor, _probability(ratios)).judge(row) for row in ratios]
    apart, machine = _differences(old, new), Noise(floor, _probability(absolute)).of_machine(peers)
    judged += absolute if apart else map(machine.judge, absolute)
    judged.sort(key=lambda row: (VERDICTS.index(row.verdict), not row.lost, -row.worse))
    remarks = [*_origins(old, new), *apart]
    if not apart and absolute:
        remarks.append(machine.remark() if peers else NO_PEERS)
    return Comparison(tuple(judged), tuple(remarks))


def _probability(rows: Sequence[Row]) -> float:
    """The probability of a false alarm for each of these figures."""
    return min(FALSE_ALARM, FALSE_ALARMS / max(1, len(rows)))


def _figures(old: Result, new: Result) -> dict[str, list[Row]]:
    """Return our figures, those of the peers, and others, which are not ours or not judged."""
    columns = {(t.cell, c.figure): (c.heading, c.better) for t in new.tables for c in t.columns}
    before = {(f.cell, f.who, f.figure): f.values for f in old.figures}
    rows: dict[str, list[Row]] = {"ours": [], "peers": [], "others": []}
    for each in new.figures:
        heading, better = columns.get((each.cell, each.figure), (each.figure, "neither"))
        foreign = new.foreign is None or each.who in new.foreign
        kind = "ours" if each.who.startswith("ours") else "peers" if foreign else "others"
        if values := before.get((each.cell, each.who, each.figure)):
            row = Row(f"{each.cell}: {each.who}, {heading}", values, each.values, better)
            rows["others" if better == "neither" else kind].append(row)
    return rows


def _goals(old: Result, new: Result) -> list[Row]:
    before = {goal.goal: goal for goal in old.goals}
    rows = []
    for goal in new.goals:
        earlier, lost = before.get(goal.goal), ""
        if goal.measured and earlier and earlier.measured:
            if (earlier.outcome, goal.outcome) == ("pass", "FAIL"):
                medians = f"{earlier.measured.median:.4g}, then {goal.measured.median:.4g}"
                lost = f"pass -> FAIL (medians {medians}; target {goal.target})"
            values = earlier.measured.values, goal.measured.values
            rows.append(Row(goal.goal, *values, goal.better, goal.unit, lost))
    return rows


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


def _origins(old: Result, new: Result) -> list[str]:
    """Say what is compared, and what is in only one of the files."""
    origins = [f"{each.machine.get('commit')}, {each.machine.get('when')}" for each in (old, new)]
    remarks = [f"{old.benchmark}\nold: {origins[0]}\nnew: {origins[1]}"]
    for name, here, there in (("old", old, new), ("new", new, old)):
        if only := [each for each in _names(here) if each not in _names(there)]:
            remarks.append(f"Only in {name}: {'; '.join(only)}.")
    return remarks


def _names(result: Result) -> list[str]:
    """The goals, contenders and program versions of a result."""
    goals = [goal.goal for goal in result.goals if goal.measured]
    contenders = dict.fromkeys(f"{each.cell}: {each.who}" for each in result.figures)
    versions = [
        f"{who} with {name} {version}"
        for who, each in result.versions.items()
        for name, version in each.items()
        if name != "url"  # the port of the loopback model is different in each run
    ]
    return [*goals, *contenders, *versions]
