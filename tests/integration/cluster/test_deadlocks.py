"""Nodes that take several things at once do not wait for each other in a circle."""

from __future__ import annotations

import psycopg
import trio

from hermes.store import open_store
from tests.support.postgres_databases import plain

DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
ROUNDS, ROLES = 3, 40


async def nothing():
    await trio.lowlevel.checkpoint()


async def test_two_nodes_that_take_the_same_roles_do_not_deadlock(postgres):
    url = postgres.create()
    async with open_store(url) as one, open_store(url) as two:
        for number in range(ROUNDS):
            roles = [f"role {number} {each}" for each in range(ROLES)]
            async with trio.open_nursery() as nursery:
                for first, second in zip(roles, reversed(roles), strict=True):
                    nursery.start_soon(one.cluster.run_as, first, nothing)
                    nursery.start_soon(two.cluster.run_as, second, nothing)
    with psycopg.connect(plain(url)) as db:
        assert db.execute(DEADLOCKS).fetchone() == (0,)
