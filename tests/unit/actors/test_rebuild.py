"""`rebuild_reason`: the decision table, and what never causes a rebuild."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from hermes.actors.rebuild import rebuild_reason
from hermes.messages import Head, Snapshot

HEAD = Head("s", 10, 20)
SAME, OLDER = HEAD, Head("s", 10, 19)


def snapshot(signature="sig", count=10, session="s"):
    return Snapshot(object(), signature, count, session)


@pytest.mark.parametrize(
    ("cached", "baseline", "reason"),
    [
        (None, None, "cold"),
        (None, SAME, "cold"),
        (snapshot("other"), SAME, "signature"),
        (snapshot("other"), OLDER, "signature"),
        (snapshot("other", None, None), None, "signature"),
        (snapshot(), SAME, None),
        (snapshot(), OLDER, "foreign-write"),
        (snapshot(), Head("s", 10, 21), None),
        (snapshot(), Head("s", 9, 20), None),  # the revision decides, not the count
        (snapshot(count=9), SAME, None),
        (snapshot(count=10), None, None),
        (snapshot(count=9), None, "foreign-write"),
        (snapshot(count=11), None, "foreign-write"),
        (snapshot(count=None), OLDER, None),
        (snapshot(count=None), None, None),
        (snapshot(session="another"), OLDER, None),
        (snapshot(session="another", count=3), None, None),
        (snapshot(session=None), SAME, None),
        (snapshot(session=None), OLDER, "foreign-write"),
        (snapshot(session=None, count=3), None, "foreign-write"),
    ],
)
def test_the_decision_table(cached, baseline, reason):
    assert rebuild_reason(cached, "sig", HEAD, baseline) == reason


HEADS = st.builds(Head, st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3))
SNAPSHOTS = st.builds(
    Snapshot,
    st.none(),
    st.just("sig"),
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from("ab"),
)


@given(SNAPSHOTS, HEADS)
def test_an_agent_is_reused_after_our_own_turn(cached, head):
    assert rebuild_reason(cached, "sig", head, head) is None


@given(SNAPSHOTS, HEADS, HEADS)
def test_counts_of_different_sessions_are_never_compared(cached, head, earlier):
    if cached.session_id not in {None, head.session_id}:
        assert rebuild_reason(cached, "sig", head, earlier) is None
        assert rebuild_reason(cached, "sig", head, None) is None
