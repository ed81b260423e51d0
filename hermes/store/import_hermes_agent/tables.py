"""Access to the tables of a hermes-agent database of any schema version.

Columns were added over 22 versions, so any of them may be missing. The tables are not STRICT, so
any column may hold any type: texts are read as bytes, and a number is NULL if it is not a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from hermes.errors import StoreRefused

MAX_VERSION = 22
MAX_VALUE = 64 * 1024 * 1024
"""The largest text that is read, in bytes."""
SESSION_ID = "(SELECT id FROM sessions WHERE rowid = ?)"
"""SQL for the id of the session with a given rowid; ids are not necessarily valid text."""

_TABLES = ("sessions", "messages", "session_model_usage", "gateway_routing")
_NAMES = {*_TABLES, "schema_version"}

Values: TypeAlias = Mapping[str, Any]


class Tables:
    """The tables, read through a connection inside a read transaction."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self.path = path
        self._db = db
        self._refuse_views()
        self._columns = {
            table: {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            for table in _TABLES
        }
        self.version: int = self._version()

    def _refuse_views(self) -> None:
        """Raise `StoreRefused` if a name is no ordinary table: a view may have rows without end."""
        rows = self._db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'")
        for name, kind in rows.fetchall():
            if str(name).lower() in _NAMES and kind != "table":
                raise StoreRefused(
                    f"{self.path} is not a hermes-agent database: {name} is a {kind}, not a table"
                )

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table has all of these columns."""
        return self._columns[table].issuperset(columns)

    def _version(self) -> int:
        if not self.has("sessions", "id", "source") or not self.has(
            "messages", "session_id", "role"
        ):
            raise StoreRefused(f"{self.path} is not a hermes-agent database")
        if self._db.pragma("encoding") != "UTF-8":
            raise StoreRefused(
                f"{self.path} is not encoded in UTF-8, so it is not a hermes-agent database"
            )
        try:
            version = self.value("SELECT max(version) FROM schema_version")
        except apsw.SQLError:
            return 0
        if isinstance(version, int) and version > MAX_VERSION:
            raise StoreRefused(
                f"{self.path} was written by a newer hermes-agent (schema {version}; at most "
                f"{MAX_VERSION} is supported); update Hermes"
            )
        return version if isinstance(version, int) else 0

    def value(self, sql: str, *values: int) -> Any:
        """Return the single value of a query."""
        return self._db.execute(sql, values).fetchall()[0][0]

    def select(
        self, table: str, texts: Sequence[str], numbers: Sequence[str], rest: str, *values: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (rowid, values by column) for each row; columns that do not exist are left out."""
        names = [name for name in (*texts, *numbers) if name in self._columns[table]]
        columns = [_text(name) if name in texts else number(name) for name in names]
        rows = self._db.execute(f"SELECT rowid, {', '.join(columns)} FROM {table} {rest}", values)
        for rowid, *row in rows:
            yield rowid, dict(zip(names, row, strict=True))

    def too_big(self, table: str, texts: Sequence[str], rest: str, *values: int) -> set[int]:
        """Return the rowids of rows with a text that is too large for `select`."""
        names = [name for name in texts if name in self._columns[table]]
        size = " OR ".join(f'octet_length("{name}") > {MAX_VALUE}' for name in names)
        rows = self._db.execute(f"SELECT rowid FROM {table} {rest} AND ({size})", values)
        return {row[0] for row in rows}


def _text(name: str) -> str:
    return f'CASE WHEN octet_length("{name}") <= {MAX_VALUE} THEN CAST("{name}" AS BLOB) END'


def number(name: str) -> str:
    """Return SQL for a column that is NULL unless it holds a number."""
    return f"CASE WHEN typeof(\"{name}\") IN ('integer', 'real') THEN \"{name}\" END"


def decode(value: bytes | None) -> str | None:
    """Return the text, with invalid UTF-8 replaced."""
    return None if value is None else value.decode(errors="replace")
