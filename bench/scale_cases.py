"""What turns are like, who writes how often, and what is assumed about machines and models."""

from __future__ import annotations

import math

import attrs

from bench import capacity
from bench.simulation import Costs, Model
from bench.unit_costs import MESSAGE_KIB, SHORT, Units
from hermes.config import Config

BOUNDS = Config()
TARGET = 0.25
"""Seconds beside its model that 99 of 100 turns must stay below."""
MINUTES = 5
"""Between two messages of somebody who chats."""
DAY, YEAR = 86_400, 365
CONNECTION = 64 * 1024
"""Assumed: the bytes of a TLS connection to a model."""
GB = 1e9
GIB = 1024.0**3


@attrs.frozen(kw_only=True)
class Shape:
    """What a turn is like. All of it is assumed."""

    name: str
    calls: int
    pieces: int = 0
    """Of each streamed answer."""
    history: int = SHORT
    """Messages that a call is given."""
    seconds: float = 0.0
    """The median of a call; lognormal."""
    tokens: int = 0
    """Of all calls together."""

    @property
    def rows(self) -> int:
        """Messages that a turn stores: two, and two for each call of a tool."""
        return 2 + 2 * max(0, self.calls - 1)

    @property
    def model(self) -> Model:
        """The time that is not ours."""
        return Model(self.seconds, 0.6, self.calls)

    def described(self) -> str:
        """What was assumed, for the page."""
        return (
            f"{self.calls} x {self.seconds:g} s (median), {self.pieces} pieces each, "
            f"{self.history} messages of history, {self.tokens:,} tokens in all"
        )

    def costs(self, units: Units) -> Costs:
        """What it costs a node. The work of a turn is parted evenly; where does not matter."""
        half = units.turn.value / 2
        return Costs(
            accept=half,
            run=half + self.rows * units.index.value,
            commit=units.commit.value,
            flush=units.flush.value,
            call=units.call.value
            + self.pieces * units.piece.value
            + self.history * units.message.value,
            spread=1.0,
        )

    def held(self, units: Units) -> float:
        """Bytes of an open turn: its agent, its transcript, its connection to the model."""
        transcript = (self.history - SHORT) * MESSAGE_KIB * 1024
        return units.warm.value + transcript + (CONNECTION if self.calls else 0)

    def stored(self, units: Units) -> float:
        """Bytes on disk."""
        return self.rows * units.stored.value


AT_ONCE = Shape(name="an answer at once", calls=0)
CHAT = Shape(name="one call of a model", calls=1, pieces=300, history=50, seconds=4, tokens=4_000)
TOOLS = Shape(
    name="ten calls, with tools", calls=10, pieces=100, history=200, seconds=3, tokens=150_000
)
SHAPES = (AT_ONCE, CHAT, TOOLS)


@attrs.frozen(kw_only=True)
class Case:
    """A bot: who writes at its peak, and how much in a day. All of it is assumed."""

    name: str
    shape: Shape
    people: int
    """In a conversation at the peak."""
    minutes: float
    """Between two messages of one of them."""
    daily: int

    @property
    def rate(self) -> float:
        """Turns per second at the peak."""
        return self.people / self.minutes / 60

    def described(self) -> str:
        """What was assumed, for the page."""
        return (
            f"{self.shape.name}; {self.people:,} people at the peak, a message in "
            f"{self.minutes:g} min each, {self.daily:,} turns a day"
        )


CASES = (
    Case(name="private bot", shape=CHAT, people=3, minutes=1, daily=300),
    Case(name="support, 10,000 users", shape=CHAT, people=1_000, minutes=3, daily=50_000),
    Case(name="agent with tools", shape=TOOLS, people=50, minutes=5, daily=2_000),
)


@attrs.frozen(kw_only=True)
class Machine:
    """What there is. All of it is assumed."""

    memory: float = 2 * GIB
    disk: float = 100 * GB
    days: int = YEAR
    """For how long everything is kept."""
    tokens: float = 2e6
    """Of the model, per minute."""


def memory(case: Case, units: Units) -> float:
    """Bytes at the peak: all who wrote in the last quarter of an hour are awake."""
    shape = case.shape
    awake = min(case.people, case.rate * BOUNDS.idle_timeout)
    running = case.rate * shape.model.mean
    kept = min(awake, BOUNDS.max_agents) * units.warm.value
    transcripts = min(awake * shape.history * MESSAGE_KIB * 1024, BOUNDS.transcript_bytes)
    actors = awake * units.actor.value
    return units.process.value + actors + kept + transcripts + running * shape.held(units)


def shares(case: Case, units: Units, machine: Machine) -> dict[str, float]:
    """How much of each limit a bot needs at its peak."""
    costs, model = case.shape.costs(units), case.shape.model
    grows = memory(case, units) - units.process.value
    return {
        "processor": case.rate / capacity.rate_within(TARGET, costs, model),
        "memory": grows / (machine.memory - units.process.value),
        "disk": case.daily * case.shape.stored(units) * machine.days / machine.disk,
        "model": case.rate * 60 * case.shape.tokens / machine.tokens,
    }


@attrs.frozen(kw_only=True)
class Database:
    """A PostgreSQL that nodes share. Nothing of it was measured."""

    trip: float = 0.0005
    flush: float = 0.001
    commits: float = 5_000.0
    """That it makes durable in a second, for all nodes."""


def through(database: Database, costs: Costs) -> Costs:
    """The same turn with its commits over the network."""
    return attrs.evolve(costs, flush=database.trip + database.flush)


def nodes_on(database: Database, rate: float, costs: Costs, model: Model) -> int:
    """How many nodes, each under this load, one database carries."""
    commits = 2 * rate / capacity.under(rate, costs, model).batch
    return math.floor(database.commits / commits)
