"""Fixtures: a hermes-agent home to import, and a store to import it into."""

from __future__ import annotations

import pytest

from hermes.store import Clock, SessionStore
from tests.support.agent_homes import NOW, Home


@pytest.fixture
def home(tmp_path):
    """An empty home of the newest schema, open for writing."""
    made = Home(tmp_path / "home")
    yield made
    made.close()


@pytest.fixture
def store(path):
    """An empty store, whose clock shows `NOW`."""
    with SessionStore(path, clock=Clock(wall=lambda: NOW)) as opened:
        yield opened
