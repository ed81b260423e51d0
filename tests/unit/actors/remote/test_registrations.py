"""What nodes have announced, and what the database says about their listeners."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.actors.remote.registrations import GRACE, Registrations

PAIRS = st.sets(st.tuples(st.integers(1, 3), st.sampled_from("abc")))


def held(registrations):
    return {(node, key) for key in "abc" for node in registrations.nodes(key)}


@given(announced=PAIRS, stored=PAIRS)
def test_the_database_is_complete_but_may_be_late(announced, stored):
    registrations = Registrations()
    for node, key in announced:
        assert registrations.add(node, key, 100.0)
        assert not registrations.add(node, key, 100.0)
    assert registrations.update(stored, 100.0 + GRACE) == sorted(stored - announced)
    assert held(registrations) == announced | stored
    registrations.update(stored, 101.0 + GRACE)
    assert held(registrations) == stored
    assert {key for key in "abc" if key in registrations} == {key for _, key in stored}
    for node, key in stored:
        registrations.remove(node, key)
        registrations.remove(node, key)
    assert held(registrations) == set()
