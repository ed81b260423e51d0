"""Counters of a runtime: numbers, and the names of statuses, reasons and classes."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable

import msgspec
import trio

from hermes.messages import BuildReason, Reply, ReplyStatus, Usage

WINDOW_SECONDS = 60.0
MAX_COMMITS = 4096
"""How many commit times are kept: the latest ones, if the window has more."""
COMMIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histogram of commit times, in seconds."""
MAX_KINDS = 50
OTHER = "other"


class Latency(msgspec.Struct, frozen=True):
    """Commit times in seconds: count and total since the start, the rest of the last minute."""

    count: int = 0
    total: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    counts: tuple[int, ...] = ()
    """Commits since the start by `COMMIT_BOUNDS`; the last number has the longer ones."""


class Spending(msgspec.Struct, frozen=True):
    """Totals of the provider calls of turns."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost: float = 0.0


class CommitTimes:
    """A bounded record of commit times."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=MAX_COMMITS)
        self._counts = [0] * (len(COMMIT_BOUNDS) + 1)
        self._total = 0.0

    def add(self, started: float, ended: float, turn_id: int = 0) -> None:
        """Record the commit of a turn; both times are on Trio's clock."""
        self._recent.append((ended, ended - started, turn_id))
        self._counts[bisect_left(COMMIT_BOUNDS, ended - started)] += 1
        self._total += ended - started

    def seconds_of(self, turn_id: int) -> float | None:
        """Return how long the commit of a turn took; None if it is not among the latest."""
        found = (seconds for _, seconds, turn in reversed(self._recent) if turn == turn_id)
        return next(found, None)

    def by_second(self, now: float, seconds: int) -> list[int]:
        """Return how many commits ended in each of the last seconds, oldest first."""
        counts = [0] * seconds
        for ended, _, _ in self._recent:
            if 0 <= (age := int(now - ended)) < seconds:
                counts[seconds - 1 - age] += 1
        return counts

    def latency(self, now: float) -> Latency:
        """Return the statistics."""
        since = now - WINDOW_SECONDS
        times = sorted(seconds for ended, seconds, _ in self._recent if ended >= since)
        recent = (rank(times, 0.5), rank(times, 0.99), times[-1]) if times else (0.0, 0.0, 0.0)
        return Latency(sum(self._counts), self._total, *recent, tuple(self._counts))


def rank(ordered: list[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class RuntimeMetrics:
    """The counters of one runtime."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.builds: Counter[BuildReason] = Counter()
        self.reuses = 0
        self.turns: Counter[ReplyStatus] = Counter()
        self.errors: Counter[str] = Counter()
        self.last_error: tuple[str, float] | None = None
        self.commits: CommitTimes = CommitTimes()
        self._calls = self._input = self._output = self._cached = 0
        self._cost = 0.0

    def count_reply(self, reply: Reply) -> None:
        """Count the outcome of a message."""
        self.turns[reply.status] += 1
        for call in reply.usage:
            self._count_call(call)
        if reply.error_kind is not None:
            self._count_error(reply.error_kind)

    def _count_call(self, call: Usage) -> None:
        self._calls += 1
        self._input += call.input_tokens
        self._output += call.output_tokens
        self._cached += call.cache_read_tokens
        self._cost += call.cost or 0.0

    def _count_error(self, kind: str) -> None:
        known = kind in self.errors or len(self.errors) < MAX_KINDS
        self.errors[kind if known else OTHER] += 1
        self.last_error = (kind, self._wall())

    @property
    def spending(self) -> Spending:
        """Provider calls so far."""
        return Spending(self._calls, self._input, self._output, self._cached, self._cost)

    def latency(self) -> Latency:
        """Commit times."""
        return self.commits.latency(trio.current_time())
