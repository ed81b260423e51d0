"""Where conversations are placed, and which ones a loaded node gives away."""

from __future__ import annotations

from collections import Counter

from hypothesis import assume, given, strategies as st

from hermes.store.cluster.placement import SHARE, TOLERANCE, place, surplus

nodes = st.sets(st.integers(1, 50), min_size=1, max_size=8)
keys = st.lists(st.text(max_size=20), unique=True, max_size=60)


@given(key=st.text(), nodes=nodes)
def test_all_nodes_place_a_key_on_the_same_one(key, nodes):
    assert place(key, nodes) == place(key, sorted(nodes, reverse=True))
    assert place(key, nodes) in nodes


def test_without_nodes_a_key_is_placed_nowhere():
    assert place("key", []) is None


@given(key=st.text(), nodes=nodes, other=st.integers(51, 99))
def test_a_new_node_gets_keys_and_moves_no_other(key, nodes, other):
    assert place(key, nodes | {other}) in {place(key, nodes), other}


def test_keys_are_spread_evenly():
    counts = Counter(place(f"telegram:{number}", [1, 2, 3]) for number in range(3000))
    assert min(counts.values()) > 900


@given(idle=keys, busy=st.integers(0, 500), others=st.lists(st.integers(0, 300), max_size=5))
def test_a_node_gives_away_at_most_a_share_and_never_falls_below_the_mean(idle, busy, others):
    owned = {1: busy + len(idle), **dict(enumerate(others, start=2))}
    away = surplus(1, owned, idle)
    mean = sum(owned.values()) / len(owned)
    assert len(away) <= owned[1] * SHARE + 1
    assert not away or owned[1] - len(away) >= mean
    assert not away or owned[1] > TOLERANCE * mean
    assert all(place(key, owned) != 1 for key in away)
    assert away == [key for key in idle if key in away]  # the least recently used first


@given(number=st.integers(40, 200))
def test_a_node_that_joins_late_gets_its_share_in_the_end(number):
    mine = {f"key {each}" for each in range(number)}
    theirs: set[str] = set()
    for _ in range(200):
        away = surplus(1, {1: len(mine), 2: len(theirs)}, sorted(mine))
        mine -= set(away)
        theirs |= set(away)
    assume(sum(place(key, [1, 2]) == 2 for key in mine | theirs) >= number * 0.4)
    assert len(mine) <= TOLERANCE * number / 2
