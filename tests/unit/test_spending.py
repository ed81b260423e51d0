"""Prices, and the names under which agents are found."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hermes.agents
from hermes.agents import Price
from hermes.messages import Usage


def test_a_price_counts_each_bucket():
    usage = Usage(input_tokens=1, output_tokens=10, cache_read_tokens=100, cache_write_tokens=1000)
    price = Price(input=1e6, output=2e6, cache_read=0.5e6, cache_write=3e6)
    assert price.of(usage) == 1 + 20 + 50 + 3000
    assert Price(input=1e6).of(usage) == 1 + 100 + 1000


@pytest.mark.parametrize("name", hermes.agents.__all__)
def test_every_name_is_there(name):
    assert getattr(hermes.agents, name).__name__ == name or name == "tool"


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = hermes.agents.Nobody


def test_the_bot_starts_without_an_http_client():
    loaded = "{'httpx2', 'mcp'} & set(sys.modules)"
    code = f"import hermes.run.__main__, sys; sys.exit(bool({loaded}))"
    subprocess.run([sys.executable, "-c", code], check=True)
