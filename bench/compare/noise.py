"""How far a figure may move between two runs of the same code.

Times and rates vary by factors, so the computation uses logarithms. The means of the repetitions
are compared as in Student's t-test, with two changes. The variance of a few repetitions is
uncertain, so it is combined with the typical variance of all figures (the floor), which counts like
three repetitions. And figures that are compared together share the probability of a false alarm.
Means detect more than medians; an outlier moves the mean, but widens the limit even more.

Repetitions do not show what differs between runs but not within one, such as other load on the
machine. Ratios are taken within a repetition and hardly affected. For absolute figures, the peers
show it, because their code is the same in both runs: see `comparison.Limits`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import attrs

FLOOR_WEIGHT = 3
"""The floor counts like this many repetitions."""
MAX_REPETITIONS = 8
"""More do not narrow the limit: what affects a whole run does not average out."""
FALSE_ALARMS = 0.05
"""The probability that a comparison of the same code flags any of its ratios (or figures)."""
FALSE_ALARM = 0.005
"""The same for a single figure."""
EXACT = math.log1p(0.005)
"""The limit for figures without noise, for rounding or one more page in a file."""


@attrs.frozen
class Pair:
    """The repetitions of one figure in both runs; at least one each."""

    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def greatest(self) -> float:
        return max(map(abs, self.old + self.new))

    @property
    def logarithmic(self) -> bool:
        """Other than positive values are compared as shares of the greatest one."""
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
    def freedom(self) -> int:
        return len(self.old) + len(self.new) - 2

    @property
    def moved(self) -> float:
        """How much greater the new mean is, as a logarithm or a share."""
        return statistics.fmean(self._scaled(self.new)) - statistics.fmean(self._scaled(self.old))

    @property
    def squares(self) -> float:
        """The sum of squared deviations from the mean of each run."""
        runs = [self._scaled(run) for run in (self.old, self.new)]
        return sum((value - statistics.fmean(run)) ** 2 for run in runs for value in run)

    def mean(self, run: tuple[float, ...]) -> float:
        """The mean of one run that is compared, in the unit of the figure."""
        if len(set(run)) == 1:
            return run[0]
        mean = statistics.fmean(self._scaled(run))
        return math.exp(mean) if self.logarithmic else mean * self.greatest

    def _scaled(self, run: tuple[float, ...]) -> list[float]:
        if self.logarithmic:
            return [math.log(value) for value in run]
        return [value / (self.greatest or 1.0) for value in run]


def floor(pairs: Iterable[Pair]) -> float:
    """The typical standard deviation of repetitions; 0 if nothing varied."""
    varying = [pair for pair in pairs if not pair.constant and pair.logarithmic]
    deviations = [math.sqrt(pair.squares / pair.freedom) for pair in varying]
    return statistics.median(deviations) if deviations else 0.0


def shared_probability(figures: int) -> float:
    """The probability of a false alarm for each of so many figures."""
    return min(FALSE_ALARM, FALSE_ALARMS / max(1, figures))


def limit(pair: Pair, floor: float, probability: float) -> float | None:
    """How far noise may move the figure in either direction; None if that is unknown."""
    if pair.exact:
        return EXACT
    if pair.constant and not floor:
        return None
    freedom = FLOOR_WEIGHT + pair.freedom
    variance = (FLOOR_WEIGHT * floor**2 + pair.squares) / freedom
    shares = sum(1 / min(MAX_REPETITIONS, len(run)) for run in (pair.old, pair.new))
    return student(probability, freedom) * math.sqrt(variance * shares)


def student(probability: float, freedom: float) -> float:
    """The two-sided quantile of Student's t, within 1 % from 3 degrees of freedom.

    After Gaver and Kafadar, "A retrievable recipe for inverse t", 1984.
    """
    z = statistics.NormalDist().inv_cdf(1 - probability / 2)
    return math.sqrt(freedom * math.expm1(z * z * (freedom - 1.5) / (freedom - 1) ** 2))
