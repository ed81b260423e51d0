"""How much a figure may move between two runs of the same code: the noise that the runs measured.

Times and rates vary by factors, so everything is done with logarithms. What moved is the mean of a
figure's repetitions; that is judged like in Student's test, with two changes:

- A few repetitions may agree by luck. So each figure borrows from the others: its variance is mixed
  with the typical one of all figures of both runs (the floor), which counts like three repetitions
  more. Without that the limit would have to be so wide, with three repetitions, that not even twice
  the time were beyond it; with the floor alone a noisy figure would give false alarms.
- Many figures are compared at once. So the chance of a false alarm is shared by all of them.

A mean, not a median: of five repetitions the median needs half as much again to see the same change.
A spike moves the mean, but it widens the spread more, so it raises no alarm.

What this cannot see is what changes between runs and not within one: a neighbour on the machine, a
fuller disk. Ratios are taken within a repetition and so hardly feel that. Absolute figures do, and
there the peers tell it: their code is the same in both runs, so the limits are widened until they
hold for theirs (`widening`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import attrs

BORROWED = 3
ALARMS = 0.05
"""In how many comparisons of the same code anything may be flagged, of a kind of figures."""
ALARM = 0.005
"""The same for a single figure."""
EXACT = math.log1p(0.005)
"""What may change where there is no noise: rounding, a page more in a file."""
PEERS = 0.95


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
        """Steady by nature, as far as repetitions can tell: a count or a size."""
        return self.steady and min(len(self.old), len(self.new)) > 1

    @property
    def freedom(self) -> int:
        return len(self.old) + len(self.new) - 2

    @property
    def moved(self) -> float:
        """How much greater the new mean is, as a logarithm or a share."""
        if self.old == self.new:
            return 0.0
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
    return student(chance, freedom) * math.sqrt(variance * (1 / len(pair.old) + 1 / len(pair.new)))


def student(chance: float, freedom: float) -> float:
    """What Student's t exceeds either way with this chance, within 1 % from 3 degrees of freedom.

    After Gaver and Kafadar, "A retrievable recipe for inverse t", 1984.
    """
    z = statistics.NormalDist().inv_cdf(1 - chance / 2)
    return math.sqrt(freedom * math.expm1(z * z * (freedom - 1.5) / (freedom - 1) ** 2))


def widening(peers: Iterable[Pair], floor: float, chance: float) -> float:
    """By how much limits are to be widened to hold for 19 of 20 figures of the peers; 1 at least."""
    beyond = sorted(
        abs(pair.moved) / bound
        for pair in peers
        if not pair.steady and (bound := limit(pair, floor, chance))
    )
    return max(1.0, beyond[int(PEERS * (len(beyond) - 1))]) if beyond else 1.0
