"""Prices of model calls."""

from __future__ import annotations

from hermes.agents import Price
from hermes.messages import Usage


def test_a_price_counts_each_bucket():
    usage = Usage(input_tokens=1, output_tokens=10, cache_read_tokens=100, cache_write_tokens=1000)
    price = Price(input=1e6, output=2e6, cache_read=0.5e6, cache_write=3e6)
    assert price.of(usage) == 1 + 20 + 50 + 3000
    assert Price(input=1e6).of(usage) == 1 + 100 + 1000
