"""Ownership of conversations in a cluster, as rules: see `tests.support.cluster_machine`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.cluster_machine import ClusterMachine, run_randomly
from tests.support.cluster_model import Database

STEPS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def machine(database):
    """Return the machine on a kind of database."""
    return type("Machine", (ClusterMachine,), {"new_database": lambda _: database()})


def test_whatever_is_late_or_lost_no_two_nodes_write_for_one_conversation():
    run_state_machine_as_test(machine(Database), settings=STEPS)


class ChecksNothing(Database):
    """It does not ask who the owner is."""

    def commit(self, claim):
        self.rows[claim.session_key].waiting = 0
        return True


class TakesFromTheLiving(Database):
    """It takes a key from whoever has it."""

    def _free(self, row):
        return True


class KeepsTheFence(Database):
    """It does not raise the fence."""

    def release(self, node, keys):
        for key in keys:
            if (row := self.rows[key]).owner == node:
                row.owner = None


class DeclaresTooEarly(Database):
    """It declares nodes dead whose lease still runs."""

    def declare_dead(self):
        self.now += 3.0
        super().declare_dead()
        self.now -= 3.0


class Forgets(Database):
    """It does not find messages whose owner is dead."""

    def free_keys(self):
        return [key for key in super().free_keys() if self.rows[key].owner is None]


@pytest.mark.mutant
@pytest.mark.parametrize(
    "database",
    [ChecksNothing, TakesFromTheLiving, KeepsTheFence, DeclaresTooEarly, Forgets],
)
def test_the_machine_finds(database):
    with pytest.raises(AssertionError):
        for seed in range(500):
            run_randomly(machine(database)(), seed)


def test_random_runs_find_nothing_in_the_rules():
    for seed in range(300):
        run_randomly(machine(Database)(), seed)
