"""What every store function gets: a connection inside a transaction, the time, and a source of ids.

SQL never asks for time or randomness; both come from here, so a simulation repeats exactly.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

import apsw
import attrs
import msgspec

from hermes.messages import OutboxRow

Row: TypeAlias = tuple[Any, ...]
Value: TypeAlias = int | float | str | bytes | None


class Clock(msgspec.Struct, frozen=True):
    """Time and randomness. `steady` must be the same clock in all processes of the machine."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    hex8: Callable[[], str] = lambda: secrets.token_hex(4)


R_co = TypeVar("R_co", covariant=True)


@attrs.define
class Transaction:
    """One transaction, writing or reading."""

    db: apsw.Connection
    now: float
    steady: float
    hex8: Callable[[], str]
    cursor: apsw.Cursor
    """One for all statements whose rows are fetched at once: making one costs as much as a step."""
    boundaries: bool = False
    """Set when the transaction wrote a boundary row: a hint for the delivery lanes."""
    unindexed: bool = False
    """Set when the transaction wrote rows that the search index lacks."""
    outbox: list[OutboxRow] = attrs.Factory(list)
    """The replies it wrote, in order: they may be sent once it is committed."""

    @classmethod
    def begin(cls, db: apsw.Connection, clock: Clock) -> Transaction:
        return cls(db, clock.wall(), clock.steady(), clock.hex8, db.cursor())

    def close(self) -> None:
        """End every statement: an open SELECT would keep the connection at an old moment."""
        self.cursor.close(True)

    def one(self, sql: str, *values: Value) -> Row | None:
        """The first row, or None."""
        row: Row | None = self.cursor.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Value) -> list[Row]:
        """Every row."""
        rows: list[Row] = self.cursor.execute(sql, values).fetchall()
        return rows

    def run(self, sql: str, *values: Value) -> int:
        """Execute, and say how many rows it changed."""
        self.cursor.execute(sql, values)
        return self.db.changes()

    def new_session_id(self) -> str:
        """`YYYYmmdd_HHMMSS_` and eight hex digits, in UTC."""
        return time.strftime("%Y%m%d_%H%M%S_", time.gmtime(self.now)) + self.hex8()


class Work(Protocol[R_co]):
    """A store function with its arguments, waiting for a transaction."""

    def __call__(self, tx: Transaction, /) -> R_co: ...
