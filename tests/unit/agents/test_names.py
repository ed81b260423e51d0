"""The public names of `hermes.agents`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hermes.agents


@pytest.mark.parametrize("name", hermes.agents.__all__)
def test_every_name_is_there(name):
    found = getattr(hermes.agents, name)
    assert callable(found)
    assert found.__doc__


def test_the_names_are_listed_for_completion():
    assert set(hermes.agents.__all__) <= set(dir(hermes.agents))


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = hermes.agents.Nobody


def test_the_bot_starts_without_an_http_client():
    loaded = "{'httpx2', 'mcp'} & set(sys.modules)"
    code = f"import hermes.run.__main__, sys; sys.exit(bool({loaded}))"
    subprocess.run([sys.executable, "-c", code], check=True)
