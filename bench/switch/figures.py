"""The figures of the switching benchmark, from the records of a driver and of its model."""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import attrs

from bench.harness.driver import percentile
from bench.switch.oracle import Oracle
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
        """The price of this many tokens, in dollars."""
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
    def compressed(self) -> set[int]:
        """The compressions that took place."""
        wanted = {step.number for step in self.steps if isinstance(step, Compress)}
        return wanted.difference(self.record["not_compressed"])

    @cached_property
    def oracle(self) -> Oracle:
        left = {int(number): rows for number, rows in self.record["transcripts"].items()}
        summarized = {tag for r in self.requests if r["turn"] is None for tag in r["tags"]}
        return Oracle(self.steps, self.compressed, left, summarized)

    def times(self) -> list[float]:
        """Return the times of the turns, without the first one of each process."""
        after = {
            step.number
            for before, step in itertools.pairwise(self.steps)
            if isinstance(before, Restart) and isinstance(step, Turn)
        }
        return [turn["ms"] for turn in self.turns if turn["number"] not in after]

    def judge(self) -> dict[str, float]:
        """Compare the agents and the requests with the oracle's, and check all messages."""
        must, may = self.oracle.must, self.oracle.may
        built = {each["number"]: each["built"] for each in self.record["turns"] if each["built"]}
        counted = {turn: reason for turn, reason in built.items() if turn >= self.counts_from}
        reasons = Counter(must[turn] for turn in counted if turn in must)
        seen = [(r["turn"], r["prompt"], r["cached"]) for r in self.turn_requests]
        best = [(r.turn, r.prompt, r.cached) for r in self.oracle.requests]
        shown = {(r["turn"], tag) for r in self.turn_requests for tag in r["tags"]}
        return {
            "builds": len(counted),
            "cold": reasons["cold"],
            "foreign": reasons["foreign-write"],
            "returned": len(counted.keys() & may),
            "extra": len(counted.keys() - must.keys() - may),
            "missed": sum(must[turn] == "foreign-write" for turn in must.keys() - built.keys()),
            "misjudged": len(built.keys() ^ must.keys()),
            **Counter(f"said {reason}" for reason in counted.values()),
            "hidden": sum((turn, tag) not in shown for tag, turn in self.oracle.shown.items()),
            "lost": len(self.record["lost"]),
            "wrong": len(self.record["wrong"]),
            "forgotten": self.oracle.forgotten,
            "off": sum(ours != other for ours, other in itertools.zip_longest(seen, best)),
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
        due = run.oracle.must.items()
        reasons.update(reason for turn, reason in due if turn >= run.counts_from)
        requests += [asdict(r) for r in run.oracle.requests if r.turn >= run.counts_from]
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
