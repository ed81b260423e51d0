"""Transactions on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, TypeVar

import attrs
import psycopg
from psycopg import errors as pg

from hermes.messages import Claim
from hermes.store.cluster import claims
from hermes.store.cluster.placement import place
from hermes.store.postgres import search
from hermes.store.postgres.driver import Driver
from hermes.store.postgres.fast_path import requests
from hermes.store.postgres.translate import translate
from hermes.store.transaction import Row, SearchIndex, Sizes, Transaction, Value, Work

R = TypeVar("R")
_WRONG_SHAPE: Final = (
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.UndefinedFunction,  # there is no operator for the type
    pg.IntegrityError,
    pg.DataError,
    pg.WrongObjectType,
)
_LEASES: Final = (
    "SELECT 1 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
    "WHERE c.relname = 'leases' AND c.relkind = 'r' "
    "AND c.relnamespace = current_schema()::regnamespace "
    "AND (a.attname, a.atttypid::regtype::text) IN (('session_id', 'text'), ('holder', 'text'), "
    "('token', 'bigint'), ('expires', 'double precision'), ('ttl', 'double precision')) "
    "HAVING count(*) = 5"
)


@attrs.define
class PostgresTransaction(Transaction):
    """A transaction on PostgreSQL; others run at the same time, and see it after its COMMIT."""

    has_arrivals: ClassVar[bool] = False
    search: ClassVar[SearchIndex] = search

    driver: Driver = attrs.field(kw_only=True)
    cursor: psycopg.Cursor[tuple[Any, ...]] = attrs.field(kw_only=True)
    changes: int = attrs.field(kw_only=True, default=0)
    """The number of rows it has changed."""
    living: Sequence[int] | None = attrs.field(kw_only=True, default=None)
    """The nodes on which conversations may be placed; None if this is no transaction of a node."""
    _locked: set[str] = attrs.field(factory=set)

    def close(self) -> None:
        """Do nothing: every statement has ended when its rows are here."""

    def one(self, sql: str, *values: Value) -> Row | None:
        """Execute, and return the first row or None."""
        return self._execute(sql, values).fetchone()

    def all(self, sql: str, *values: Value) -> list[Row]:
        """Execute, and return all rows."""
        cursor = self._execute(sql, values)
        return cursor.fetchall() if cursor.description else []

    def run(self, sql: str, *values: Value) -> int:
        """Execute, and return the number of changed rows."""
        return self._execute(sql, values).rowcount

    def run_each(self, sql: str, rows: Sequence[tuple[Value, ...]]) -> None:
        """Execute once for each row of values."""
        if rows:
            self.cursor.executemany(translate(sql), rows)
            self.changes += len(rows)

    def insert(self, sql: str, *values: Value) -> int:
        """Insert one row, and return its new id."""
        name = "no" if sql.startswith("INSERT INTO sessions ") else "id"
        row = self._execute(f"{sql} RETURNING {name}", values).fetchone()
        assert row is not None
        return int(row[0])

    def _execute(self, sql: str, values: Sequence[Value]) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self.cursor.execute(translate(sql), values)
        if not sql.startswith("SELECT"):
            self.changes += max(cursor.rowcount, 0)
        return cursor

    def optional(self, sql: str, *values: Value) -> list[Row]:
        """Execute a minor statement on `leases`; see `Transaction.optional`."""
        try:
            with self.driver.transaction():  # a savepoint: an error ends the transaction otherwise
                return self.all(sql, *values)
        except _WRONG_SHAPE:
            return []

    def has_leases(self) -> bool:
        """Return whether `leases` is a table of this shape, and not missing or a view."""
        return self.one(_LEASES) is not None

    def lock_key(self, session_key: str) -> None:
        """Lock a session_key, with or without a route: wait for other transactions that have it."""
        self.lock_keys([session_key])

    def lock_keys(self, session_keys: Iterable[str]) -> None:
        """Lock several keys at once, in their order."""
        missing = sorted(set(session_keys) - self._locked)
        if missing:
            self.cursor.execute("SELECT hermes_lock_keys($1::text[])", [array(missing)])
            self._locked.update(missing)

    def lock_session(self, session_id: str) -> None:
        """Lock the row of a session, if there is one, before it is read to be changed."""
        self.one("SELECT 1 FROM sessions WHERE id = ? FOR NO KEY UPDATE", session_id)

    def serve(self, session_key: str) -> Claim | None:
        """Return who serves a conversation; place it on a node if none does."""
        if self.living is None:
            return None
        return claims.accept(self, session_key, lambda: place(session_key, self.living or ()))

    def in_order(self, batch: Sequence[Work[R]]) -> Iterable[Work[R]]:
        """Return the requests; what is usual is done by functions in the database."""
        return requests.in_order(self, batch, places=self.living is not None)

    def sizes(self) -> Sizes:
        """Return how much room the database takes. The server keeps its log for itself."""
        row = self.one("SELECT pg_database_size(current_database())")
        assert row is not None
        return Sizes(0, int(row[0]), 0, None)

    def damaged_pages(self) -> list[str]:
        """Return an empty list: `pg_amcheck` checks the server's files."""
        return []

    def broken_references(self) -> list[str]:
        """Return an empty list: no row can be deleted while another refers to it."""
        return []


def array(texts: Iterable[str]) -> str:
    """Return texts as the text of an array."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
