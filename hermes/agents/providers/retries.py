"""Retries of calls to a model provider."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
import trio

from hermes.agents.providers.base import Unavailable
from hermes.retry import Backoff

NO_TIME = "no time is left for another attempt"

R = TypeVar("R")


@attrs.frozen(kw_only=True)
class Retries:
    """How often, and after which delays, a call is retried that failed with `Unavailable`.

    We do not use a retry library: a retry must honour the `Retry-After` of the provider and the
    deadline of the turn, and `ChatAgent` resumes a stream where the last attempt ended.
    """

    max_attempts: int = 5
    """Maximum number of attempts, including the first."""
    first_delay: float = 0.5
    """Seconds before the second attempt; doubled each time, with random jitter."""
    max_delay: float = 30.0
    """Maximum number of seconds between two attempts."""
    max_retry_after: float = 60.0
    """If the provider asks for a longer delay than this, the call fails instead."""

    async def run(
        self,
        call: Callable[[], Awaitable[R]],
        deadline: float = math.inf,
        on_retry: Callable[[float, Unavailable], object] = lambda _seconds, _error: None,
    ) -> R:
        """Call until it succeeds, and return the result.

        `on_retry` is called before each delay, with its length and the reason.

        Raises the last `Unavailable` if no attempt is left, or if the next one would begin after
        `deadline`, a time on Trio's clock. Other exceptions are raised at once.
        """
        backoff = Backoff(self.first_delay, self.max_delay)
        failures = 0
        while True:
            try:
                return await call()
            except Unavailable as error:
                failures += 1
                requested = error.retry_after or 0.0
                if failures >= self.max_attempts or requested > self.max_retry_after:
                    raise
                # Jitter spreads the load when a provider recovers.
                delay = max(requested, backoff.next() * random.uniform(0.5, 1.0))
                if trio.current_time() + delay >= deadline:
                    text, limited = f"{error}; {NO_TIME}", error.rate_limited
                    raise Unavailable(text, rate_limited=limited) from error
                on_retry(delay, error)
                await trio.sleep(delay)
