"""Where a value lies along a side of a chart, and which values are written there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

SMALLEST, LARGEST = 1e-100, 1e100
"""Beyond these a value is drawn at the edge: nothing that is measured lies there."""
FEW = 5
MANY = 8


@attrs.frozen
class Scale:
    """From the first tick at `start` to the last at `end`; what lies outside is put at the edge."""

    ticks: tuple[float, ...]
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        inside = min(max(value, low), high)
        if self.log:
            share = math.log10(inside / low) / math.log10(high / low)
        else:
            share = (inside - low) / (high - low)
        return self.start + share * (self.end - self.start)


def scale(values: Sequence[float], start: float, end: float, *, log: bool) -> Scale:
    """One for all these values. A logarithm needs a value above zero: without one it is linear."""
    if log and (positive := [_clipped(value) for value in values if value > 0]):
        return Scale(log_ticks(min(positive), max(positive)), start, end, log=True)
    clipped = [math.copysign(_clipped(abs(value)), value) for value in values if value]
    return Scale(linear_ticks(min([0.0, *clipped]), max([0.0, *clipped])), start, end, log=False)


def _clipped(value: float) -> float:
    return min(max(value, SMALLEST), LARGEST)


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """A few round numbers; the first is not above `low`, the last not below `high`."""
    if low == high:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / FEW
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * round_ for round_ in (1, 2, 5, 10, 20) if base * round_ >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return tuple(number * step for number in range(first, last + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten; with some numbers between them where the values are near each other."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    if high / low < FEW:
        digits: tuple[float, ...] = (1, 1.5, 2, 3, 4, 5, 6, 8)
    else:
        digits = (1, 2, 5) if last - first <= FEW else (1,)
    every = math.ceil((last - first) / MANY)
    candidates = [
        digit * 10.0**exponent
        for exponent in range(first, last + every + 1, every)
        for digit in digits
    ]
    # A value that is a tick but for its last bit belongs to that tick.
    under = max(place for place, tick in enumerate(candidates) if tick <= low * (1 + 1e-9))
    over = min(place for place, tick in enumerate(candidates) if tick >= high * (1 - 1e-9))
    if under == over:
        under, over = under - 1, over + 1
    return tuple(candidates[under : over + 1])


def number(value: float) -> str:
    """A tick as it is written."""
    size = abs(value)
    if size >= 1e12 or 0 < size < 1e-4:
        return f"{value:.0e}"
    for unit, letter in ((1e9, "G"), (1e6, "M")):
        if size >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:,.6g}"
