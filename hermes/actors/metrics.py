"""What a runtime has done since it began. Counting is a few additions; working it out comes later.

Nothing in here is anybody's words: numbers, and the names of statuses, reasons and classes.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable

import msgspec
import trio

from hermes.messages import Reply, ReplyStatus

WINDOW_SECONDS = 60.0
MAX_COMMITS = 4096
"""Commits that are remembered: the last ones of the window, where it had more."""
MAX_KINDS = 50
OTHER = "other"


class Latency(msgspec.Struct, frozen=True):
    """How long commits took: since the beginning in all, and lately one by one; in seconds."""

    count: int = 0
    total: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0


class Spending(msgspec.Struct, frozen=True):
    """What the providers were asked for by turns."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0


class CommitTimes:
    """A bounded record of how long commits took."""

    def __init__(self) -> None:
        self._lately: deque[tuple[float, float]] = deque(maxlen=MAX_COMMITS)
        self._count = 0
        self._total = 0.0

    def add(self, begun: float, ended: float) -> None:
        """A turn is on disk; both times are of Trio's clock."""
        self._lately.append((ended, ended - begun))
        self._count += 1
        self._total += ended - begun

    def latency(self, now: float) -> Latency:
        """Of the last minute."""
        since = now - WINDOW_SECONDS
        took = sorted(seconds for ended, seconds in self._lately if ended >= since)
        if not took:
            return Latency(self._count, self._total)
        return Latency(self._count, self._total, rank(took, 0.5), rank(took, 0.99), took[-1])


def rank(ordered: list[float], share: float) -> float:
    """The smallest value that is not exceeded by at least this share of them."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class RuntimeMetrics:
    """The counters of one runtime."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.reuses = 0
        self.turns: Counter[ReplyStatus] = Counter()
        self.errors: Counter[str] = Counter()
        self.last_error: tuple[str, float] | None = None
        self.commits = CommitTimes()
        self._calls = self._input = self._output = self._cached = 0
        self._cost = 0.0

    def told(self, reply: Reply) -> None:
        """A message has had its end."""
        self.turns[reply.status] += 1
        for call in reply.usage:
            self._calls += 1
            self._input += call.input_tokens
            self._output += call.output_tokens
            self._cached += call.cache_read_tokens
            self._cost += call.cost or 0.0
        if reply.error_kind is not None:
            self._failed(reply.error_kind)

    def _failed(self, kind: str) -> None:
        known = kind in self.errors or len(self.errors) < MAX_KINDS
        self.errors[kind if known else OTHER] += 1
        self.last_error = (kind, self._wall())

    @property
    def spending(self) -> Spending:
        """What was asked of providers so far."""
        return Spending(self._calls, self._input, self._output, self._cached, self._cost)

    def latency(self) -> Latency:
        """How long commits took lately."""
        return self.commits.latency(trio.current_time())
