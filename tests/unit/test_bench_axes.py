"""Ticks are round numbers around the values, and every value has a place between them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from bench.axes import linear_ticks, log_ticks, number, scale

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=1e-90, max_value=1e90)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 722, ["0", "200", "400", "600", "800"]),
        (0, 16_774, ["0", "5,000", "10,000", "15,000", "20,000"]),
        (0, 0.31, ["0", "0.1", "0.2", "0.3", "0.4"]),
        (-3, 5, ["-4", "-2", "0", "2", "4", "6"]),
        (0, 0, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0, 4_000_000, ["0", "1M", "2M", "3M", "4M"]),
    ],
)
def test_linear_ticks_are_few_and_round(low, high, ticks):
    assert [number(tick) for tick in linear_ticks(low, high)] == ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (10, 10_000, "10 20 50 100 200 500 1,000 2,000 5,000 10,000"),
        (1.74, 2_138, "1 10 100 1,000 10,000"),
        (0.04, 164, "0.01 0.1 1 10 100 1,000"),
        (730, 16_774, "500 1,000 2,000 5,000 10,000 20,000"),
        (3.2, 4.1, "3 4 5"),
        (1, 1, "0.8 1 1.5"),
        (1e-12, 1e12, "1e-13 1e-09 1e-05 0.1 1,000 10M 100G 1e+15"),
    ],
)
def test_logarithmic_ticks_are_powers_of_ten_and_some_between(low, high, ticks):
    assert [number(tick) for tick in log_ticks(low, high)] == ticks.split()


@given(st.lists(POSITIVE, min_size=1))
def test_logarithmic_ticks_lie_around_the_values(values):
    ticks = log_ticks(min(values), max(values))
    assert ticks[0] <= min(values) * (1 + 1e-9)
    assert ticks[-1] >= max(values) * (1 - 1e-9)
    assert list(ticks) == sorted(set(ticks))
    assert 2 <= len(ticks) <= 16


@given(st.lists(NUMBERS, min_size=1), st.booleans(), NUMBERS)
def test_every_value_has_a_place_inside(values, log, other):
    along = scale(values, 10, 500, log=log)
    assert all(10 <= along.at(value) <= 500 for value in [*values, other])
    assert 2 <= len(along.ticks) <= 16


@given(st.lists(POSITIVE, min_size=2), st.booleans())
def test_larger_values_lie_further_along(values, log):
    along = scale(values, 0, 100, log=log)
    places = [along.at(value) for value in sorted(values)]
    assert places == sorted(places)


def test_equal_ratios_are_equal_lengths_on_a_logarithmic_scale():
    along = scale([1, 1_000], 0, 300, log=True)
    assert [along.at(value) for value in (1, 10, 100, 1_000)] == pytest.approx([0, 100, 200, 300])


def test_a_linear_scale_begins_at_zero():
    assert scale([70, 100], 0, 100, log=False).at(70) == pytest.approx(70)


@pytest.mark.parametrize("values", [[], [0], [0, -5]])
def test_without_a_value_above_zero_a_scale_is_linear(values):
    along = scale(values, 0, 100, log=True)
    assert not along.log
    assert math.isfinite(along.at(0))


def test_what_is_not_above_zero_lies_at_the_edge_of_a_logarithmic_scale():
    along = scale([0, 5, 500], 40, 100, log=True)
    assert along.log
    assert along.at(0) == along.at(-3) == 40
