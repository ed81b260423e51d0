"""Transactions on SQLite."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import apsw
import attrs

from hermes.config import AttachmentLimits
from hermes.store.sqlite import search
from hermes.store.sqlite.blobs import BlobFolder
from hermes.store.transaction import Clock, Row, SearchIndex, Sizes, Transaction, Value


class Connection(apsw.Connection):
    """A connection of a store, as far as transactions know it."""

    refusal: str | None = None
    delivers: bool = False
    blobs: BlobFolder
    limits: AttachmentLimits = AttachmentLimits()
    node: int = 0


_WRONG_SHAPE = (apsw.SQLError, apsw.ConstraintError, apsw.MismatchError)
"""Errors of a statement that leave its transaction as it was: a missing column, a trigger, ..."""


@attrs.define
class SqliteTransaction(Transaction):
    """A transaction on SQLite: one that writes is alone, so that locks do nothing."""

    has_arrivals: ClassVar[bool] = True
    search: ClassVar[SearchIndex] = search

    db: Connection = attrs.field(kw_only=True)
    cursor: apsw.Cursor = attrs.field(kw_only=True)
    """Shared by all statements whose rows are fetched at once: creating a cursor is expensive."""

    @classmethod
    def begin(cls, db: Connection, clock: Clock) -> SqliteTransaction:
        """Wrap a connection on which a transaction has just begun."""
        return cls(clock.wall(), clock.steady(), clock.hex8, db=db, cursor=db.cursor())

    def close(self) -> None:
        """Finish every statement: an open SELECT would keep the connection on an old snapshot."""
        self.cursor.close(True)

    def one(self, sql: str, *values: Value) -> Row | None:
        """Execute, and return the first row or None."""
        row: Row | None = self.cursor.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Value) -> list[Row]:
        """Execute, and return all rows."""
        rows: list[Row] = self.cursor.execute(sql, values).fetchall()
        return rows

    def run(self, sql: str, *values: Value) -> int:
        """Execute, and return the number of changed rows."""
        self.cursor.execute(sql, values)
        return self.db.changes()

    def run_each(self, sql: str, rows: Sequence[tuple[Value, ...]]) -> None:
        """Execute once for each row of values."""
        self.cursor.executemany(sql, rows)

    def insert(self, sql: str, *values: Value) -> int:
        """Insert one row, and return its new id."""
        self.cursor.execute(sql, values)
        return self.db.last_insert_rowid()

    def optional(self, sql: str, *values: Value) -> list[Row]:
        """Execute a minor statement on `leases`; see `Transaction.optional`.

        A table with triggers is left alone: they could roll back the transaction.
        """
        if not sql.startswith("SELECT") and self.one(_TRIGGER) is not None:
            return []
        # OR ABORT: a constraint must not end the transaction, whatever its ON CONFLICT clause says.
        sql = sql.replace("UPDATE ", "UPDATE OR ABORT ", 1)
        try:
            return self.all(sql, *values)
        except _WRONG_SHAPE:
            if not self.db.in_transaction:
                raise
            return []

    def has_leases(self) -> bool:
        """Return whether `leases` is a table, and not missing or a view."""
        # Not `Connection.table_exists`: that does not see what another process has changed.
        return self.one(_TABLE) is not None

    def lock_key(self, session_key: str) -> None:
        """Do nothing."""

    def lock_keys(self, session_keys: Iterable[str]) -> None:
        """Do nothing."""

    def lock_session(self, session_id: str) -> None:
        """Do nothing."""

    def sizes(self) -> Sizes:
        """Return how much room the database takes."""
        page_size, pages, free = (
            self.all(f"PRAGMA {name}")[0][0]
            for name in ("page_size", "page_count", "freelist_count")
        )
        path = Path(self.db.filename)
        log = path.with_name(f"{path.name}-wal")
        return Sizes(_size(log), page_size * pages, page_size * free, _disk_free(path))

    def damaged_pages(self) -> list[str]:
        """Return the problems of the file's structure; empty if there are none."""
        search.refresh(self)
        return [str(row[0]) for row in self.all("PRAGMA integrity_check(20)") if row[0] != "ok"]

    def broken_references(self) -> list[str]:
        """Return the rows that refer to rows that do not exist."""
        return [f"foreign key: {row}" for row in self.all("PRAGMA foreign_key_check")]


_TABLE = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'leases' COLLATE NOCASE"
_TRIGGER = (
    "SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'leases' COLLATE NOCASE"
)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _disk_free(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


class LenientTransaction(SqliteTransaction):
    """A transaction that only reads, and replaces invalid UTF-8 in texts.

    Another program wrote it, or the file is damaged. APSW raises `UnicodeDecodeError` for it.
    """

    def one(self, sql: str, *values: Value) -> Row | None:
        """Execute, and return the first row or None."""
        rows = self.all(sql, *values)
        return rows[0] if rows else None

    def all(self, sql: str, *values: Value) -> list[Row]:
        """Execute, and return all rows."""
        try:
            return super().all(sql, *values)
        except UnicodeDecodeError:
            names = [f"c{n}" for n in range(len(self.cursor.get_description()))]
        selected = ", ".join(f"iif(typeof({n}) = 'text', CAST({n} AS BLOB), {n})" for n in names)
        kinds = ", ".join(f"typeof({n})" for n in names)
        found = f"WITH found ({', '.join(names)}) AS ({sql}) SELECT {selected}, {kinds} FROM found"
        return [
            tuple(
                value.decode(errors="replace") if kind == "text" else value
                for value, kind in zip(row[: len(names)], row[len(names) :], strict=True)
            )
            for row in super().all(found, *values)
        ]
