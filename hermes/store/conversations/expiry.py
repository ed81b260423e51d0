"""When a conversation is over by itself: a pure function of its policy and its last activity."""

from __future__ import annotations

from datetime import datetime, timedelta

from hermes.messages import ExpiryPolicy


def next_expiry(policy: ExpiryPolicy, active_at: float) -> float | None:
    """The moment at which a conversation last active then is over; None for never."""
    moments: list[float] = []
    if policy.mode in {"idle", "both"}:
        moments.append(active_at + policy.idle_minutes * 60)
    if policy.mode in {"daily", "both"}:
        moments.append(_next_hour(active_at, policy.at_hour))
    return min(moments, default=None)


def _next_hour(moment: float, hour: int) -> float:
    # By the calendar, not by adding seconds: a day with a change of the clocks has 23 or 25 hours.
    local = datetime.fromtimestamp(moment).astimezone()
    today = local.replace(hour=hour, minute=0, second=0, microsecond=0, tzinfo=None)
    due = today.timestamp()
    return due if due > moment else (today + timedelta(days=1)).timestamp()
