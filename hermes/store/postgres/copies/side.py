"""A PostgreSQL database as the source or the target of a copy of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import psycopg

from hermes.errors import StoreError, StoreRefused
from hermes.store.copying.sides import CopyMark, accept_mark, read_mark
from hermes.store.copying.tables import TABLES
from hermes.store.engine import Connection
from hermes.store.postgres import errors, schema
from hermes.store.postgres.address import Address, parse
from hermes.store.postgres.connection import PostgresConnection
from hermes.store.postgres.copies import claims
from hermes.store.postgres.driver import Driver
from hermes.store.postgres.transaction import PostgresTransaction
from hermes.store.transaction import Clock, Transaction

_IDENTITIES: Final = (
    "SELECT table_name::text, pg_get_serial_sequence(quote_ident(table_name), column_name), "
    "column_name::text FROM information_schema.columns "
    "WHERE table_schema = current_schema() AND is_identity = 'YES' AND table_name <> 'writers'"
)
_LAST: Final = "SELECT CASE WHEN is_called THEN last_value END FROM {}"


class PostgresSide:
    """See `hermes.store.copying.sides.Side`."""

    keeps_nul: bool = False

    def __init__(self, url: str) -> None:
        """Raises `StoreRefused` if the URL is not valid; nothing is opened."""
        try:
            self._address: Address = parse(url)
        except ValueError as error:
            raise StoreRefused(str(error)) from None
        self.label: str = self._address.label
        self._check: Callable[[], None] = _nothing

    @contextmanager
    def _open(self, prepare: Callable[[Driver, str], None]) -> Iterator[PostgresConnection]:
        db = PostgresConnection(self._address, prepare)
        try:
            yield db
        finally:
            db.close()

    @contextmanager
    def source(self, clock: Clock) -> Iterator[Connection]:
        """Open the database, which must have a store of the current schema."""
        del clock
        with self._open(schema.require_store) as db:
            yield db

    def schema_versions(self) -> tuple[int, int]:
        """Return the version of the database's schema, 0 without a store, and the current one."""
        found = []
        with self._open(lambda db, label: found.append(schema.stored_version(db, label))):
            return found[0], len(schema.MIGRATIONS)

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the lock that keeps runtimes away."""
        with ExitStack() as stack:
            try:
                self._check = stack.enter_context(claims.alone(self._address))
            except psycopg.Error as error:
                raise errors.unreachable(error, self.label) from error
            stack.callback(setattr, self, "_check", _nothing)
            yield

    @contextmanager
    def target(self, clock: Clock, mark: CopyMark) -> Iterator[Connection]:
        """Open an incomplete copy, or create one in an empty database."""
        with self._open(schema.open_copy) as db:
            accept_mark(db, clock, mark, self.label)
            yield db

    def copy_id(self, clock: Clock) -> str | None:
        """Return the id in the mark of a complete database."""
        try:
            with self.source(clock) as db:
                mark = db.run_read(clock, read_mark)
        except StoreError:
            return None
        return None if mark is None else mark.id

    def stop_writers(self, tx: Transaction) -> None:
        """Lock the tables against changes, and check that no runtime was let in."""
        tx.run(
            f"LOCK TABLE {', '.join(table.name for table in TABLES)} IN SHARE ROW EXCLUSIVE MODE"
        )
        self._check()

    def reads_long(self, tx: Transaction) -> None:
        """Let the transaction pause for any time."""
        tx.run("SET LOCAL idle_in_transaction_session_timeout = 0")

    def last_ids(self, tx: Transaction) -> dict[str, int]:
        """Return the last values of the identity columns."""
        found = {}
        for table, sequence, _ in tx.all(_IDENTITIES):
            [(last,)] = tx.all(_LAST.format(sequence))
            if last is not None:
                found[table] = int(last)
        return found

    def set_last_ids(self, tx: Transaction, ids: dict[str, int]) -> None:
        """Raise the identity columns to these ids, and to those of the rows."""
        for table, sequence, column in tx.all(_IDENTITIES):
            [(highest,)] = tx.all(f"SELECT coalesce(max({column}), 0) FROM {table}")
            [(last,)] = tx.all(_LAST.format(sequence))
            wanted = max(highest, ids.get(table, 0))
            if wanted > (last or 0):
                tx.all("SELECT setval(CAST(? AS text)::regclass, ?)", sequence, wanted)

    def open_copy(self, tx: Transaction) -> None:
        """Let the database be opened; triggers run from now on."""
        assert isinstance(tx, PostgresTransaction)
        for table in schema.tables_with_triggers(tx.driver):
            tx.run(f"ALTER TABLE {table} ENABLE TRIGGER USER")
        tx.run(f"ALTER TABLE {schema.COPY} RENAME TO {schema.STORE}")


def _nothing() -> None: ...
