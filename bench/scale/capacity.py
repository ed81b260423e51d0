"""The cost of a turn, and the share of a machine that a bot needs. Workloads are assumed."""

from __future__ import annotations

import math

import attrs

from bench.scale.unit_costs import KIB, SHORT, UnitCosts
from hermes.config import Config

BOUNDS = Config()
UTILIZATION = 0.7
"""The planned share of the maximum rate: waiting times grow as 1 / (1 - utilization)."""
MESSAGE = 1 * KIB
"""Assumed size of a message in memory: 400 bytes of text and Python's objects."""
CONNECTION = 64 * KIB
"""Assumed size of a TLS connection to a model."""
SIGMA = 0.6
"""Assumed spread of the lognormal latency of a model."""
GB, GIB = 1e9, 1024.0**3


@attrs.frozen(kw_only=True)
class Shape:
    """A kind of turn."""

    name: str
    calls: int
    pieces: int = 0
    """Streamed pieces of each reply."""
    history: int = SHORT
    """Messages sent with each call."""
    seconds: float = 0.0
    """Median latency of a call."""
    tokens: int = 0
    """Tokens of all calls together."""

    @property
    def rows(self) -> int:
        """Messages stored per turn: two, and two for each tool call."""
        return 2 + 2 * max(0, self.calls - 1)

    @property
    def model_seconds(self) -> float:
        """Mean time that a turn waits for its model."""
        return self.calls * self.seconds * math.exp(SIGMA**2 / 2)

    def work(self, costs: UnitCosts) -> float:
        """The interpreter's seconds for a turn, without its share of commits."""
        call = costs.call + self.pieces * costs.piece + self.history * costs.message
        return costs.turn + self.rows * costs.index + self.calls * call

    def alone(self, costs: UnitCosts) -> float:
        """Seconds of a turn on an idle node, without its model: its work and two commits."""
        return self.work(costs) + 2 * (costs.commit + costs.flush)

    def planned_rate(self, costs: UnitCosts) -> float:
        """Turns per second at the planned utilization."""
        return UTILIZATION / self.work(costs)

    def memory(self, costs: UnitCosts) -> float:
        """Bytes of an open turn: its agent, its transcript, its connection to the model."""
        transcript = (self.history - SHORT) * MESSAGE
        return costs.warm + transcript + (CONNECTION if self.calls else 0)


AT_ONCE = Shape(name="no model call", calls=0)
CHAT = Shape(name="one model call", calls=1, pieces=300, history=50, seconds=4, tokens=4_000)
TOOLS = Shape(
    name="ten calls, with tools", calls=10, pieces=100, history=200, seconds=3, tokens=150_000
)
SHAPES = (AT_ONCE, CHAT, TOOLS)


def rate_at_once(sessions: int, costs: UnitCosts) -> float:
    """Turns per second of sessions that never pause, without indexing."""
    commit = costs.commit + costs.flush
    if sessions == 1:
        return 1 / (costs.turn + 2 * commit)
    return sessions / (sessions * costs.turn + 4 * commit)


@attrs.frozen(kw_only=True)
class Case:
    """A bot at its peak."""

    name: str
    shape: Shape
    people: int
    minutes: float
    """Minutes between two messages of a person."""
    daily: int
    """Turns per day."""

    @property
    def rate(self) -> float:
        return self.people / self.minutes / 60

    def memory(self, costs: UnitCosts) -> float:
        """Bytes at the peak; sessions stay in memory until the idle timeout."""
        awake = min(self.people, self.rate * BOUNDS.idle_timeout)
        agents = min(awake, BOUNDS.max_agents) * costs.warm
        transcripts = min(awake * self.shape.history * MESSAGE, BOUNDS.transcript_bytes)
        running = self.rate * self.shape.model_seconds * self.shape.memory(costs)
        return costs.process + awake * costs.actor + agents + transcripts + running


CASES = (
    Case(name="private bot", shape=CHAT, people=3, minutes=1, daily=300),
    Case(name="support, 10,000 users", shape=CHAT, people=1_000, minutes=3, daily=50_000),
    Case(name="agent with tools", shape=TOOLS, people=50, minutes=5, daily=2_000),
)


@attrs.frozen(kw_only=True)
class Machine:
    """The limits of a node and its model."""

    memory: float = 2 * GIB
    disk: float = 100 * GB
    days: int = 365
    """How long everything is kept."""
    tokens: float = 2e6
    """The model's limit per minute."""

    def shares(self, case: Case, costs: UnitCosts) -> dict[str, float]:
        """Return the share of each limit that a bot needs at its peak."""
        stored = case.daily * case.shape.rows * costs.stored * self.days
        return {
            "processor": case.rate / case.shape.planned_rate(costs),
            "memory": (case.memory(costs) - costs.process) / (self.memory - costs.process),
            "disk": stored / self.disk,
            "model": case.rate * 60 * case.shape.tokens / self.tokens,
        }
