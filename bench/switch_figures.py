"""The figures of the switching benchmark, from what a contender and its model have noted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import attrs

from bench import oracle
from bench.workload import Step, Turn

Figures = dict[str, float]


@attrs.frozen
class Prices:
    """Dollars per million tokens."""

    input: float = 2.5
    cached: float = 0.25
    output: float = 10.0

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Three numbers with commas between them; ValueError where that is something else."""
        try:
            prices = [float(number) for number in text.split(",")]
        except ValueError:
            prices = []
        if len(prices) != 3 or not all(0 <= price < math.inf for price in prices):
            raise ValueError(f"prices are three numbers, such as 2.5,0.25,10, not {text!r}")
        return cls(*prices)

    def cost(self, prompt: float, cached: float, output: float) -> float:
        """What so many tokens cost, in dollars."""
        fresh = prompt - cached
        return (fresh * self.input + cached * self.cached + output * self.output) / 1e6


@attrs.frozen
class Seen:
    """A script that was done, and what it should have cost."""

    steps: Sequence[Step]
    record: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    timed_from: int
    """The number of the first turn that counts for times."""

    @property
    def turns(self) -> list[Turn]:
        return [step for step in self.steps if isinstance(step, Turn)]

    @property
    def asked(self) -> list[Mapping[str, Any]]:
        """The requests of turns; others want summaries, titles or reviews."""
        return [each for each in self.requests if each["turn"] is not None]

    @property
    def built(self) -> dict[int, str]:
        """The turns for which an agent was built, and why."""
        return {each["number"]: each["built"] for each in self.record["turns"] if each["built"]}

    def hidden(self) -> int:
        """Writings from elsewhere that the model was not shown when it should have been."""
        shown: dict[int, set[int]] = {}
        for each in self.asked:
            shown.setdefault(each["turn"], set()).update(each["marks"])
        due = oracle.first_shown(self.steps)
        return sum(mark not in shown.get(turn, ()) for mark, turn in due.items())

    def times(self) -> list[float]:
        """How long the turns took."""
        return [t["ms"] for t in self.record["turns"] if t["number"] >= self.timed_from]


def pooled(runs: Sequence[Seen], prices: Prices) -> Figures:
    """What a contender did in several scripts, as one."""
    turns = sum(len(run.turns) for run in runs)
    builds = extra = missed = cold = 0
    said: Counter[str] = Counter()
    for run in runs:
        due, built = oracle.rebuilds(run.steps), run.built
        builds += len(built)
        extra += len(built.keys() - due.keys())
        missed += len(due.keys() - built.keys())
        cold += sum(due.get(turn) == "cold" for turn in built)
        said.update(built.values())
    records = [run.record for run in runs]
    building = [t["build_ms"] for record in records for t in record["turns"] if t["built"]]
    others = [each for run in runs for each in run.requests if each["turn"] is None]
    return {
        **_tokens([each for run in runs for each in run.asked], turns, prices),
        "turns": turns,
        "builds": builds,
        "cold": cold,
        "foreign": builds - cold - extra,
        "extra": extra,
        "missed": missed,
        "misjudged": extra + missed,
        "hidden": sum(run.hidden() for run in runs),
        "lost": sum(len(record["lost"]) for record in records),
        **{f"said {reason}": count for reason, count in said.items()},
        "spoilt": sum(bool(each["spoilt"]) for run in runs for each in run.asked),
        "wrong": sum(len(record["wrong"]) for record in records),
        "compressed": sum(
            len(record["compress_ms"]) - len(record["not_compressed"]) for record in records
        ),
        "reused": 1 - builds / turns,
        "other_tokens": sum(each["prompt"] for each in others) / turns,
        "build_ms": _share(building, 0.5),
        **_times([ms for run in runs for ms in run.times()]),
        "switch_ms": _share([ms for record in records for ms in record["switch_ms"]], 0.5),
    }


def unnoticed(figures: Figures) -> float:
    """What was written elsewhere and not noticed: by the guard, by the model, or by the file."""
    return figures["missed"] + figures["hidden"] + figures["lost"]


def best(
    scripts: Sequence[Sequence[Step]],
    compressed: Sequence[Mapping[int, Sequence[oracle.Message]]],
    prices: Prices,
) -> Figures:
    """The oracle's figures for the same scripts."""
    due = [oracle.rebuilds(steps) for steps in scripts]
    turns = sum(isinstance(step, Turn) for steps in scripts for step in steps)
    builds = sum(map(len, due))
    cold = sum(reason == "cold" for reasons in due for reason in reasons.values())
    asked = [
        asdict(each)
        for steps, left in zip(scripts, compressed, strict=True)
        for each in oracle.best(steps, left)
    ]
    return {
        **_tokens(asked, turns, prices),
        "turns": turns,
        "builds": builds,
        "cold": cold,
        "foreign": builds - cold,
        "reused": 1 - builds / turns,
        **dict.fromkeys(
            ("extra", "missed", "misjudged", "hidden", "lost", "unnoticed", "spoilt"), 0.0
        ),
    }


def _tokens(asked: Sequence[Mapping[str, Any]], turns: int, prices: Prices) -> Figures:
    prompt, cached, output = (
        sum(each[name] for each in asked) for name in ("prompt", "cached", "output")
    )
    return {
        "prompt": prompt / turns,
        "cached": cached / turns,
        "fresh": (prompt - cached) / turns,
        "share": cached / prompt if prompt else 0.0,
        "cost": prices.cost(prompt, cached, output) / turns * 1000,
    }


def _times(times: Sequence[float]) -> Figures:
    return {"p50_ms": _share(times, 0.5), "p99_ms": _share(times, 0.99)}


def _share(values: Sequence[float], share: float) -> float:
    """The value that this share of all values does not exceed; 0 where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
