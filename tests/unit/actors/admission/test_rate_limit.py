"""Token buckets of the rate limiter."""

from __future__ import annotations

import pytest
import trio

from hermes.actors.admission.rate_limit import RateLimit, RateLimiter


class ManualClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_bucket_starts_full_and_refills_over_time():
    clock = ManualClock()
    limiter = RateLimiter(RateLimit(per_minute=60, burst=3), clock)
    took = [limiter.take(limiter.bucket("a")) for _ in range(5)]
    assert took == [True, True, True, False, False]
    clock.now += 0.9
    assert not limiter.take(limiter.bucket("a"))
    clock.now += 0.2
    assert limiter.take(limiter.bucket("a"))
    assert not limiter.take(limiter.bucket("a"))
    clock.now += 1000
    assert [limiter.take(limiter.bucket("a")) for _ in range(4)] == [True, True, True, False]


def test_a_bucket_uses_the_time_of_sending_and_never_refills_twice_for_the_same_time():
    limiter = RateLimiter(RateLimit(per_minute=60, burst=1), ManualClock())
    took = [limiter.take(limiter.bucket("a", at)) for at in (1e9, 1e9 + 1, 1e9 + 1, 1e9 + 2)]
    assert took == [True, True, False, True]
    for at in (5.0, 1e9 + 2, 5.0, 1e9 + 2):  # old messages that are edited repeatedly
        assert not limiter.take(limiter.bucket("a", at))


def test_buckets_are_independent():
    limiter = RateLimiter(RateLimit(burst=1), ManualClock())
    assert limiter.take(limiter.bucket("a"))
    assert not limiter.take(limiter.bucket("a"))
    assert limiter.take(limiter.bucket("b"))


def test_the_number_of_buckets_is_bounded_and_the_least_recently_used_is_evicted():
    limiter = RateLimiter(RateLimit(burst=1), ManualClock(), limit=3)
    for name in ("a", "b", "c"):
        assert limiter.take(limiter.bucket(name))
    limiter.bucket("a")
    limiter.bucket("d")
    assert len(limiter) == 3
    assert not limiter.take(limiter.bucket("a"))
    assert limiter.take(limiter.bucket("b"))


def test_a_principal_is_notified_once_a_minute():
    clock = ManualClock()
    limiter = RateLimiter(RateLimit(), clock)
    notified = []
    for _ in range(5):
        notified.append(limiter.may_notify(limiter.bucket("a")))
        clock.now += 25
    assert notified == [True, False, False, True, False]


def test_a_clock_that_goes_back_refills_nothing():
    clock = ManualClock()
    limiter = RateLimiter(RateLimit(burst=1), clock)
    limiter.take(limiter.bucket("a"))
    clock.now -= 50
    assert not limiter.take(limiter.bucket("a"))


@pytest.mark.parametrize("rates", [{"per_minute": 0}, {"per_minute": -1}, {"burst": 0}])
def test_rates_that_admit_nothing_are_refused(rates):
    with pytest.raises(ValueError, match="RateLimit"):
        RateLimit(**rates)


async def test_the_default_clock_is_trios(autojump_clock):
    limiter = RateLimiter(RateLimit(per_minute=60, burst=1))
    assert limiter.take(limiter.bucket("a"))
    assert not limiter.take(limiter.bucket("a"))
    await trio.sleep(1.01)
    assert limiter.take(limiter.bucket("a"))
