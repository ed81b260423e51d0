"""How often somebody may do something: a bucket of tokens each, on Trio's clock, bounded."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable

import attrs
import trio

MAX_BUCKETS = 10_000


@attrs.frozen(kw_only=True)
class RateLimit:
    """How many messages a principal may send: so many a minute, and so many at once."""

    per_minute: float = 30.0
    burst: int = 30

    def __attrs_post_init__(self) -> None:
        if not (self.per_minute > 0 and self.burst >= 1):
            raise ValueError("rates are above zero: a message a minute, and one at once, at least")


@attrs.define(eq=False)
class TokenBucket:
    """What one of them has left; `told` is when he last heard that it was too much."""

    left: float
    at: float
    told: float = -math.inf
    known: bool = False
    """Whether he was let in when he was last looked up."""


class RateLimiter:
    """The buckets of those who were here last. Who was long gone has a full one again."""

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

    def of(self, name: Hashable, at: float | None = None) -> TokenBucket:
        """His bucket, with what has flown in since; until `at`, where another clock counts."""
        now = self._clock() if at is None else at
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(self._rates.burst, now)
            if len(self._buckets) > self._limit:
                self._buckets.popitem(last=False)
        flown = max(now - bucket.at, 0.0) * self._rates.per_minute / 60
        bucket.left = min(bucket.left + flown, self._rates.burst)
        bucket.at = max(bucket.at, now)  # what comes late must not have the same time flow twice
        self._buckets.move_to_end(name)
        return bucket

    def take(self, bucket: TokenBucket) -> bool:
        """Use up a token; False where there is none."""
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True

    def may_tell(self, bucket: TokenBucket, seconds: float = 60.0) -> bool:
        """Whether it is time to say again that it was too much; counts as said."""
        now = self._clock()
        if now < bucket.told + seconds:
            return False
        bucket.told = now
        return True
