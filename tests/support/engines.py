"""Both engines for one test, and SQL past the store on either."""

from __future__ import annotations

from contextlib import ExitStack

import apsw
import pytest

from hermes.config import is_database_url
from hermes.store.postgres.address import parse
from hermes.store.postgres.driver import connect
from hermes.store.postgres.translate import translate

SQLITE = pytest.param("sqlite", id="sqlite")
POSTGRES = pytest.param("postgres", id="postgres", marks=pytest.mark.postgres)


def on_both_engines(metafunc, is_chosen):
    """Run a test that uses the fixture `path` once with each engine.

    `path` is a file, or the URL of a database. The mark `sqlite_only` says why a test has no second
    run. `is_chosen` is called with the name of a module, and returns whether its tests have one
    without `--prove`.
    """
    if "path" not in metafunc.fixturenames:
        return
    only = metafunc.definition.get_closest_marker("sqlite_only")
    chosen = is_chosen(metafunc.module.__name__.rpartition(".")[2])
    both = not only and (chosen or metafunc.config.getoption("--prove"))
    metafunc.parametrize("engine", [SQLITE, POSTGRES] if both else [SQLITE])


def database_url(request):
    """The URL of the PostgreSQL database of a test; a new one if it changes the tables."""
    changes = request.node.get_closest_marker("changes_tables") is not None
    return request.getfixturevalue("empty_database" if changes else "postgres_url")


class Sql:
    """Runs SQL in this process, on a connection without the store's functions; returns the rows."""

    def __init__(self, database) -> None:
        self._database = database
        self._closing = ExitStack()
        self._execute = None

    def __call__(self, statement, *values):
        if self._execute is None:
            self._execute = self._connect()
        return [list(row) for row in self._execute(statement, values)]

    def _connect(self):
        if is_database_url(self._database):
            db = self._closing.enter_context(connect(parse(self._database)))

            def execute(statement, values):
                cursor = db.execute(translate(statement), values)
                return cursor.fetchall() if cursor.description else []

            return execute
        db = apsw.Connection(str(self._database))
        self._closing.callback(db.close)
        db.set_busy_timeout(5000)
        return db.execute

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closing.close()
