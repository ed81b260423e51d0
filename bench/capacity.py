"""What a node can hold, by formulas; `bench.scale` checks them against the simulation.

Times are in seconds, rates per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs

from bench.simulation import Costs, Model

NINETY_NINE = 2.326
"""The 0.99 quantile of the normal distribution."""
SLICES = 40
REACH = 20
"""How finely, and how far, the backlog is integrated, in its own tail's lengths."""
HALVINGS = 40


def work(costs: Costs, calls: int = 0) -> float:
    """The interpreter's time for a turn, without its share of commits."""
    return costs.accept + costs.run + calls * costs.call


def most(costs: Costs, calls: int = 0) -> float:
    """Turns per second that no load exceeds: ever more share a commit, nobody shares work."""
    return 1 / work(costs, calls)


def alone(costs: Costs, calls: int = 0) -> float:
    """What a turn takes on an idle node, beside its model: its work, and two commits."""
    return work(costs, calls) + 2 * (costs.commit + costs.flush)


def at_once(sessions: int, costs: Costs) -> float:
    """Turns per second of so many sessions without a pause.

    More than one fall into two groups of which one commits while the other works; a turn of all of
    them is their work and two commits of each group.
    """
    if sessions == 1:
        return 1 / alone(costs)
    return sessions / (sessions * work(costs) + 4 * (costs.commit + costs.flush))


def work_from(rate: float, sessions: int, commit: float) -> float:
    """The interpreter's time for a turn, from the turns per second of many sessions at once."""
    return 1 / rate - 4 * commit / sessions


@attrs.frozen
class Load:
    """A node under steady load."""

    busy: float
    """The share of the time in which the interpreter works."""
    batch: float
    """Requests per commit."""
    mean: float
    """What a turn takes beside its model."""
    p99: float


@attrs.frozen
class Backlog:
    """What a step finds at the interpreter that must be done first."""

    mean: float
    variance: float
    empty: float
    commits: float
    """Commits per second."""
    squares: float
    """How fast the variance of what has come grows."""


@attrs.frozen
class Level:
    """How likely so much backlog is, and how often commits begin at it."""

    seconds: float
    likely: float
    commits: float


def commits_at(backlog: float, requests: float, one: float) -> float:
    """Commits per second where each takes `one` and waits for this backlog first.

    The writer takes all who wait: a commit that lasts d is followed by the next at once, unless
    nobody came (e^-rd), and then when somebody comes.
    """
    lasts = backlog + one
    return 1 / (lasts + math.exp(-requests * lasts) / requests)


def _steps(costs: Costs, calls: int) -> list[float]:
    return [costs.accept, costs.run, *[costs.call] * calls]


def _levels(rate: float, costs: Costs, calls: int) -> Iterator[Level]:
    """The backlog's distribution by level crossing; constant load makes it Pollaczek-Khinchine.

    Commits are fewer the more there is to do, so the load depends on the level. At each, upward
    steps of mean size `size` meet a downward drift of one.
    """
    steps = _steps(costs, calls)
    squares, uneven = rate * sum(step**2 for step in steps), (1 + costs.spread) / 2
    one, exponent, seconds = costs.commit + costs.flush, 0.0, 0.0
    largest = max(*steps, costs.commit)
    tail = largest * uneven / (1 - rate * sum(steps))
    while seconds < REACH * tail:
        width = tail / SLICES
        seconds += width / 2
        commits = commits_at(seconds, 2 * rate, one)
        load = rate * sum(steps) + commits * costs.commit
        size = (squares + commits * costs.commit**2) * uneven / load
        exponent += (1 - load) / size * width / 2
        yield Level(seconds, load / size * math.exp(-exponent) * width, commits)
        exponent += (1 - load) / size * width / 2
        seconds += width / 2


def backlog(rate: float, costs: Costs, calls: int) -> Backlog:
    """What Poisson arrivals of so many turns per second make of the interpreter's queue."""
    idle = Level(0.0, 1.0, commits_at(0.0, 2 * rate, costs.commit + costs.flush))
    levels = [idle, *_levels(rate, costs, calls)]
    total = sum(level.likely for level in levels)
    mean = sum(level.likely * level.seconds for level in levels) / total
    square = sum(level.likely * level.seconds**2 for level in levels) / total
    commits = sum(level.likely * level.commits for level in levels) / total
    steps = _steps(costs, calls)
    squares = rate * sum(step**2 for step in steps) + commits * costs.commit**2
    return Backlog(mean, square - mean**2, 1 / total, commits, squares * (1 + costs.spread))


def under(rate: float, costs: Costs, model: Model) -> Load:
    """A node with Poisson arrivals of so many turns per second.

    A step that follows another at once finds what came during it; after the model has thought, the
    queue is a new one.
    """
    load = rate * work(costs, model.calls)
    if load >= 1:
        return Load(busy=1.0, batch=math.inf, mean=math.inf, p99=math.inf)
    found = backlog(rate, costs, model.calls)
    busy = load + found.commits * costs.commit
    # Who finds a commit under way waits for half of it, then for his own; for all of it, where he
    # was answered by the one before and had no model to ask.
    missed = 0.5 * (2 if model.calls else 3)
    fixed = 2 * costs.flush + missed * found.commits * (costs.commit + costs.flush) ** 2
    mean, variance = fixed, 0.0
    for chain in _chains(costs, model.calls):
        wait, uneven, gain = found.mean, found.variance, 0.0
        shocks = []
        for step in chain:
            lasts = wait + step
            mean += lasts
            shocks.append(uneven + costs.spread * step**2)
            wait, uneven = (1 - found.empty) * lasts, found.squares * lasts
        for shock in reversed(shocks):
            gain = 1 + load * gain  # what was unusual is felt by the steps after it
            variance += gain**2 * shock
    p99 = fixed + gamma_p99(mean - fixed, variance)
    return Load(busy, 2 * rate / found.commits, mean, p99)


def _chains(costs: Costs, calls: int) -> list[list[float]]:
    """The steps of a turn, parted where it waits for its model."""
    chains = [[costs.accept, costs.commit, costs.run], *([costs.call] for _ in range(calls))]
    chains[-1].append(costs.commit)
    return chains


def gamma_p99(mean: float, variance: float) -> float:
    """The 0.99 quantile of a gamma distribution (Wilson and Hilferty)."""
    if not variance:
        return mean
    shape = mean**2 / variance
    return float(mean * (1 - 1 / (9 * shape) + NINETY_NINE / (3 * math.sqrt(shape))) ** 3)


def rate_within(p99: float, costs: Costs, model: Model) -> float:
    """Turns per second up to which the p99 beside the model stays within this."""
    low, high = 0.0, most(costs, model.calls)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if under(middle, costs, model).p99 <= p99 else (low, middle)
    return low


def imbalance(keys: int, nodes: int) -> float:
    """How much more than its share the fullest node has: balls into bins, many to a bin."""
    return math.sqrt(2 * nodes * math.log(nodes) / keys)


def catching_up(open_turns: float, rate: float, down: float, capacity: float) -> float:
    """Seconds from a start until what was open, and what came while it was down, is done."""
    return (open_turns + rate * down) / (capacity - rate)
