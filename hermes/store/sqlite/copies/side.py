"""An SQLite file as the source or the target of a copy of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from hermes.errors import StoreError, StoreRefused
from hermes.store.copying.sides import CopyMark, accept_mark, read_mark
from hermes.store.engine import Connection
from hermes.store.sqlite import file_lock, opening, schema
from hermes.store.sqlite.connection import Database
from hermes.store.sqlite.engine import SqliteEngine
from hermes.store.sqlite.runtime_lock import RuntimeLock
from hermes.store.transaction import Clock, Transaction


class SqliteSide:
    """See `hermes.store.copying.sides.Side`."""

    keeps_nul: bool = True

    def __init__(self, path: Path) -> None:
        self._path = file_lock.resolve(path)
        self.label: str = str(self._path)

    @contextmanager
    def source(self, clock: Clock) -> Iterator[Connection]:
        """Open the file, which must exist."""
        if not self._path.exists():
            raise StoreRefused(f"{self._path} does not exist; name the database to copy")
        with SqliteEngine(self._path).connect(clock) as db:
            yield db

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the lock of a runtime."""
        had_lock = file_lock.has_lock(self._path)
        lock = RuntimeLock(self._path)
        try:
            with file_lock.no_trace(self._path, had_lock=had_lock):
                yield
        finally:
            lock.close()

    @contextmanager
    def target(self, clock: Clock, mark: CopyMark) -> Iterator[Connection]:
        """Open an incomplete copy, or create one."""
        if not self._path.parent.is_dir():
            raise StoreRefused(f"the folder {self._path.parent} does not exist; create it first")
        with file_lock.wait_opening(self._path):
            db = opening.open_copy(self._path, clock)
        try:
            db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            accept_mark(db, clock, mark, self.label)
            yield db
        finally:
            db.close()

    def copy_id(self, clock: Clock) -> str | None:
        """Return the id in the mark of a complete file."""
        try:
            with self.source(clock) as db:
                mark = db.run_read(clock, read_mark)
        except StoreError:
            return None
        return None if mark is None else mark.id

    def stop_writers(self, tx: Transaction) -> None:
        """Do nothing: a transaction that writes is alone."""

    def reads_long(self, tx: Transaction) -> None:
        """Do nothing: a transaction may read for any time."""

    def last_ids(self, tx: Transaction) -> dict[str, int]:
        """Return the sequences of the tables."""
        return dict(tx.all("SELECT name, seq FROM sqlite_sequence"))

    def set_last_ids(self, tx: Transaction, ids: dict[str, int]) -> None:
        """Raise the sequences to these ids; rows have raised them to theirs."""
        for (name,) in tx.all("SELECT name FROM sqlite_schema WHERE sql LIKE '%AUTOINCREMENT%'"):
            if name in ids:
                found = tx.one("SELECT seq FROM sqlite_sequence WHERE name = ?", name)
                if found is None:
                    tx.run("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", name, ids[name])
                elif found[0] < ids[name]:
                    tx.run("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", ids[name], name)

    def open_copy(self, tx: Transaction) -> None:
        """Let the file be opened; triggers run from now on."""
        assert isinstance(tx.db, Database)
        tx.db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        tx.db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
