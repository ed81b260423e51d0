"""Counters of a runtime: they are bounded, and exact about what they keep."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from hermes.actors.metrics import MAX_COMMITS, MAX_KINDS, OTHER, CommitTimes, RuntimeMetrics, rank
from hermes.messages import Reply


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_rank_is_the_smallest_value_that_the_share_does_not_exceed(values, share):
    ordered = sorted(values)
    found = rank(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= math.ceil(share * len(ordered))
    assert sum(value < found for value in ordered) < math.ceil(share * len(ordered))


def test_percentiles_cover_the_last_minute_and_totals_cover_everything():
    commits = CommitTimes()
    commits.add(0.0, 5.0)
    commits.add(100.0, 101.0)
    commits.add(100.0, 103.0)
    recent = commits.latency(120.0)
    assert (recent.count, recent.total) == (3, 9.0)
    assert (recent.p50, recent.p99, recent.longest) == (1.0, 3.0, 3.0)
    assert commits.latency(65.0).longest == 5.0
    later = commits.latency(1000.0)
    assert (later.count, later.p50, later.longest) == (3, 0.0, 0.0)


def test_the_commit_time_of_a_turn_is_that_of_its_latest_commit():
    commits = CommitTimes()
    commits.add(0.0, 5.0, 7)
    commits.add(1.0, 2.0, 8)
    commits.add(5.0, 8.0, 7)
    assert [commits.seconds_of(turn) for turn in (7, 8, 9)] == [3.0, 1.0, None]


def test_the_record_of_commit_times_is_bounded():
    commits = CommitTimes()
    commits.add(0.0, 60.0)
    for _ in range(MAX_COMMITS):
        commits.add(59.0, 60.0)
    latency = commits.latency(60.0)
    assert latency.longest == 1.0  # the first one was dropped, though it is in the window
    assert latency.count == MAX_COMMITS + 1


def test_the_number_of_error_classes_is_bounded():
    metrics = RuntimeMetrics(lambda: 7.0)
    for number in range(MAX_KINDS + 5):
        kind = f"E{number}"
        metrics.count_reply(
            Reply(text="", session_id="", turn_id=1, status="failed", error_kind=kind)
        )
    assert len(metrics.errors) == MAX_KINDS + 1
    assert metrics.errors[OTHER] == 5
    assert metrics.last_error == (f"E{MAX_KINDS + 4}", 7.0)
    assert metrics.turns == {"failed": MAX_KINDS + 5}
