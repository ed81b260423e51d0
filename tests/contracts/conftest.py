"""Contract tests of the store: what its SQL means.

They run on the synchronous store alone, since every store runs the same functions.
`test_store_plumbing.py` checks that each kind of store runs them in the same way.
"""

from __future__ import annotations

import pytest

from hermes.config import is_database_url
from hermes.store import SessionStore
from tests.support.engines import Sql, database_url, on_both_engines
from tests.support.folders import quick_folder

ADAPTERS = ("test_adapters", "test_model_server", "test_telegram")
"""What the modules begin with that test adapters: the engine makes no difference to them."""


def pytest_generate_tests(metafunc):
    on_both_engines(metafunc, lambda module: not module.startswith(ADAPTERS))


@pytest.fixture
def path(engine, request):
    """The file of a store, in memory because nothing here is about the disk; or a URL."""
    if engine == "postgres":
        yield database_url(request)
        return
    with quick_folder() as folder:
        yield folder / "state.db"


@pytest.fixture
def other_path(path, request):
    """The path or the URL of another database of the same engine."""
    if is_database_url(path):
        return request.getfixturevalue("postgres").shared("other")
    return path.with_name("other.db")


@pytest.fixture
def new_rows(engine):
    """The table that new messages are in."""
    return {"sqlite": "arrivals", "postgres": "messages"}[engine]


@pytest.fixture
def store(path, world):
    """A synchronous store on a real database, with the clock of `world`."""
    with SessionStore(path, clock=world.clock) as opened:
        yield opened


@pytest.fixture
def sql(path):
    """Run SQL on a separate connection, without the store's functions; return the rows."""
    with Sql(path) as run:
        yield run
