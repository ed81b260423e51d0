"""`next_expiry`: a pure function of policy, activity and the local calendar."""

from __future__ import annotations

import time
from contextlib import contextmanager
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings, strategies as st

from hermes.messages import ExpiryPolicy
from hermes.store.conversations.routes import next_expiry

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # changed its clocks at midnight until 2019
    "Australia/Lord_Howe",  # changes its clocks by half an hour
    "Asia/Kathmandu",
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Kiritimati",
    "America/St_Johns",
]
MOMENTS = st.floats(
    datetime(2005, 1, 1, tzinfo=ZoneInfo("UTC")).timestamp(),
    datetime(2035, 1, 1, tzinfo=ZoneInfo("UTC")).timestamp(),
)
HOURS = st.integers(0, 23)
MINUTES = st.floats(0.01, 100_000)


@contextmanager
def local_time(zone):
    """Set the local time zone of the process during a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        try:
            yield ZoneInfo(zone)
        finally:
            patch.undo()
            time.tzset()


def at(zone, *when, fold=0):
    return datetime(*when, tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def hour_of_day(zone, day, hour):
    """Return the time of this hour of the day; if the hour is skipped, the time of the change."""
    return datetime(day.year, day.month, day.day, hour, tzinfo=zone).timestamp()


@given(moment=MOMENTS, minutes=MINUTES, hour=HOURS)
def test_none_never_expires(moment, minutes, hour):
    policy = ExpiryPolicy(mode="none", idle_minutes=minutes, at_hour=hour)
    assert next_expiry(policy, moment) is None


def test_the_default_never_expires():
    assert next_expiry(ExpiryPolicy(), 0.0) is None


@given(moment=MOMENTS, minutes=MINUTES, hour=HOURS)
def test_idle_is_exact(moment, minutes, hour):
    policy = ExpiryPolicy(mode="idle", idle_minutes=minutes, at_hour=hour)
    assert next_expiry(policy, moment) == moment + minutes * 60
    assert next_expiry(policy, moment) > moment


@pytest.mark.parametrize("zone", ZONES)
@settings(deadline=None)
@given(moment=MOMENTS, hour=HOURS)
@example(moment=1331000000.25, hour=2)
@example(moment=datetime(2011, 12, 30, 9, tzinfo=ZoneInfo("UTC")).timestamp(), hour=4)
@example(moment=datetime(2018, 11, 4, 2, 59, tzinfo=ZoneInfo("UTC")).timestamp(), hour=0)
def test_daily_is_the_next_time_the_clock_shows_the_hour(zone, moment, hour):
    with local_time(zone) as there:
        found = next_expiry(ExpiryPolicy(mode="daily", at_hour=hour), moment)
        assert found > moment
        today = datetime.fromtimestamp(moment, there).date()
        candidates = [hour_of_day(there, today + timedelta(days=n), hour) for n in range(-1, 3)]
        assert found == min(due for due in candidates if due > moment)


@pytest.mark.parametrize("zone", ZONES)
@settings(deadline=None)
@given(moment=MOMENTS, hour=HOURS)
def test_daily_is_at_most_a_day_and_a_clock_change_away(zone, moment, hour):
    with local_time(zone):
        found = next_expiry(ExpiryPolicy(mode="daily", at_hour=hour), moment)
        assert 0 < found - moment <= 25 * 3600
        assert found == int(found)


@pytest.mark.parametrize("zone", ZONES)
@settings(deadline=None, max_examples=50)
@given(moment=MOMENTS, minutes=MINUTES, hour=HOURS)
def test_both_is_the_earlier_of_the_two(zone, moment, minutes, hour):
    with local_time(zone):
        idle, daily, both = (
            next_expiry(ExpiryPolicy(mode=mode, idle_minutes=minutes, at_hour=hour), moment)
            for mode in ("idle", "daily", "both")
        )
        assert both == min(idle, daily)


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("active", "hour", "due"),
    [
        # An ordinary day.
        (at(BERLIN, 2026, 1, 15, 3, 59), 4, at(BERLIN, 2026, 1, 15, 4)),
        (at(BERLIN, 2026, 1, 15, 4), 4, at(BERLIN, 2026, 1, 16, 4)),
        (at(BERLIN, 2026, 1, 15, 23), 0, at(BERLIN, 2026, 1, 16, 0)),
        (at(BERLIN, 2026, 12, 31, 12), 4, at(BERLIN, 2027, 1, 1, 4)),
        # Clocks go forward on 29 March at two: the day has 23 hours, and no two o'clock.
        (at(BERLIN, 2026, 3, 28, 5), 4, at(BERLIN, 2026, 3, 29, 4)),
        (at(BERLIN, 2026, 3, 28, 12), 2, at(BERLIN, 2026, 3, 29, 3)),
        (at(BERLIN, 2026, 3, 29, 1, 59), 2, at(BERLIN, 2026, 3, 29, 3)),
        (at(BERLIN, 2026, 3, 29, 3), 2, at(BERLIN, 2026, 3, 30, 2)),
        # Clocks go back on 25 October at three: the day has 25 hours, and two o'clock twice.
        (at(BERLIN, 2026, 10, 24, 5), 4, at(BERLIN, 2026, 10, 25, 4)),
        (at(BERLIN, 2026, 10, 25, 1), 2, at(BERLIN, 2026, 10, 25, 2)),
        (at(BERLIN, 2026, 10, 25, 2, 30), 2, at(BERLIN, 2026, 10, 26, 2)),
        (at(BERLIN, 2026, 10, 25, 2, 30, fold=1), 2, at(BERLIN, 2026, 10, 26, 2)),
        (at(BERLIN, 2026, 10, 25, 2, 30, fold=1), 4, at(BERLIN, 2026, 10, 25, 4)),
    ],
)
def test_daily_follows_local_time_when_clocks_change(active, hour, due):
    with local_time(BERLIN):
        assert next_expiry(ExpiryPolicy(mode="daily", at_hour=hour), active) == due


def test_a_night_with_a_clock_change_is_an_hour_shorter_or_longer():
    with local_time(BERLIN):
        policy = ExpiryPolicy(mode="daily", at_hour=4)
        nights = [
            next_expiry(policy, at(BERLIN, *evening, 20)) - at(BERLIN, *evening, 20)
            for evening in ((2026, 1, 15), (2026, 3, 28), (2026, 10, 24))
        ]
    assert nights == [8 * 3600, 7 * 3600, 9 * 3600]
