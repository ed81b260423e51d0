"""The formulas beside the simulation, and the simulation beside what was measured."""

from __future__ import annotations

from functools import partial
from random import Random

import attrs

from bench import capacity
from bench.capacity import Load
from bench.scale_cases import AT_ONCE, CHAT, Shape
from bench.simulation import Costs, Node, People, Seen, closed, opened, shares, watch
from bench.unit_costs import ALONE, Results, Units

MEASURED = 0.5
"""Absolute figures move by 40 % on a shared machine (bench/README.md), and the simulation is
pessimistic in between: it has a commit occupy the interpreter, part of which is waiting."""
MEANS, TAILS = 0.2, 0.4
"""How far apart formula and simulation may be; a p99 of so few turns moves by 15 % by itself."""
HASHED = 0.05
"""By how much a bound on an average may be exceeded by the few populations that are hashed."""
TURNS = 5_000
"""Of a simulation; more where there is more to wait, because neighbours wait for the same."""
LOADS = (0.3, 0.5, 0.7)
MANY = range(1_000_000)
POPULATIONS = 2
SLOW_FLUSH = 0.005
QUIET = ((0.025, AT_ONCE), (0.1, CHAT))
"""What p99 is asked of which turns: far enough from the limit for a short simulation to see it."""


@attrs.frozen
class Pair:
    """Two figures that should agree, or the second of which should not exceed the first."""

    expected: float
    found: float
    allowed: float
    bound: bool = False

    @property
    def apart(self) -> float:
        """By how much the second is more."""
        return self.found / self.expected - 1

    @property
    def agrees(self) -> bool:
        return self.apart <= self.allowed and (self.bound or self.apart >= -self.allowed)


# Sessions without a pause, as they were measured


@attrs.frozen(kw_only=True)
class Crowded:
    """So many sessions at once: measured (or None), derived, simulated."""

    sessions: int
    rate: float | None
    p50_ms: float | None
    p99_ms: float | None
    cpu_ms: float | None
    derived: float
    seen: Seen

    @property
    def pairs(self) -> list[Pair]:
        found = [Pair(self.derived, self.seen.rate, MEANS)]
        if self.rate is not None:
            found.append(Pair(self.rate, self.seen.rate, MEASURED))
        if self.p50_ms is not None:
            found.append(Pair(self.p50_ms, self.seen.quantile(0.5) * 1e3, MEASURED))
        return found


def crowded(results: Results, units: Units, seed: int) -> list[Crowded]:
    """The points that were measured, and what the unit costs say of them."""
    costs = attrs.evolve(AT_ONCE.costs(units), run=units.turn.value / 2)  # nothing is indexed yet
    found = []
    for sessions in (1, 10, 100):
        cell = ALONE if sessions == 1 else f"{sessions} sessions at once"
        figure = partial(results.find, "runtime", cell, "ours")
        point = Crowded(
            sessions=sessions,
            rate=figure("rate"),
            p50_ms=figure("p50_ms"),
            p99_ms=figure("p99_ms"),
            cpu_ms=figure("cpu_ms"),
            derived=capacity.at_once(sessions, costs),
            seen=at_once(sessions, costs, seed),
        )
        found.append(point)
    return found


def at_once(sessions: int, costs: Costs, seed: int) -> Seen:
    """So many sessions, each with its next message as soon as it has its answer."""
    node = Node(costs, AT_ONCE.model, Random(seed))
    closed(node, sessions)
    return watch(node, 0.5, 3.0)


# Under load


@attrs.frozen
class Loaded:
    """A node at a share of the most it can do: derived and simulated."""

    shape: Shape
    share: float
    rate: float
    derived: Load
    seen: Seen

    @property
    def pairs(self) -> list[Pair]:
        return [
            Pair(self.derived.busy, self.seen.busy, MEANS),
            Pair(self.derived.batch, self.seen.batch, MEANS),
            Pair(self.derived.mean, self.seen.mean, MEANS),
            Pair(self.derived.p99, self.seen.quantile(0.99), TAILS),
        ]


def loaded(units: Units, seed: int) -> list[Loaded]:
    """Both kinds of turn at several loads."""
    found = []
    for shape in (AT_ONCE, CHAT):
        costs = shape.costs(units)
        for share in LOADS:
            rate = share * capacity.most(costs, shape.calls)
            derived = capacity.under(rate, costs, shape.model)
            turns = int(TURNS / (1 - share))
            seen = people(shape, costs, People(MANY, rate), seed, turns)
            found.append(Loaded(shape, share, rate, derived, seen))
    return found


def people(shape: Shape, costs: Costs, who: People, seed: int | str, turns: int = TURNS) -> Seen:
    """A node with people who write whether or not they were answered."""
    random = Random(seed)
    node = Node(costs, shape.model, random)
    opened(node, who, random)
    return watch(node, 1 + 5 * shape.model.mean, turns / who.rate)


# Single questions


@attrs.frozen
class Answer:
    """What is asked, in which unit, by formula and by simulation."""

    question: str
    unit: str
    pair: Pair


def answers(units: Units, seed: int) -> list[Answer]:
    """Where the limits lie."""
    found = [_slow_disk(units, seed)]
    found += [_within(p99, shape, units, seed) for p99, shape in QUIET]
    found += _bursts(units, seed)
    found.append(_four_nodes(units, seed))
    return found


def _slow_disk(units: Units, seed: int) -> Answer:
    costs = attrs.evolve(AT_ONCE.costs(units), flush=SLOW_FLUSH)
    pair = Pair(capacity.at_once(100, costs), at_once(100, costs, seed).rate, MEANS)
    return Answer("a disk that flushes in 5 ms, 100 sessions at once", "turns/s", pair)


def _within(target: float, shape: Shape, units: Units, seed: int) -> Answer:
    costs = shape.costs(units)
    rate = capacity.rate_within(target, costs, shape.model)
    seen = people(shape, costs, People(MANY, rate), seed, 3 * TURNS)
    pair = Pair(target * 1e3, seen.quantile(0.99) * 1e3, TAILS)
    return Answer(f"{shape.name}, {rate:,.0f} turns/s: p99", "ms", pair)


def _bursts(units: Units, seed: int) -> list[Answer]:
    costs, model = CHAT.costs(units), CHAT.model
    rate = 0.7 * capacity.most(costs, CHAT.calls)
    even = capacity.under(rate, costs, model)
    seen = people(CHAT, costs, People(MANY, rate, burst=3, gap=2.0), seed, 2 * TURNS)
    busy = Pair(100 * even.busy, 100 * seen.busy, MEANS, bound=True)
    p99 = Pair(even.p99 * 1e3, seen.quantile(0.99) * 1e3, TAILS, bound=True)
    question = f"{CHAT.name}, {rate:,.0f} messages/s in threes, 2 s apart"
    return [Answer(f"{question}: busy", "%", busy), Answer(f"{question}: p99", "ms", p99)]


def _four_nodes(units: Units, seed: int, nodes: int = 4, keys: int = 10_000) -> Answer:
    """The fullest node of several is the slowest; its formula has the bound's load."""
    costs = CHAT.costs(units)
    rate = 0.6 * capacity.most(costs, CHAT.calls)
    fullest = rate * (1 + capacity.imbalance(keys, nodes))
    worst = 0.0
    for node, own in enumerate(shares(range(keys), nodes)):
        who = People(own, nodes * rate * len(own) / keys)
        seen = people(CHAT, costs, who, f"{seed}, node {node}")
        worst = max(worst, seen.quantile(0.99))
    pair = Pair(capacity.under(fullest, costs, CHAT.model).p99 * 1e3, worst * 1e3, TAILS)
    question = f"{nodes} nodes, {keys:,} people, {nodes * rate:,.0f} turns/s: p99 of the slowest"
    return Answer(question, "ms", pair)


def fullest(keys: int, nodes: int, seed: int) -> Pair:
    """How many keys the fullest node has, as a multiple of its share: bound, and by hashing."""
    found = 0.0
    for number in range(POPULATIONS):
        first = (seed * POPULATIONS + number) * keys
        homes = shares(range(first, first + keys), nodes)
        found += max(map(len, homes)) * nodes / keys / POPULATIONS
    return Pair(1 + capacity.imbalance(keys, nodes), found, HASHED, bound=True)
