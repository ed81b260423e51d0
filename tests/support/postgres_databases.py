"""Databases for tests, on a server of the tests or on the one that `HERMES_TEST_POSTGRES` names."""

from __future__ import annotations

import contextlib
import itertools
import os
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

from tests.support.postgres_server import running_server

VARIABLE = "HERMES_TEST_POSTGRES"
ACCEPTING = "accept_data_loss=yes"
RESET = """
DO $$ DECLARE found text; BEGIN
  SET LOCAL session_replication_role = replica;  -- no triggers, no foreign keys
  FOR found IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
    WHERE schemaname = 'public' AND tablename <> 'hermes_schema'
  LOOP EXECUTE 'DELETE FROM ' || found; END LOOP;
  PERFORM setval(format('%I.%I', schemaname, sequencename), 1, false) FROM pg_sequences
    WHERE schemaname = 'public' AND last_value IS NOT NULL;
END $$
"""
OTHERS = """
SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class Databases:
    """Creates databases on one server, and empties one between tests."""

    def __init__(self, url: str) -> None:
        """`url` is that of an existing database, as a superuser."""
        self.url = url
        self._numbers = itertools.count(1)
        self._created: list[str] = []
        self._shared: dict[str, tuple[str, psycopg.Connection]] = {}

    def create(self) -> str:
        """Create an empty database and return its URL; it is dropped by `close`.

        With this URL a store accepts a server that does not flush.
        """
        name = f"hermes_test_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute(f'CREATE DATABASE "{name}"')
        self._created.append(name)
        parts = urlsplit(self.url)
        query = "&".join(filter(None, [parts.query, ACCEPTING]))
        return urlunsplit(parts._replace(path="/" + quote(name, safe=""), query=query))

    def shared(self, name: str = "") -> str:
        """Return the URL of a database that has no rows, and that the next test uses too.

        It keeps the tables of the store once they are there. Connections that an earlier test left
        are ended. Each `name` stands for another database.
        """
        if name not in self._shared:
            url = self.create()
            self._shared[name] = url, psycopg.connect(plain(url), autocommit=True)
        url, resetting = self._shared[name]
        resetting.execute(OTHERS)
        resetting.execute(RESET)
        return url

    def close(self) -> None:
        """Drop the databases that were created."""
        for _, resetting in self._shared.values():
            resetting.close()
        with psycopg.connect(self.url, autocommit=True) as db:
            for name in self._created:
                db.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def plain(url: str) -> str:
    """Return the URL of a store for a program that is not Hermes."""
    return url.replace(ACCEPTING, "")


@contextlib.contextmanager
def databases():
    """The databases of a test session; the test is skipped if no server can be had.

    On a machine for continuous integration it fails instead.
    """
    with contextlib.ExitStack() as stack:
        url = os.environ.get(VARIABLE)
        if url is None:
            try:
                url = stack.enter_context(running_server()).url
            except (OSError, RuntimeError) as error:
                if os.environ.get("CI") == "true":
                    raise
                pytest.skip(f"no PostgreSQL server can be started here: {error}")
        found = Databases(url)
        stack.callback(found.close)
        yield found
