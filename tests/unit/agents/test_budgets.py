"""Prices of model calls, and calls without one."""

from __future__ import annotations

from hermes.agents import Price, Spending
from hermes.messages import Usage


def test_a_price_counts_each_bucket():
    usage = Usage(input_tokens=1, output_tokens=10, cache_read_tokens=100, cache_write_tokens=1000)
    price = Price(input=1e6, output=2e6, cache_read=0.5e6, cache_write=3e6)
    assert price.of(usage) == 1 + 20 + 50 + 3000
    assert Price(input=1e6).of(usage) == 1 + 100 + 1000


def test_a_call_has_a_cost_if_its_model_has_a_price():
    spending = Spending({"m": Price(input=1e6)})
    assert spending.priced(Usage(model="m", input_tokens=2)).cost == 2
    assert spending.priced(Usage(model="m", input_tokens=2, cost=3.0)).cost == 3
    assert spending.priced(Usage(model="n", input_tokens=2)).cost is None


def test_a_call_whose_tokens_are_not_reported_has_no_cost():
    assert Spending({"m": Price(input=1e6)}).priced(Usage(model="m")).cost is None
