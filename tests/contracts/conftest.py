"""Contract tests of the store: what its SQL means.

They run on the synchronous store alone, since every store runs the same functions.
`test_store_plumbing.py` checks that each kind of store runs them in the same way.
"""

from __future__ import annotations

import apsw
import pytest

from hermes.store import SessionStore
from tests.support.folders import quick_folder


@pytest.fixture
def path():
    """The file of a store; in memory, because nothing here is about the disk."""
    with quick_folder() as folder:
        yield folder / "state.db"


@pytest.fixture
def store(path, world):
    """A synchronous store on a real file, with the clock of `world`."""
    with SessionStore(path, clock=world.clock) as opened:
        yield opened


@pytest.fixture
def sql(path):
    """Run SQL on a separate connection, without the store's functions; return the rows."""
    connections = []

    def run(statement, *values):
        if not connections:
            connections.append(apsw.Connection(str(path)))
            connections[0].set_busy_timeout(5000)
        return [list(row) for row in connections[0].execute(statement, values)]

    yield run
    for connection in connections:
        connection.close()
