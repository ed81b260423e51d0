"""Figures per repetition, and the goals that judge them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import attrs
from msgspec import structs

from bench.report.results import Figure, GoalResult, Outcome, Spread


class Ref(NamedTuple):
    """The name of a figure: in which cell, of which contender, and which figure."""

    cell: str
    who: str
    figure: str


@attrs.frozen
class Goal:
    """A target for a figure, without the figure `less`, or for its ratio to the figure `beside`.

    Differences and ratios are taken within each repetition, so that noise which affects both
    sides cancels; the median of the ratios decides. `text` identifies the goal across files.
    """

    text: str
    figure: Ref
    target: float
    beside: Ref | None = None
    at_least: bool = False
    unit: str = "x"
    explains: str = ""
    at_any_size: bool = False
    """Whether a quick run can fail it, too."""
    less: Ref | None = None

    @property
    def refs(self) -> list[Ref]:
        """All figures that it needs."""
        return [ref for ref in (self.figure, self.less, self.beside) if ref is not None]

    def outcome(self, spread: Spread | None, *, quick: bool) -> Outcome:
        if spread is None:
            return "not measured"
        if spread.median >= self.target if self.at_least else spread.median <= self.target:
            return "pass"
        return "not judged" if quick and not self.at_any_size else "FAIL"


def ratio(
    cell: str, figure: str, who: str, beside: str, least: float, explains: str, text: str = ""
) -> Goal:
    """A goal for the ratio of two contenders in one cell: at least so much."""
    text = text or f"{cell}: {who} / {beside}"
    refs = Ref(cell, who, figure), Ref(cell, beside, figure)
    return Goal(text, refs[0], least, refs[1], at_least=True, explains=explains)


@attrs.define
class Measurements:
    """All figures of a run, each in the order of its repetitions."""

    figures: dict[Ref, list[float]] = attrs.Factory(lambda: defaultdict(list))

    def add(self, cell: str, who: str, figures: Mapping[str, float]) -> None:
        """Add the figures of one repetition."""
        for name, value in figures.items():
            self.figures[Ref(cell, who, name)].append(value)

    def judge(self, goal: Goal, *, quick: bool = False) -> GoalResult:
        """Judge a goal by the median; repetitions without a number are left out."""
        values = self.figures.get(goal.figure, [])
        if goal.less is not None:
            without = self.figures.get(goal.less, [])
            values = [whole - part for whole, part in zip(values, without, strict=False)]
        if goal.beside is not None:
            pairs = zip(values, self.figures.get(goal.beside, []), strict=False)
            values = [ours / theirs if theirs else math.nan for ours, theirs in pairs]
        spread = Spread.of(values)
        return GoalResult(
            goal=goal.text,
            explains=goal.explains,
            target=f"{'>=' if goal.at_least else '<='} {goal.target:g} {goal.unit}",
            better="higher" if goal.at_least else "lower",
            unit=goal.unit,
            outcome=goal.outcome(spread, quick=quick),
            measured=spread,
        )

    def all_figures(self) -> tuple[Figure, ...]:
        return tuple(
            Figure(**structs.asdict(spread), **ref._asdict())
            for ref, values in self.figures.items()
            if (spread := Spread.of(values))
        )
