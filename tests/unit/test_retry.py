"""`Backoff`: doubling delays with an upper bound."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hermes.retry import Backoff


@given(st.floats(0.001, 10), st.floats(10, 1000), st.integers(1, 30), st.integers(0, 30))
def test_delays_double_up_to_a_bound_and_start_again_after_a_success(first, longest, count, more):
    backoff = Backoff(first, longest)
    expected = [min(first * 2**n, longest) for n in range(count)]
    assert [backoff.next() for _ in range(count)] == expected
    backoff.reset()
    assert [backoff.next() for _ in range(more)] == [
        min(first * 2**n, longest) for n in range(more)
    ]
