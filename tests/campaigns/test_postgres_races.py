"""C21: verbs that race for one row of PostgreSQL have one winner, in whichever order they come.

Real connections make the calls at once, with random delays (`tests.support.postgres_races`). A race
counts only if each of its orders occurred. The mutants lock no keys, only those that have a route,
or no sessions, or lock the keys of a batch in any order. `tools/mutants.toml` has more (`races`).
"""

from __future__ import annotations

import pytest

from hermes.store import SessionStore
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect
from hermes.store.postgres.transaction import PostgresTransaction
from hermes.store.transaction import KeyedWork
from tests.support.postgres_race_list import (
    CROWD,
    RACES,
    batches,
    first_message,
    pairing_limit,
    rotation_and_append,
)
from tests.support.postgres_races import Racers, run

SHORT, LONG, FOUND_WITHIN = 6, 300, 60
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
LOCKS = """
CREATE OR REPLACE FUNCTION hermes_lock_keys(keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE locked text; BEGIN FOR locked IN {0} LOOP {1}; END LOOP; END $$
"""
NO_KEYS = LOCKS.format("SELECT", "NULL")
ONLY_ROUTES = LOCKS.format(
    "SELECT k FROM unnest(keys) k ORDER BY 1",
    "PERFORM 1 FROM routes WHERE session_key = locked FOR NO KEY UPDATE",
)
UNSORTED = LOCKS.format(
    "SELECT k FROM unnest(keys) k ORDER BY random()",
    "PERFORM pg_advisory_xact_lock(hashtextextended(locked, 0))",
)


def race_of(start):
    return next(race for race in RACES if race.start is start)


def deadlocks(url):
    """Return how many deadlocks the server has ended in this database, whose racers are closed."""
    with connect(parse(url)) as connection:
        return connection.execute(DEADLOCKS).fetchone()[0]


@pytest.fixture
def url(postgres):
    """The URL of a database of its own, because mutants change its functions."""
    return postgres.create()


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name.replace(" ", "-"))
def test_a_race_has_the_right_result_in_every_order(race, postgres_url, prove, campaign):
    before = deadlocks(postgres_url)
    with SessionStore(postgres_url) as judge, Racers(postgres_url, CROWD) as racers:
        found = run(race, racers, judge, LONG if prove else SHORT, campaign.seed(12))
    campaign.count(races=found.rounds)
    campaign.check(found.violations)
    assert deadlocks(postgres_url) == before


def found_in(race, url, kind=SessionStore):
    with SessionStore(url) as judge, Racers(url, CROWD, kind=kind) as racers:
        return run(race_of(race), racers, judge, FOUND_WITHIN, seed=1).violations


@pytest.mark.mutant
@pytest.mark.parametrize("race", [first_message, pairing_limit])
@pytest.mark.parametrize("mutant", [NO_KEYS, ONLY_ROUTES], ids=["no-keys", "only-routes"])
def test_the_mutant_that_does_not_lock_every_key_is_found(race, mutant, url):
    SessionStore(url).close()
    with connect(parse(url)) as connection:
        connection.execute(mutant)
    assert found_in(race, url)


@pytest.mark.mutant
def test_the_mutant_that_locks_in_any_order_is_found(url):
    SessionStore(url).close()
    with connect(parse(url)) as connection:
        connection.execute(UNSORTED)
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET deadlock_timeout = 10')
    with SessionStore(url) as judge, Racers(url, CROWD) as racers:
        run(race_of(batches), racers, judge, 10, seed=1)
    assert deadlocks(url) > 0


class UnlockedTransaction(PostgresTransaction):
    __slots__ = ()

    def lock_session(self, session_id):
        pass


class Unlocked(SessionStore):
    """Mutant: no session is locked."""

    def transact(self, work):
        def unlocked(tx):
            tx.__class__ = UnlockedTransaction
            return work(tx)

        key = getattr(work, "session_key", None)
        return super().transact(unlocked if key is None else KeyedWork(unlocked, key))


@pytest.mark.mutant
def test_the_mutant_that_does_not_lock_sessions_is_found(url):
    assert found_in(rotation_and_append, url, Unlocked)
