"""Two PostgreSQL databases that get the same calls: one with functions for `accept` and
`commit_turn`, one by the verbs alone. Answers and all rows must be the same."""

from __future__ import annotations

import contextlib
import re

import psycopg

from hermes.store import SessionStore
from hermes.store.cluster.claims import Fenced
from hermes.store.group_commit import commit_group
from hermes.store.transaction import KeyedWork
from hermes.store.verbs import StoreVerbs
from tests.support.postgres_databases import RESET, plain
from tests.support.stores import World

TABLES = """
SELECT tablename FROM pg_tables
WHERE schemaname = 'public' AND tablename NOT IN ('writers', 'hermes_schema') ORDER BY 1
"""
FIRST_IDS = {"inbox": 1_000_000_000, "outbox": 2_000_000_000, "usage": 3_000_000_000}
DISTINCT_ID = re.compile(r"\b[123]0000\d{5}\b")
NAMES = """
SELECT id, 'message ' || platform || account || event_id || scope || session_key FROM inbox
UNION ALL
SELECT o.id, 'reply ' || rank() OVER (PARTITION BY o.turn_id ORDER BY o.id) || ' to '
  || i.event_id || i.scope || i.session_key
FROM outbox o JOIN inbox i ON i.id = o.turn_id
"""


class Asked(StoreVerbs):
    """Returns the work of a verb instead of running it."""

    def transact(self, work):
        return work

    transact_unflushed = transact_deferred = transact_alone = snapshot = transact


class CountingStore(SessionStore):
    """Counts the requests that verbs have done, and not a function in the database."""

    by_verb = 0

    def counted(self, work):
        if isinstance(work, Fenced):
            return Fenced(self.counted(work.work), work.session_key, claim=work.claim)
        if not isinstance(work, KeyedWork):
            return work

        def run(tx):
            self.by_verb += 1
            return work.work(tx)

        return KeyedWork(run, work.session_key, work.call)

    def transact(self, work):
        return super().transact(self.counted(work))

    def group(self, requests):
        """Run requests in one transaction. Return their results or errors."""
        work = [self.counted(request) for request in requests]
        group = commit_group(self._db, self._clock, work)
        assert group.stopped is None
        return group.outcomes


class VerbStore(CountingStore):
    """Runs the verbs alone."""

    def counted(self, work):
        counted = super().counted(work)
        if isinstance(counted, KeyedWork) and not isinstance(counted, Fenced):
            return KeyedWork(counted.work, counted.session_key)
        return counted


class TwoPaths:
    """The same store twice, with one clock each; call verbs with `do`."""

    def __init__(self, urls):
        self.worlds = World(), World()
        self._databases = [psycopg.connect(plain(url), autocommit=True) for url in urls]
        for database in self._databases:
            if database.execute(TABLES).fetchall():
                database.execute(RESET)
        kinds = zip((CountingStore, VerbStore), urls, self.worlds, strict=True)
        self.fast, self.verbs = self.stores = [
            kind(url, clock=world.clock) for kind, url, world in kinds
        ]

    def close(self):
        for each in (*self.stores, *self._databases):
            each.close()

    def pass_time(self, seconds):
        for world in self.worlds:
            world.pass_time(seconds)

    def do(self, verb, *args, **kwargs):
        """Call a verb on both stores. Return its result or its error."""
        first, second = (outcome(store, verb, args, kwargs) for store in self.stores)
        assert _same(first) == _same(second)
        return first

    def fast_do(self, verb, *args, **kwargs):
        """The same for a request that a function does."""
        before = self.fast.by_verb
        done = self.do(verb, *args, **kwargs)
        assert self.fast.by_verb == before
        return done

    def slow_do(self, verb, *args, **kwargs):
        """The same for a request that the verb does."""
        before = self.fast.by_verb
        done = self.do(verb, *args, **kwargs)
        assert self.fast.by_verb == before + 1
        return done

    def transact(self, work):
        """Run the same work on both stores. Return its result or its error."""
        return self.do("transact", work)

    def check(self):
        """Compare all rows of all tables."""
        first, second = (
            {name: sorted(self.named(store, row) for row in rows) for name, rows in found.items()}
            for store, found in zip(self.stores, map(contents, self._databases), strict=True)
        )
        assert first == second

    def use_distinct_ids(self):
        """Let ids of messages and replies differ from other numbers, so that `named` finds them."""
        for database in self._databases:
            for table, first in FIRST_IDS.items():
                database.execute(f"SELECT setval('{table}_id_seq', {first})")

    def named(self, store, result):
        """Return a result as text, with the names of messages and replies instead of their ids."""
        database = self._databases[self.stores.index(store)]
        names = {str(found): str(name) for found, name in database.execute(NAMES).fetchall()}
        return DISTINCT_ID.sub(lambda found: names.get(found[0], "an id"), str(result))


def outcome(store, verb, args, kwargs):
    try:
        return getattr(store, verb)(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - compared
        return error


def _same(result):
    return (type(result), str(result)) if isinstance(result, Exception) else result


def contents(database):
    """Return the rows of every table, as JSON texts."""
    tables = [name for (name,) in database.execute(TABLES).fetchall()]
    return {
        name: sorted(
            text
            for (text,) in database.execute(f"SELECT to_json(t)::text FROM {name} t").fetchall()
        )
        for name in tables
    }


@contextlib.contextmanager
def opened(urls):
    """Two stores for the block, without rows."""
    both = TwoPaths(urls)
    try:
        yield both
    finally:
        both.close()
