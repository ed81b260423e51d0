"""The figures of the switching benchmark, from the records of a driver and of its model."""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import attrs

from bench.harness.timing import percentile
from bench.switch import oracle
from bench.switch.workload import Compress, Restart, Step, Turn

Figures = dict[str, float]
SHARE_OF_BEST = 0.98
DAMAGED = ("off", "wrong", "lost", "forgotten")
MISTAKES = ("returned", "extra", "missed", "misjudged", "unnoticed", "hidden", "spoilt", "damaged")


@attrs.frozen
class Prices:
    """Dollars per million tokens."""

    input: float = 2.5
    cached: float = 0.25
    output: float = 10.0

    @classmethod
    def parse(cls, text: str) -> Prices:
        """Parse three numbers separated by commas, as an option of the command line."""
        try:
            prices = [float(number) for number in text.split(",")]
        except ValueError:
            prices = []
        if len(prices) != 3 or not all(0 <= price < math.inf for price in prices):
            example = "three numbers, such as 2.5,0.25,10"
            raise argparse.ArgumentTypeError(f"prices are {example}, not {text!r}")
        return cls(*prices)

    def cost(self, prompt: float, cached: float, output: float) -> float:
        """The price of so many tokens, in dollars."""
        fresh = prompt - cached
        return (fresh * self.input + cached * self.cached + output * self.output) / 1e6


@attrs.frozen
class Performance:
    """A script as one contender performed it: its record and the requests that its model got."""

    steps: Sequence[Step]
    record: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]
    counts_from: int
    """The number of the first turn that counts; the turns before it open the sessions."""

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        return [turn for turn in self.record["turns"] if turn["number"] >= self.counts_from]

    @property
    def turn_requests(self) -> list[Mapping[str, Any]]:
        """The requests of turns; the others are for summaries, titles or reviews."""
        return [each for each in self.requests if each["turn"] is not None]

    @property
    def built(self) -> dict[int, str]:
        """The turns for which an agent was built, and the reason given."""
        return {each["number"]: each["built"] for each in self.record["turns"] if each["built"]}

    @property
    def compressed(self) -> set[int]:
        """The compressions that took place."""
        wanted = {step.number for step in self.steps if isinstance(step, Compress)}
        return wanted.difference(self.record["not_compressed"])

    @property
    def left(self) -> dict[int, Sequence[oracle.Message]]:
        """What each compression left of its session, by its number."""
        transcripts: Mapping[str, Sequence[oracle.Message]] = self.record["transcripts"]
        return {int(number): rows for number, rows in transcripts.items()}

    def hidden(self) -> int:
        """Count messages of the other writer that the model did not see when it should have."""
        shown: dict[int, set[str]] = {}
        for each in self.turn_requests:
            shown.setdefault(each["turn"], set()).update(each["tags"])
        due = oracle.first_shown(self.steps)
        return sum(tag not in shown.get(turn, ()) for tag, turn in due.items())

    def forgotten(self) -> int:
        """Count messages that compressions dropped without a summary."""
        summarized = {tag for r in self.requests if r["turn"] is None for tag in r["tags"]}
        return oracle.forgotten(self.steps, self.left, summarized)

    def off(self) -> int:
        """Count requests that differ from those of the oracle in a token."""
        best = [(b.turn, b.prompt, b.cached) for b in oracle.best(self.steps, self.left)]
        seen = [(r["turn"], r["prompt"], r["cached"]) for r in self.turn_requests]
        return sum(ours != other for ours, other in itertools.zip_longest(seen, best))

    def times(self) -> list[float]:
        """Return the times of the turns, without the first one of each process."""
        after = {
            step.number
            for before, step in itertools.pairwise(self.steps)
            if isinstance(before, Restart) and isinstance(step, Turn)
        }
        return [turn["ms"] for turn in self.turns if turn["number"] not in after]

    def judge(self) -> dict[str, float]:
        """Compare the agents that were built with the oracle's, and check all messages."""
        due, built = oracle.rebuilds(self.steps, self.compressed), self.built
        skipped = [reason for turn, reason in due.must.items() if turn not in built]
        counted = {turn: reason for turn, reason in built.items() if turn >= self.counts_from}
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
            "hidden": self.hidden(),
            "lost": len(self.record["lost"]),
            "wrong": len(self.record["wrong"]),
            "forgotten": self.forgotten(),
            "off": self.off(),
            "spoilt": sum(bool(each["spoilt"]) for each in self.turn_requests),
        }


def pooled(runs: Sequence[Performance], prices: Prices) -> Figures:
    """Return the figures of one contender for several scripts together."""
    figures: Counter[str] = Counter()
    for run in runs:
        figures.update(run.judge())
    turns = sum(len(run.turns) for run in runs)
    counted = [
        each for run in runs for each in run.turn_requests if each["turn"] >= run.counts_from
    ]
    others = [each["prompt"] for run in runs for each in run.requests if each["turn"] is None]
    times = [ms for run in runs for ms in run.times()]
    switching = [ms for run in runs for ms in run.record["switch_ms"]]
    building = [turn["build_ms"] for run in runs for turn in run.turns if turn["built"]]
    return {
        **figures,
        **_tokens(counted, turns, prices),
        "unnoticed": figures["missed"] + figures["hidden"] + figures["lost"],
        "damaged": sum(figures[name] for name in DAMAGED),
        "turns": turns,
        "reused": 1 - figures["builds"] / turns,
        "compressed": sum(len(run.compressed) for run in runs),
        "other_tokens": sum(others) / turns,
        "build_ms": percentile(building or [0.0], 0.5),
        "p50_ms": percentile(times or [0.0], 0.5),
        "p99_ms": percentile(times or [0.0], 0.99),
        "switch_ms": percentile(switching or [0.0], 0.5),
    }


def failed_goals(figures: Figures, best: Figures) -> int:
    """Count how many of the three goals for a policy a contender fails."""
    share = figures["share"] / best["share"]
    return (figures["misjudged"] > 0) + (figures["unnoticed"] > 0) + (share < SHARE_OF_BEST)


def best(runs: Sequence[Performance], prices: Prices) -> Figures:
    """Return the figures of the oracle for the same scripts."""
    reasons: Counter[str] = Counter()
    requests = []
    for run in runs:
        due = oracle.rebuilds(run.steps, run.compressed).must
        reasons.update(reason for turn, reason in due.items() if turn >= run.counts_from)
        every = oracle.best(run.steps, run.left)
        requests += [asdict(each) for each in every if each.turn >= run.counts_from]
    turns = sum(len(run.turns) for run in runs)
    return {
        **_tokens(requests, turns, prices),
        "turns": turns,
        "builds": reasons.total(),
        "cold": reasons["cold"],
        "foreign": reasons["foreign-write"],
        "reused": 1 - reasons.total() / turns,
        **dict.fromkeys((*DAMAGED, *MISTAKES), 0.0),
    }


def _tokens(requests: Sequence[Mapping[str, Any]], turns: int, prices: Prices) -> Figures:
    prompt, cached, output = (
        sum(each[name] for each in requests) for name in ("prompt", "cached", "output")
    )
    return {
        "prompt": prompt / turns,
        "cached": cached / turns,
        "fresh": (prompt - cached) / turns,
        "share": cached / prompt if prompt else 0.0,
        "cost": prices.cost(prompt, cached, output) / turns * 1000,
    }
