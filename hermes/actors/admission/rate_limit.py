"""Rate limits: a token bucket for each principal, on Trio's clock."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable

import attrs
import trio

from hermes.config import RateLimit

MAX_BUCKETS = 10_000


@attrs.define(eq=False)
class TokenBucket:
    """The tokens that one principal has left."""

    left: float
    at: float
    notified: float = -math.inf
    """When the principal was last told that it exceeded the limit."""
    known: bool = False
    """Whether the principal was admitted when it was last looked up."""


class RateLimiter:
    """Bounded LRU of token buckets; an evicted principal starts with a full one."""

    def __init__(
        self,
        rates: RateLimit,
        clock: Callable[[], float] = trio.current_time,
        limit: int = MAX_BUCKETS,
    ) -> None:
        self._rates = rates
        self._clock = clock
        self._limit = limit
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, name: Hashable, at: float | None = None) -> TokenBucket:
        """Return the principal's bucket, refilled up to `at` (default: now)."""
        now = self._clock() if at is None else at
        bucket = self._buckets.pop(name, None) or self._new_bucket(now)
        self._buckets[name] = bucket  # at the end: the least recently used come first
        refill = max(now - bucket.at, 0.0) * self._rates.per_minute / 60
        bucket.left = min(bucket.left + refill, self._rates.burst)
        bucket.at = max(bucket.at, now)  # a late message must not refill the same time twice
        return bucket

    def _new_bucket(self, now: float) -> TokenBucket:
        """Return a full bucket, and make room for it."""
        if len(self._buckets) >= self._limit:
            self._buckets.popitem(last=False)
        return TokenBucket(self._rates.burst, now)

    @property
    def rates(self) -> RateLimit:
        """The limits of each principal."""
        return self._rates

    def levels(self) -> list[tuple[float, Hashable]]:
        """Return what is left to each principal now, and its name; the least first."""
        rates, now = self._rates, self._clock()
        found = [
            (min(each.left + max(now - each.at, 0.0) * rates.per_minute / 60, rates.burst), name)
            for name, each in self._buckets.items()
        ]
        return sorted(found, key=lambda level: level[0])

    def take(self, bucket: TokenBucket) -> bool:
        """Take a token; False if there is none."""
        available = bucket.left >= 1
        bucket.left -= available
        return available

    def may_notify(self, bucket: TokenBucket, seconds: float = 60.0) -> bool:
        """Whether to tell the principal again; if so, the time is recorded."""
        now = self._clock()
        if now < bucket.notified + seconds:
            return False
        bucket.notified = now
        return True
