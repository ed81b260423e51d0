"""Configurations: values that are not allowed are refused when the object is made."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from hermes import Config, ExpiryPolicy
from hermes.config import Budgets, CompressionConfig, Price, RateLimit
from hermes.settings import Settings

WRONG = [
    (Config, "when_busy", "drop", "expected one of 'queue', 'interrupt', 'steer', 'reject'"),
    (Config, "when_busy", None, "expected one of 'queue', 'interrupt', 'steer', 'reject'"),
    (Config, "max_queued", 0, "expected an integer >= 1"),
    (Config, "max_queued", 1.5, "expected an integer, got a number"),
    (Config, "max_queued", True, "expected an integer, got true or false"),
    (Config, "max_agents", -1, "expected an integer >= 0"),
    (Config, "transcript_bytes", -1, "expected an integer >= 0"),
    (Config, "max_attempts", 0, "expected an integer >= 1"),
    (Config, "turn_timeout", 0, "expected a number > 0"),
    (Config, "turn_timeout", math.nan, "expected a number > 0"),
    (Config, "drain_timeout", "30", "expected a number, got a string"),
    (Config, "drain_timeout", -0.1, "expected a number >= 0"),
    (Config, "idle_timeout", math.nan, "expected a number >= 0"),
    (Config, "expiry", {"mode": "idle"}, "expected an ExpiryPolicy"),
    (Config, "compression", None, "expected a CompressionConfig"),
    (Config, "expiry_by", [], "expected a table, got an array"),
    (CompressionConfig, "enabled", "no", "expected true or false, got a string"),
    (CompressionConfig, "window", 1, "expected an integer >= 2"),
    (CompressionConfig, "share", 1.0, "expected a number > 0 and < 1"),
    (CompressionConfig, "tail_share", -0.1, "expected a number >= 0 and < 1"),
    (CompressionConfig, "margin", 1, "expected a number >= 0 and < 1"),
    (CompressionConfig, "lease_timeout", 0, "expected a number > 0"),
    (CompressionConfig, "cooldowns", (1.0, -1.0), "expected a number >= 0.0"),
    (CompressionConfig, "cooldowns", 60.0, "expected an array, got a number"),
    (CompressionConfig, "max_useless", 0, "expected an integer >= 1"),
    (ExpiryPolicy, "mode", "often", "expected one of 'none', 'idle', 'daily', 'both'"),
    (ExpiryPolicy, "idle_minutes", 0, "expected a number > 0"),
    (ExpiryPolicy, "at_hour", 24, "expected an integer >= 0 and <= 23"),
    (RateLimit, "burst", 0, "expected an integer >= 1"),
    (RateLimit, "per_minute", math.nan, "expected a number > 0"),
    (Price, "input", -1.0, "expected a number >= 0"),
    (Price, "cache_read", "free", "expected a number, got a string"),
    (Budgets, "day", math.nan, "expected a number >= 0.0"),
]


@pytest.mark.parametrize(("cls", "name", "value", "expected"), WRONG)
def test_a_value_that_is_not_allowed_is_refused_in_one_sentence(cls, name, value, expected):
    message = f"{cls.__name__}.{name} is {value!r}: {expected}"
    with pytest.raises(ValueError, match=r"^\S+ is .*: expected ") as raised:
        cls(**{name: value})
    assert str(raised.value) == message
    with pytest.raises(ValueError, match=r"^\S+ is .*: expected ") as raised:
        replace(cls(), **{name: value})
    assert str(raised.value) == message


@pytest.mark.parametrize(("window", "max_output"), [(10, 20), (8000, 8000)])
def test_the_window_includes_the_answer(window, max_output):
    with pytest.raises(ValueError, match=rf"^max_output is {max_output}: .* which is {window} and"):
        CompressionConfig(window=window, max_output=max_output)
    assert CompressionConfig(window=window, max_output=window - 1).window == window


def test_values_inside_of_mappings_are_named():
    with pytest.raises(
        ValueError, match=r"Config\.when_busy_by_platform\['x'\] is 'quue': .*queue\?"
    ):
        Config(when_busy_by_platform={"x": "quue"})
    with pytest.raises(ValueError, match=r"Config\.when_busy_by_platform\[3\] is 3: .*a string"):
        Config(when_busy_by_platform={3: "queue"})
    with pytest.raises(ValueError, match=r"Config\.expiry_by\['dm'\] is 3: expected an Expiry"):
        Config(expiry_by={"dm": 3})


def test_a_long_value_is_cut():
    with pytest.raises(ValueError, match=r"^.{0,200}$"):
        Config(when_busy="x" * 10_000)


def test_an_unknown_field_is_refused():
    with pytest.raises(TypeError, match="unknown"):
        Config(unknown=1)


def test_zero_means_none_or_at_once():
    config = Config(
        drain_timeout=0, hook_drain_timeout=0, idle_timeout=0, close_timeout=0, commit_timeout=0,
        quarantine_time=0, max_agents=0, transcript_bytes=0, turn_timeout=math.inf,
        compression=CompressionConfig(tail_share=0, protect_first=0, cooldowns=[]),
    )  # fmt: skip
    assert config.drain_timeout == 0


def test_mappings_and_compression_settings_of_any_class_are_allowed():
    expiry_by = MappingProxyType({"dm": ExpiryPolicy(mode="daily")})
    config = Config(compression=Settings().compression, expiry_by=expiry_by)
    assert config.expiry_of("x", "dm").mode == "daily"


def test_conversations_of_api_clients_end_only_if_that_is_said_of_them():
    daily, idle = ExpiryPolicy(mode="daily"), ExpiryPolicy(mode="idle")
    assert Config(expiry=daily, expiry_by={"dm": daily}).expiry_of("http", "dm").mode == "none"
    assert Config(expiry_by={"http": idle}).expiry_of("http", "dm") == idle
    assert Config(expiry_by={"http/dm": idle}).expiry_of("http", "dm") == idle
