"""The example configuration lists every key, loads as it is, and shows the defaults."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest

from hermes.config import Config
from hermes.settings import Settings, example_config, load
from hermes.settings.example import field_docs
from hermes.settings.schema import keys_of, table_type


def uncommented():
    """Return the example with every key set; two defaults would make other keys useless."""
    text = re.sub(r"^#(?=\S)", "", example_config(), flags=re.MULTILINE)
    text = text.replace('kind = "offline"', 'kind = "openai"')
    return text.replace('mode = "none"', 'mode = "both"').replace('mode = "idle"', 'mode = "both"')


def tables(table=Settings, path=()):
    """Yield every table of the schema with its path."""
    yield path, table
    for name, kind in keys_of(table).items():
        if (inner := table_type(kind)) is not None:
            yield from tables(inner, (*path, name))


def test_the_example_changes_nothing():
    assert load(example_config()) == Settings()
    assert example_config().endswith('prom"\n')


def test_the_example_loads_with_every_key_set():
    assert load(uncommented()).agent.kind == "openai"


def test_the_example_has_every_key():
    values = tomllib.loads(uncommented())
    for path, table in tables():
        written = values
        for name in path:
            written = written[name]
        assert set(written) == set(keys_of(table)), path


def test_tables_with_names_of_the_user_show_every_key():
    values = tomllib.loads(uncommented())
    assert {key for server in values["mcp"].values() for key in server} == {
        "command", "url", "environment", "keys", "approval",
    }  # fmt: skip
    price, *_ = values["agent"]["prices"].values()
    assert set(price) == {"input", "output", "cache_read", "cache_write"}


def test_the_example_shows_the_defaults():
    settings = load(uncommented())
    assert settings.runtime == msgspec.structs.replace(
        Config(), when_busy_by_platform={"telegram": "steer"}
    )
    assert msgspec.structs.replace(settings.compression, model=None) == Settings().compression
    assert (settings.rates, settings.titles.enabled) == (Settings().rates, True)
    assert (settings.log.form, settings.expiry.at_hour) == ("text", Settings().expiry.at_hour)


@pytest.mark.parametrize(
    "table", [table for _, table in tables()], ids=lambda table: table.__name__
)
def test_every_field_has_a_docstring(table):
    docs = field_docs(table)
    assert not [name for name in table.__struct_fields__ if not docs.get(name, "").endswith(".")]


def test_docstrings_of_base_classes_are_included():
    docs = field_docs(type(Settings().compression))
    assert "summaries" in docs["model"]
    assert "Context window" in docs["window"]


def test_lines_are_not_too_long():
    assert max(map(len, example_config().splitlines())) <= 100
