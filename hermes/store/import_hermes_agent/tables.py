"""The tables of a hermes-agent database of any version, with whatever is in them.

Columns came one by one over 22 versions, and any of them may be missing; the tables are not STRICT,
so any of them may hold anything. So a text is read as bytes, and a number only where it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import apsw

from hermes.errors import StoreRefused

NEWEST = 22
MAX_VALUE = 64 * 1024 * 1024
"""Bytes of one column; more is no message of anybody."""
THE_SESSION = "(SELECT id FROM sessions WHERE rowid = ?)"

Values: TypeAlias = Mapping[str, Any]


class Tables:
    """The tables, from a connection inside a read transaction."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self.path = path
        self._db = db
        self._columns = {
            table: {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
            for table in ("sessions", "messages", "session_model_usage", "gateway_routing")
        }
        self.version = self._version()

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table has all of these columns."""
        return self._columns[table].issuperset(columns)

    def _version(self) -> int:
        if not self.has("sessions", "id", "source") or not self.has(
            "messages", "session_id", "role"
        ):
            raise StoreRefused(f"{self.path} is no hermes-agent database")
        if self._db.pragma("encoding") != "UTF-8":
            raise StoreRefused(f"{self.path} is not in UTF-8, as hermes-agent's databases are")
        try:
            version = self.value("SELECT max(version) FROM schema_version")
        except apsw.SQLError:
            return 0
        if isinstance(version, int) and version > NEWEST:
            raise StoreRefused(
                f"{self.path} was written by a newer hermes-agent (schema {version}; up to "
                f"{NEWEST} is known); update Hermes"
            )
        return version if isinstance(version, int) else 0

    def value(self, sql: str, *values: int) -> Any:
        """The one value that the query has."""
        return self._db.execute(sql, values).fetchall()[0][0]

    def select(
        self, table: str, texts: Sequence[str], numbers: Sequence[str], rest: str, *values: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows with their rowid, and only those columns that there are."""
        names = [name for name in (*texts, *numbers) if name in self._columns[table]]
        wanted = [_text(name) if name in texts else number(name) for name in names]
        found = self._db.execute(f"SELECT rowid, {', '.join(wanted)} FROM {table} {rest}", values)
        for rowid, *got in found:
            yield rowid, dict(zip(names, got, strict=True))

    def too_big(self, table: str, texts: Sequence[str], rest: str, *values: int) -> set[int]:
        """The rowids of rows with a text that `select` would not give."""
        have = [name for name in texts if name in self._columns[table]]
        size = " OR ".join(f'octet_length("{name}") > {MAX_VALUE}' for name in have)
        found = self._db.execute(f"SELECT rowid FROM {table} {rest} AND ({size})", values)
        return {row[0] for row in found}


def _text(name: str) -> str:
    return f'CASE WHEN octet_length("{name}") <= {MAX_VALUE} THEN CAST("{name}" AS BLOB) END'


def number(name: str) -> str:
    """The column where it holds a number, else NULL."""
    return f"CASE WHEN typeof(\"{name}\") IN ('integer', 'real') THEN \"{name}\" END"


def plain(value: bytes | None) -> str | None:
    """The text, however damaged."""
    return None if value is None else value.decode(errors="replace")
