"""The figures of the switching benchmark, from what a contender and its model have noted."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import attrs

from bench import oracle
from bench.peers.timing import percentile
from bench.workload import Compress, Restart, Step, Turn

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
    """A script that was done, and what was noted of it."""

    steps: Sequence[Step]
    record: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    counts_from: int
    """The number of the first turn that counts; those before it open the sessions."""

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        return [turn for turn in self.record["turns"] if turn["number"] >= self.counts_from]

    @property
    def asked(self) -> list[Mapping[str, Any]]:
        """The requests of all turns; others want summaries, titles or reviews."""
        return [each for each in self.requests if each["turn"] is not None]

    @property
    def built(self) -> dict[int, str]:
        """All turns for which an agent was built, and why."""
        return {each["number"]: each["built"] for each in self.record["turns"] if each["built"]}

    @property
    def compressed(self) -> set[int]:
        """The compressions that took place."""
        wanted = {step.number for step in self.steps if isinstance(step, Compress)}
        return wanted.difference(self.record["not_compressed"])

    @property
    def left(self) -> dict[int, Sequence[oracle.Message]]:
        """By the number of a compression: what is left of the session."""
        transcripts: Mapping[str, Sequence[oracle.Message]] = self.record["transcripts"]
        return {int(number): rows for number, rows in transcripts.items()}

    def hidden(self) -> int:
        """Messages from elsewhere that the model was not shown when it should have been."""
        shown: dict[int, set[str]] = {}
        for each in self.asked:
            shown.setdefault(each["turn"], set()).update(each["tags"])
        due = oracle.first_shown(self.steps)
        return sum(tag not in shown.get(turn, ()) for tag, turn in due.items())

    def forgotten(self) -> int:
        """Messages that compressions have dropped without a summary."""
        summed_up = {tag for r in self.requests if r["turn"] is None for tag in r["tags"]}
        return oracle.forgotten(self.steps, self.left, summed_up)

    def off(self) -> int:
        """Requests that are not those of the oracle, token by token."""
        best = [(b.turn, b.prompt, b.cached) for b in oracle.best(self.steps, self.left)]
        seen = [(r["turn"], r["prompt"], r["cached"]) for r in self.asked]
        return sum(ours != other for ours, other in itertools.zip_longest(seen, best))

    def times(self) -> list[float]:
        """How long the turns took; the first one of a new process is left out."""
        after = set()
        for before, step in itertools.pairwise(self.steps):
            if isinstance(before, Restart) and isinstance(step, Turn):
                after.add(step.number)
        return [turn["ms"] for turn in self.turns if turn["number"] not in after]


def pooled(runs: Sequence[Seen], prices: Prices) -> Figures:
    """What a contender did in several scripts, as one."""
    figures: Counter[str] = Counter()
    for run in runs:
        figures.update(_judged(run))
    records = [run.record for run in runs]
    turns = sum(len(run.turns) for run in runs)
    counted = [each for run in runs for each in run.asked if each["turn"] >= run.counts_from]
    others = [each for run in runs for each in run.requests if each["turn"] is None]
    building = [turn["build_ms"] for run in runs for turn in run.turns if turn["built"]]
    return {
        **figures,
        **_tokens(counted, turns, prices),
        "unnoticed": figures["missed"] + figures["hidden"] + figures["lost"],
        "damaged": sum(figures[name] for name in DAMAGED),
        "turns": turns,
        "reused": 1 - figures["builds"] / turns,
        "compressed": sum(len(run.compressed) for run in runs),
        "other_tokens": sum(each["prompt"] for each in others) / turns,
        "build_ms": _share(building, 0.5),
        **_times([ms for run in runs for ms in run.times()]),
        "switch_ms": _share([ms for record in records for ms in record["switch_ms"]], 0.5),
    }


DAMAGED = ("off", "wrong", "lost", "forgotten")


def _judged(run: Seen) -> dict[str, float]:
    """What was built when, beside when it was due; and whether all that was said is there."""
    due, built = oracle.rebuilds(run.steps, run.compressed), run.built
    skipped = [reason for turn, reason in due.must.items() if turn not in built]
    counted = {turn: reason for turn, reason in built.items() if turn >= run.counts_from}
    reasons = Counter(due.must[turn] for turn in counted if turn in due.must)
    return {
        "builds": len(counted),
        "cold": reasons["cold"],
        "foreign": reasons["foreign-write"],
        "returned": len(counted.keys() & due.may),
        "extra": len(counted.keys() - due.must.keys() - due.may),
        "missed": skipped.count("foreign-write"),
        "misjudged": len(built.keys() ^ due.must.keys()),
        **Counter(f"said {reason}" for reason in counted.values()),
        "hidden": run.hidden(),
        "lost": len(run.record["lost"]),
        "wrong": len(run.record["wrong"]),
        "forgotten": run.forgotten(),
        "off": run.off(),
        "spoilt": sum(bool(each["spoilt"]) for each in run.asked),
    }


SHARE_OF_BEST = 0.98


def missed_goals(figures: Figures, best: Figures) -> int:
    """How many of the goals for a guard a contender misses."""
    share = figures["share"] / best["share"]
    return (figures["misjudged"] > 0) + (figures["unnoticed"] > 0) + (share < SHARE_OF_BEST)


def best(runs: Sequence[Seen], prices: Prices) -> Figures:
    """The oracle's figures for what these runs were asked to do."""
    reasons: Counter[str] = Counter()
    asked = []
    for run in runs:
        due = oracle.rebuilds(run.steps, run.compressed).must
        reasons.update(reason for turn, reason in due.items() if turn >= run.counts_from)
        every = oracle.best(run.steps, run.left)
        asked += [asdict(each) for each in every if each.turn >= run.counts_from]
    turns = sum(len(run.turns) for run in runs)
    judged = ("returned", "extra", "missed", "misjudged", "unnoticed", "hidden", "spoilt")
    clean = (*DAMAGED, *judged, "damaged")
    return {
        **_tokens(asked, turns, prices),
        "turns": turns,
        "builds": reasons.total(),
        "cold": reasons["cold"],
        "foreign": reasons["foreign-write"],
        "reused": 1 - reasons.total() / turns,
        **dict.fromkeys(clean, 0.0),
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
    return percentile(list(values), share) if values else 0.0
