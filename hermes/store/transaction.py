"""`Transaction`: what every store function gets as its first argument.

It carries the connection, the time and a source of ids. SQL never asks for time or randomness, so
that a simulation can repeat exactly.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import apsw
import attrs
import msgspec

from hermes.config import AttachmentLimits
from hermes.messages import Accepted, OutboxRow
from hermes.store.files.blobs import BlobFolder

Row: TypeAlias = tuple[Any, ...]
Value: TypeAlias = int | float | str | bytes | None


class Clock(msgspec.Struct, frozen=True):
    """Time and randomness. `steady` must be the same clock in all processes of the machine."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    hex8: Callable[[], str] = lambda: secrets.token_hex(4)


class Connection(apsw.Connection):
    """A connection of a store, as far as store functions know it."""

    refusal: str | None = None
    """Why no message can be accepted now, or None."""
    delivers: bool = False
    """Whether a runtime receives what is accepted here, and starts its turn at once."""
    blobs: BlobFolder
    """The content of attached files."""
    limits: AttachmentLimits = AttachmentLimits()
    """What may be attached."""


R_co = TypeVar("R_co", covariant=True)


@attrs.define
class Transaction:
    """One transaction, writing or reading.

    `boundaries`, `unindexed`, `outbox` and `accepted` note what the transaction wrote, for those
    who act on it after COMMIT.
    """

    db: Connection
    now: float
    steady: float
    hex8: Callable[[], str]
    cursor: apsw.Cursor
    """Shared by all statements whose rows are fetched at once: creating a cursor is expensive."""
    boundaries: bool = False
    """Whether it wrote boundary rows, which hooks are waiting for."""
    unindexed: bool = False
    """Whether it wrote messages that the search index lacks."""
    outbox: list[OutboxRow] = attrs.Factory(list)
    """The replies it wrote, in order."""
    accepted: list[Accepted] = attrs.Factory(list)
    """The inbound messages it stored, in order."""

    @classmethod
    def begin(cls, db: Connection, clock: Clock) -> Transaction:
        """Wrap a connection on which a transaction has just begun."""
        return cls(db, clock.wall(), clock.steady(), clock.hex8, db.cursor())

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

    def new_session_id(self) -> str:
        """Return a new id: `YYYYmmdd_HHMMSS_` in UTC and eight hexadecimal digits."""
        return time.strftime("%Y%m%d_%H%M%S_", time.gmtime(self.now)) + self.hex8()


class LenientTransaction(Transaction):
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


class Work(Protocol[R_co]):
    """A store function with its arguments bound, ready to run in a transaction."""

    def __call__(self, tx: Transaction, /) -> R_co: ...
