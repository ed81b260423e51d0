"""Counters of a runtime: bounded, and right about what they kept."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from hermes.actors.metrics import MAX_COMMITS, MAX_KINDS, OTHER, CommitTimes, RuntimeMetrics, rank
from hermes.messages import Reply


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_rank_is_exceeded_by_no_more_than_its_share(values, share):
    ordered = sorted(values)
    found = rank(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= math.ceil(share * len(ordered))
    assert sum(value < found for value in ordered) < math.ceil(share * len(ordered))


def test_only_the_last_minute_is_lately_and_nothing_is_forgotten_in_all():
    commits = CommitTimes()
    commits.add(0.0, 5.0)
    commits.add(100.0, 101.0)
    commits.add(100.0, 103.0)
    lately = commits.latency(120.0)
    assert (lately.count, lately.total) == (3, 9.0)
    assert (lately.p50, lately.p99, lately.longest) == (1.0, 3.0, 3.0)
    assert commits.latency(65.0).longest == 5.0
    later = commits.latency(1000.0)
    assert (later.count, later.p50, later.longest) == (3, 0.0, 0.0)


def test_what_is_kept_of_commits_is_bounded():
    commits = CommitTimes()
    for _ in range(MAX_COMMITS + 10):
        commits.add(0.0, 1.0)
    assert len(commits._lately) == MAX_COMMITS
    assert commits.latency(1.0).count == MAX_COMMITS + 10


def test_kinds_of_errors_are_bounded():
    counts = RuntimeMetrics(lambda: 7.0)
    for number in range(MAX_KINDS + 5):
        kind = f"E{number}"
        counts.told(Reply(text="", session_id="", turn_id=1, status="failed", error_kind=kind))
    assert len(counts.errors) == MAX_KINDS + 1
    assert counts.errors[OTHER] == 5
    assert counts.last_error == (f"E{MAX_KINDS + 4}", 7.0)
    assert counts.turns == {"failed": MAX_KINDS + 5}
