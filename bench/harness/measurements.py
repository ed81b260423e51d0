"""Figures per repetition, and the goals that judge them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs
from msgspec import structs

from bench.report.results import Better, Figure, GoalResult, Outcome, Plot, Spread, Table


@attrs.frozen
class Ref:
    """The name of a figure: in which cell, of which contender, and which figure."""

    cell: str
    who: str
    figure: str


@attrs.frozen
class Goal:
    """A target for a figure, or for its ratio to the figure `beside`.

    A ratio is taken within each repetition, so that noise which affects both sides cancels; the
    median of the ratios decides. `text` identifies the goal across result files.
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

    @property
    def better(self) -> Better:
        return "higher" if self.at_least else "lower"

    def outcome(self, spread: Spread | None, *, quick: bool = False) -> Outcome:
        if spread is None:
            return "not measured"
        if spread.median >= self.target if self.at_least else spread.median <= self.target:
            return "pass"
        return "not judged" if quick and not self.at_any_size else "FAIL"


@attrs.frozen
class Sheet:
    """How a benchmark is presented: goals (mostly ratios) first, then tables and plots."""

    goals: Sequence[Goal]
    tables: Sequence[Table]
    plots: Sequence[Plot] = ()


@attrs.define
class Measurements:
    """All figures of a run, each in the order of its repetitions."""

    figures: dict[Ref, list[float]] = attrs.Factory(lambda: defaultdict(list))

    def add(self, cell: str, who: str, figures: Mapping[str, float]) -> None:
        """Add the figures of one repetition."""
        for name, value in figures.items():
            self.figures[Ref(cell, who, name)].append(value)

    def who(self, cell: str) -> list[str]:
        return list(dict.fromkeys(ref.who for ref in self.figures if ref.cell == cell))

    def spread(self, ref: Ref) -> Spread | None:
        return Spread.of(self.figures.get(ref, []))

    def measured(self, goal: Goal) -> Spread | None:
        """Return what the goal judges; repetitions without a number are left out."""
        values = self.figures.get(goal.figure, [])
        if goal.beside is not None:
            pairs = zip(values, self.figures.get(goal.beside, []), strict=False)
            values = [ours / theirs if theirs else math.nan for ours, theirs in pairs]
        return Spread.of(values)

    def goal_results(self, goals: Sequence[Goal], *, quick: bool) -> tuple[GoalResult, ...]:
        results = []
        for goal in goals:
            spread = self.measured(goal)
            target = f"{'>=' if goal.at_least else '<='} {goal.target:g} {goal.unit}"
            outcome = goal.outcome(spread, quick=quick)
            results.append(
                GoalResult(
                    goal.text, goal.explains, target, goal.better, goal.unit, outcome, spread
                )
            )
        return tuple(results)

    def all_figures(self) -> tuple[Figure, ...]:
        spreads = {ref: self.spread(ref) for ref in self.figures}
        return tuple(
            Figure(**structs.asdict(spread), **attrs.asdict(ref))
            for ref, spread in spreads.items()
            if spread is not None
        )
