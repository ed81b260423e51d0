"""How much a figure may move between two runs of the same code: the noise that the runs measured.

Times and rates vary by factors, so everything is done with logarithms. What moved is the mean of a
figure's repetitions; that is judged like in Student's test, with two changes:

- A few repetitions may agree by luck, so each figure borrows from the others: its variance is mixed
  with the typical one of all figures of both runs (the floor), which counts like three repetitions
  more. On its own, three repetitions with 10 % noise would miss every third slowdown to half speed.
- Many figures are compared at once, so the chance of a false alarm is shared by all of them.

A mean, not a median: that of five repetitions finds half as much again. A spike moves the mean, but
widens the spread more, so it raises no alarm. The simulations are in tests/unit/test_bench_compare.

What repetitions cannot show is what differs between runs and not within one: a neighbour on the
machine, a fuller disk. Ratios are taken within a repetition and so feel little of it. Absolute ones
do, and there the peers tell it, whose code is the same in both runs: see `changes.Limits`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import attrs

BORROWED = 3
"""So many repetitions more does the floor count."""
SURE = 8
"""More repetitions make a mean no surer: what a whole run shares does not average out."""
ALARMS = 0.05
"""In how many comparisons of the same code anything may be flagged, of a kind of figures."""
ALARM = 0.005
"""The same for a single figure."""
EXACT = math.log1p(0.005)
"""What may change where there is no noise: rounding, a page more in a file."""


@attrs.frozen
class Pair:
    """The repetitions of one figure in two runs; at least one in each."""

    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def greatest(self) -> float:
        return max(map(abs, self.old + self.new))

    @property
    def by_factors(self) -> bool:
        """Zeros and less have no logarithm: those are compared as shares of the greatest."""
        return min(self.old + self.new) > 0

    @property
    def steady(self) -> bool:
        """The same in each repetition of a run."""
        return len(set(self.old)) == len(set(self.new)) == 1

    @property
    def exact(self) -> bool:
        """Steady by nature, as far as repetitions tell; of one, only a whole number is a count."""
        repeated = min(len(self.old), len(self.new)) > 1
        return self.steady and (repeated or (self.old[0] % 1 == self.new[0] % 1 == 0))

    @property
    def freedom(self) -> int:
        return len(self.old) + len(self.new) - 2

    @property
    def moved(self) -> float:
        """How much greater the new mean is, as a logarithm or a share."""
        return statistics.fmean(self._scaled(self.new)) - statistics.fmean(self._scaled(self.old))

    @property
    def squares(self) -> float:
        """The squared distances from the mean of each run."""
        return sum(_squares(self._scaled(run)) for run in (self.old, self.new))

    def typical(self, run: tuple[float, ...]) -> float:
        """The mean that is compared, in the figure's own unit."""
        if len(set(run)) == 1:
            return run[0]
        mean = statistics.fmean(self._scaled(run))
        return math.exp(mean) if self.by_factors else mean * self.greatest

    def _scaled(self, run: tuple[float, ...]) -> list[float]:
        if self.by_factors:
            return [math.log(value) for value in run]
        return [value / (self.greatest or 1.0) for value in run]


def _squares(values: list[float]) -> float:
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)


def floor(pairs: Iterable[Pair]) -> float:
    """The typical spread of repetitions; 0 where nothing varied, or nothing was repeated."""
    spreads = [
        math.sqrt(pair.squares / pair.freedom)
        for pair in pairs
        if not pair.steady and pair.by_factors
    ]
    return statistics.median(spreads) if spreads else 0.0


def chance(figures: int) -> float:
    """The chance of a false alarm that each of so many figures may have."""
    return min(ALARM, ALARMS / max(1, figures))


def limit(pair: Pair, floor: float, chance: float) -> float | None:
    """How far the figure may move by noise, either way; None where nothing tells."""
    if pair.exact:
        return EXACT
    if pair.steady and not floor:
        return None
    freedom = BORROWED + pair.freedom
    variance = (BORROWED * floor**2 + pair.squares) / freedom
    shares = sum(1 / min(SURE, len(run)) for run in (pair.old, pair.new))
    return student(chance, freedom) * math.sqrt(variance * shares)


def student(chance: float, freedom: float) -> float:
    """What Student's t exceeds either way with this chance, within 1 % from 3 degrees of freedom.

    After Gaver and Kafadar, "A retrievable recipe for inverse t", 1984.
    """
    z = statistics.NormalDist().inv_cdf(1 - chance / 2)
    return math.sqrt(freedom * math.expm1(z * z * (freedom - 1.5) / (freedom - 1) ** 2))
