"""The rules of ownership on the real statements: see `tests.support.cluster_machine`."""

from __future__ import annotations

import pytest

from hermes.store import SessionStore
from tests.support.cluster_machine import ClusterMachine, run_randomly
from tests.support.cluster_statements import Statements

RUNS = 12
MANY_RUNS = 300
EMPTY = "DELETE FROM inbox; DELETE FROM routes; DELETE FROM nodes; DELETE FROM roles"


@pytest.fixture
def new_database(postgres_url):
    """Return the statements on a database without rows."""
    with SessionStore(postgres_url) as store:

        def new():
            store.transact(lambda tx: [tx.run(each) for each in EMPTY.split("; ")])
            return Statements(store)

        yield new


def machine(new_database):
    return type("Machine", (ClusterMachine,), {"new_database": lambda _: new_database()})


def test_whatever_is_late_or_lost_no_two_nodes_write_for_one_conversation(new_database, prove):
    for seed in range(MANY_RUNS if prove else RUNS):
        run_randomly(machine(new_database)(), seed)
