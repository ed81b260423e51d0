"""What each engine provides for a copy of a store, besides its connections."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from hermes.errors import StoreRefused
from hermes.store.copying.tables import COPY_MARK
from hermes.store.engine import Connection
from hermes.store.group_commit import commit_one
from hermes.store.records import key_value
from hermes.store.transaction import Clock, Transaction


class CopyMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a database says about a copy, in `meta`. Names of databases have no passwords."""

    id: str
    """The same in the source and in the target."""
    source: str
    target: str
    begun_at: float
    snapshot: bool = False
    moved_at: float | None = None
    """When the source was moved; in the source only."""


_decode = msgspec.json.Decoder(CopyMark).decode


def read_mark(tx: Transaction) -> CopyMark | None:
    """Return the mark of a database, or None."""
    text = key_value.get_meta(tx, COPY_MARK)
    return None if text is None else _decode(text)


def write_mark(tx: Transaction, mark: CopyMark) -> None:
    """Store the mark of a database."""
    key_value.set_meta(tx, COPY_MARK, msgspec.json.encode(mark).decode())


def require_not_moved(tx: Transaction) -> None:
    """Raise `StoreRefused` if the database was moved to another one."""
    mark = read_mark(tx)
    if mark is not None and mark.moved_at is not None:
        day = time.strftime("%Y-%m-%d", time.localtime(mark.moved_at))
        raise StoreRefused(
            f"{mark.source} was moved to {mark.target} on {day}; use that one, "
            "or open this one all the same with --force"
        )


def accept_mark(db: Connection, clock: Clock, mark: CopyMark, label: str) -> None:
    """Mark an incomplete copy that was opened or created.

    Raises `StoreRefused` if it is the copy of another database.
    """
    found = db.run_read(clock, read_mark)
    same = found is None or found.id == mark.id
    if found is not None and found.snapshot and mark.snapshot:
        same = found.source == mark.source  # it starts again, with another id
    if not same:
        raise StoreRefused(
            f"{label} is an incomplete copy of another database; complete that one, or delete it"
        )
    commit_one(db, clock, lambda tx: write_mark(tx, mark))


class Side(Protocol):
    """A database as the source or the target of a copy."""

    label: str
    """What users see: the path, or the host and the name of the database; never a password."""
    keeps_nul: bool
    """Whether texts can have U+0000."""

    def source(self, clock: Clock) -> AbstractContextManager[Connection]:
        """Open the database to read it; it may be in use."""
        ...

    def claim(self) -> AbstractContextManager[None]:
        """Keep runtimes and other copies from using the database during the block.

        Raises `StoreInUse` if one does.
        """
        ...

    def target(self, clock: Clock, mark: CopyMark) -> AbstractContextManager[Connection]:
        """Open an incomplete copy, which nothing else can open; create it if there is none.

        It is created with this mark. Triggers do not run on this connection. Raises `StoreRefused`
        if the database is something else.
        """
        ...

    def copy_id(self, clock: Clock) -> str | None:
        """Return the id in the mark of a database that can be opened; None if it cannot."""
        ...

    def stop_writers(self, tx: Transaction) -> None:
        """Let nobody else write to the database until the end of this transaction."""
        ...

    def reads_long(self, tx: Transaction) -> None:
        """Prepare a transaction that reads for a long time, with pauses."""
        ...

    def last_ids(self, tx: Transaction) -> dict[str, int]:
        """Return the last id that each table has given, by its name."""
        ...

    def set_last_ids(self, tx: Transaction, ids: dict[str, int]) -> None:
        """Let ids continue after these, and after those of all rows."""
        ...

    def open_copy(self, tx: Transaction) -> None:
        """Let stores and runtimes open the copy from the end of this transaction on."""
        ...
