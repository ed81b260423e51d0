"""`validated`: a configuration with a value that is not allowed is refused in one sentence."""

from __future__ import annotations

import math

import pytest

from hermes.config import CompressionConfig, Config, validated
from hermes.messages import ExpiryPolicy

WRONG = {
    "Config.when_busy": Config(when_busy="drop"),
    "Config.when_busy_by_platform[...]": Config(when_busy_by_platform={"telegram": "drop"}),
    "Config.turn_timeout": Config(turn_timeout=0),
    "Config.max_agents": Config(max_agents=0),
    "Config.max_queued": Config(max_queued=1.5),
    "Config.drain_timeout": Config(drain_timeout="30"),
    "Config.expiry.mode": Config(expiry=ExpiryPolicy(mode="often")),
    "Config.compression.share": Config(compression=CompressionConfig(share=1.5)),
    "Config": object(),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_is_not_allowed_is_named(name):
    with pytest.raises(ValueError, match="is not allowed: ") as raised:
        validated(WRONG[name])
    assert str(raised.value).startswith(f"{name} is not allowed: ")
    assert "\n" not in str(raised.value)


def test_a_valid_configuration_is_returned_unchanged():
    for config in (Config(), Config(turn_timeout=math.inf, max_agents=1, idle_timeout=1)):
        assert validated(config) is config


async def test_a_runtime_does_not_start_with_it(start, path):
    with pytest.raises(ValueError, match=r"Config\.when_busy is not allowed"):
        async with start(config=Config(when_busy="drop")):
            pass
    assert not path.exists()
