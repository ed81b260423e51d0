"""What was measured: figures per repetition, ratios taken repetition by repetition, goals."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import attrs

Outcome = Literal["pass", "FAIL", "not judged", "not measured"]
"""Goals are stated for full sizes: a quick run that misses one says little about it."""


@attrs.frozen
class Ref:
    """One figure: in which cell, whose, and which."""

    cell: str
    who: str
    figure: str


@attrs.frozen
class Spread:
    """A figure over its repetitions."""

    median: float
    low: float
    high: float
    q1: float
    q3: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        q1, _, q3 = (
            statistics.quantiles(values, n=4, method="inclusive")
            if len(values) > 1
            else (values[0],) * 3
        )
        middle = statistics.median(values)
        return cls(middle, min(values), max(values), q1, q3, tuple(values))

    def text(self, digits: int) -> str:
        span = (
            "" if self.low == self.high else f" [{self.low:,.{digits}f}..{self.high:,.{digits}f}]"
        )
        return f"{self.median:,.{digits}f}{span}"


@attrs.frozen
class Goal:
    """`figure` alone, or divided by `beside` in the same repetition, against a target."""

    text: str
    figure: Ref
    target: float
    beside: Ref | None = None
    at_least: bool = False
    unit: str = "x"
    explains: str = ""
    """One sentence for somebody who sees this goal for the first time."""
    at_any_size: bool = False
    """Whether a quick run can miss it."""

    def rule(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.target:g} {self.unit}"

    def outcome(self, spread: Spread | None, *, quick: bool = False) -> Outcome:
        """The median decides."""
        if spread is None:
            return "not measured"
        met = spread.median >= self.target if self.at_least else spread.median <= self.target
        missed: Outcome = "not judged" if quick and not self.at_any_size else "FAIL"
        return "pass" if met else missed


@attrs.define
class Board:
    """All figures, in the order of their repetitions."""

    figures: dict[Ref, list[float]] = attrs.Factory(lambda: defaultdict(list))

    def add(self, cell: str, who: str, figures: Mapping[str, float]) -> None:
        """One repetition's figures."""
        for name, value in figures.items():
            self.figures[Ref(cell, who, name)].append(value)

    def who(self, cell: str) -> list[str]:
        """Everybody measured in the cell, in the order of their first appearance."""
        return list(dict.fromkeys(ref.who for ref in self.figures if ref.cell == cell))

    def spread(self, ref: Ref) -> Spread | None:
        return _spread(self.figures.get(ref, []))

    def measured(self, goal: Goal) -> Spread | None:
        """What stands against the goal's target: paired by repetition, so that noise cancels."""
        values = self.figures.get(goal.figure, [])
        if goal.beside is not None:
            beside = self.figures.get(goal.beside, [])
            pairs = zip(values, beside, strict=False)
            values = [ours / theirs if theirs else math.nan for ours, theirs in pairs]
        return _spread(values)


def _spread(values: Sequence[float]) -> Spread | None:
    """Of those that are numbers: a repetition that gave none says nothing of the others."""
    finite = [value for value in values if math.isfinite(value)]
    return Spread.of(finite) if finite else None
