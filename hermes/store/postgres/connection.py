"""A connection of the store to PostgreSQL, which survives the connections of the driver.

When the server is lost, requests wait until it is back, for `Address.wait` seconds since it was
lost; then they are refused until it is back. Nothing is acknowledged meanwhile.

A connection can be lost while COMMIT runs. Then it is unknown whether the transaction is on disk.
So the first statement of each transaction writes its number to a row of `writers`, which only this
connection writes. After connecting again, that row tells: it is locked as long as the old
transaction can still be committed.
"""

from __future__ import annotations

import logging
import random
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from hermes.config import AttachmentLimits
from hermes.errors import StoreBusy, StoreRefused
from hermes.store.engine import Progress
from hermes.store.files.contents import FileContents
from hermes.store.postgres import checks, errors, schema
from hermes.store.postgres.address import Address
from hermes.store.postgres.contents import RowContents
from hermes.store.postgres.driver import IDLE_SECONDS, Driver, connect
from hermes.store.postgres.errors import NotCommittedError
from hermes.store.postgres.transaction import PostgresTransaction
from hermes.store.transaction import Clock, Transaction, Work, keys_of

log: Final = logging.getLogger(__name__)
R = TypeVar("R")

MAX_TRIES: Final = 5
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_UNFLUSHED: Final = "SET LOCAL synchronous_commit = off"
_NOW: Final = "extract(epoch FROM clock_timestamp())"
_ADVANCE: Final = (
    f"UPDATE writers SET batch = {{1}}, used_at = {_NOW} WHERE id = {{0}} RETURNING used_at"
)
_NEW_WRITER: Final = f"INSERT INTO writers (batch, used_at) VALUES (0, {_NOW}) RETURNING id"
_FORGET_WRITERS: Final = (
    f"DELETE FROM writers WHERE id IN (SELECT id FROM writers WHERE used_at < {_NOW} - 86400 "
    "LIMIT 100 FOR UPDATE SKIP LOCKED)"
)
_VACUUM: Final = (
    "PostgreSQL frees space by itself; to return it to the file system, "
    "stop all runtimes and run: psql --command='VACUUM FULL' {label}"
)
_BACKUP: Final = (
    "PostgreSQL has its own backups; "
    "to make one, run: pg_dump --format=custom --file={target} {label}"
)


class PostgresConnection:
    """See `hermes.store.engine.Connection`."""

    driver_errors: tuple[type[Exception], ...] = (psycopg.Error,)
    refusal: str | None = None
    delivers: bool = False
    node: int = 0
    living: Sequence[int] | None = None
    """The nodes on which conversations may be placed; None for a connection of no node."""
    blobs: FileContents
    limits: AttachmentLimits
    log_pages: int = 0
    log_limit: int = 0
    checkpoint_due: bool = False

    def __init__(
        self,
        address: Address,
        prepare: Callable[[Driver, str], None] = schema.migrate,
        idle: float = IDLE_SECONDS,
    ) -> None:
        """Connect at once, so that what is wrong with the address or the server is known.

        `prepare` is called with each new connection of the driver and the label of the database.
        The server ends a transaction in which nothing happens for `idle` seconds.

        Raises `StoreRefused`, or `StoreUnavailable` if the server cannot be reached now.
        """
        self._prepare = prepare
        self.blobs = self._contents = RowContents(lambda: connect(address), self.translate)
        self.limits = AttachmentLimits()
        self._address, self._idle = address, idle
        self._db: Driver | None = None
        self._lost_at: float | None = None
        self._next_try, self._pause = 0.0, FIRST_PAUSE
        self._flushes = True
        self._writer: int | None = None
        """The row of this connection in `writers`."""
        self._batch = 0
        """The number of the last transaction that was begun."""
        self._tx: PostgresTransaction | None = None
        self._unknown: PostgresTransaction | None = None
        """The last transaction, if it is not known whether it was committed."""
        self._settled: list[Transaction] = []
        self._ahead = 0.0
        """The seconds that the server's clock is ahead of ours."""
        self._changes = 0
        try:
            self._db = self._open()
        except psycopg.Error as error:
            raise errors.unreachable(error, address.label) from error

    @property
    def check(self) -> Callable[[], None]:
        """Does nothing: the server knows its own files."""
        return _nothing

    # Connecting

    def _open(self) -> Driver:
        db = connect(self._address, idle=self._idle)
        try:
            self._ahead = checks.require_usable(db, self._address) - time.time()
            self._prepare(db, self._address.label)
        except BaseException:
            db.close()
            raise
        return db

    def _drop(self) -> None:
        """Close a connection that is lost, or in an unknown state."""
        if self._db is not None:
            self._db.close()
            self._db = None
        if self._lost_at is None:
            self._lost_at, self._pause = time.monotonic(), FIRST_PAUSE

    def _connected(self) -> Driver:
        """Return the connection; connect again if it was lost, which may wait.

        Raises `StoreBusy` if the server has been away for too long.
        """
        if self._db is not None and not self._db.closed:
            return self._db
        self._drop()
        assert self._lost_at is not None
        while True:
            self._wait_for_try()
            try:
                self._db = self._open()
            except (psycopg.Error, StoreRefused) as error:
                if time.monotonic() - self._lost_at >= self._address.wait:
                    raise StoreBusy(f"{self._away(error)}; nothing was stored") from error
                log.debug("connecting to %s: %s", self._address.label, error)
            else:
                log.info("connected to %s again", self._address.label)
                self._lost_at = None
                return self._db

    def _wait_for_try(self) -> None:
        """Wait until the next attempt to connect, unless requests must be refused by now."""
        pause = self._next_try - time.monotonic()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if pause > 0:
            time.sleep(pause)
        self._next_try = time.monotonic() + self._pause * random.uniform(0.5, 1.0)

    def _away(self, error: Exception) -> str:
        said = errors.reason(error) if isinstance(error, psycopg.Error) else str(error)
        return f"{self._address.label} cannot be reached ({said})"

    # Writing

    def begin(self, clock: Clock, batch: Sequence[Work[object]]) -> PostgresTransaction:
        """Begin a transaction, and lock the session_keys of the batch in their order."""
        db = self._connected()
        if self._unknown is not None:
            self._settle(db)
        self._advance(db)
        tx = self._tx = self._transaction(db, clock)
        tx.lock_keys(keys_of(batch))
        return tx

    def _advance(self, db: Driver) -> None:
        """Begin a transaction whose first statement writes its number, in one round trip."""
        writer = self._writer or self._new_writer(db)
        self._batch += 1
        advance = _ADVANCE.format(writer, self._batch)
        first = [_BEGIN] if self._flushes else [_BEGIN, _UNFLUSHED]
        answers = db.execute("; ".join([*first, advance]), prepare=False)
        while answers.nextset():
            pass
        row = answers.fetchone()
        if row is None:
            self._writer = None
            raise NotCommittedError("the server has forgotten this writer")
        self._ahead = row[0] - time.time()

    def _new_writer(self, db: Driver) -> int:
        [(number,)] = db.execute(_NEW_WRITER).fetchall()
        db.execute(_FORGET_WRITERS)
        self._writer, self._batch = int(number), 0
        return self._writer

    def _transaction(self, db: Driver, clock: Clock) -> PostgresTransaction:
        times = self.times(clock)
        return PostgresTransaction(
            self, *times, clock.hex8, driver=db, cursor=db.cursor(), living=self.living
        )

    def times(self, clock: Clock) -> tuple[float, float]:
        """Return the time of the server, which all nodes have. A test may give its own clock."""
        now = time.time() + self._ahead
        wall = now if clock.wall is time.time else clock.wall()
        return wall, now if clock.steady is time.monotonic else clock.steady()

    def commit(self) -> None:
        """Commit the transaction; if the connection is lost meanwhile, find out whether it was.

        Raises `NotCommittedError` if it was not, and `StoreBusy` if the server is away for so long
        that this remains unknown.
        """
        assert self._db is not None
        self._unknown = self._tx  # also after Ctrl-C
        try:
            done = self._db.execute("COMMIT", prepare=False).statusmessage == "COMMIT"
        except psycopg.Error as error:
            if errors.is_lost(self._db, error):
                done = self._settle_at_once()
            else:
                self._unknown = None
                raise
        self._unknown = None
        if not done:
            raise NotCommittedError("the transaction was not committed")

    def _settle_at_once(self) -> bool:
        try:
            while True:
                try:
                    return self._is_committed(self._connected())
                except psycopg.Error as error:
                    if not errors.is_lost(self._db, error):
                        raise
        except StoreBusy as busy:
            away = str(busy).removesuffix("; nothing was stored")
            raise StoreBusy(
                f"{away}; it is not known whether this was stored, so repeat it with the same id"
            ) from busy

    def _settle(self, db: Driver) -> None:
        """Find out whether the last transaction was committed after all; keep it then."""
        if self._is_committed(db) and self._unknown is not None:
            self._settled.append(self._unknown)
        self._unknown = None

    def _is_committed(self, db: Driver) -> bool:
        """Return whether the last transaction was committed. Waits until it cannot be any more."""
        rows = db.execute("SELECT batch FROM writers WHERE id = $1 FOR UPDATE", [self._writer])
        found = rows.fetchall() == [(self._batch,)]
        said = "committed" if found else "not committed"
        log.info("the connection to %s was lost at COMMIT: %s", self._address.label, said)
        return found

    def take_settled(self) -> list[Transaction]:
        """Return the transactions whose requests were refused although they are committed."""
        found, self._settled = self._settled, []
        return found

    def roll_back(self) -> None:
        """Roll back the transaction, if there is one."""
        if self._tx is not None:
            self._changes += self._tx.changes
            self._tx = None
        if self._db is None or self._db.closed:
            return
        status = self._db.info.transaction_status
        if status == TransactionStatus.IDLE:
            return
        try:
            if status == TransactionStatus.ACTIVE:  # interrupted by Ctrl-C
                raise psycopg.OperationalError("a statement was interrupted")
            self._db.execute("ROLLBACK", prepare=False)
        except psycopg.Error:
            self._drop()

    def recover(self, error: Exception, tries: int, *, alone: bool) -> bool:
        """Connect again if the connection was lost. Return whether the batch shall run again."""
        if errors.is_lost(self._db, error):
            if not isinstance(error, NotCommittedError):
                self._drop()
            return tries < MAX_TRIES
        return alone and tries < MAX_TRIES and errors.may_succeed_alone(error)

    def total_changes(self) -> int:
        """Return a number that grows with each changed row."""
        return self._changes + (0 if self._tx is None else self._tx.changes)

    def flushes(self, value: bool) -> None:
        """Set whether a commit waits until its data is on the disk; outside of transactions."""
        self._flushes = value

    # Reading

    def run_read(self, clock: Clock, work: Work[R]) -> R:
        """Run work that only reads, in one read transaction."""
        tries = 0
        while True:
            tries += 1
            try:
                return self._read_once(clock, work)
            except psycopg.Error as error:
                if tries >= MAX_TRIES or not errors.is_lost(self._db, error):
                    raise self.translate(error, "nothing was read") from error
                self._drop()

    def _read_once(self, clock: Clock, work: Work[R]) -> R:
        db = self._connected()
        try:
            db.execute(_READ, prepare=False)
            return work(self._transaction(db, clock))
        finally:
            self.roll_back()

    # Errors and maintenance

    def translate(self, error: Exception, undone: str = "nothing was stored") -> Exception:
        """Return an error of the driver as one of the store's, and any other error as it is."""
        return errors.translate(error, self._address.label, undone)

    def is_search_damage(self, error: BaseException | None) -> bool:
        """Return whether only the search index is damaged; PostgreSQL does not tell."""
        return False

    def checkpoint(self) -> None:
        """Do nothing: the server makes its own checkpoints."""

    def vacuum(self) -> None:
        """Raise `StoreRefused` with what to do instead."""
        raise StoreRefused(_VACUUM.format(label=shlex.quote(self._address.label)))

    def backup_to(self, target: Path, progress: Progress | None = None) -> Path:
        """Raise `StoreRefused` with what to do instead."""
        name = shlex.quote(str(target))
        raise StoreRefused(_BACKUP.format(target=name, label=shlex.quote(self._address.label)))

    def close(self) -> None:
        """Close the connection, and remove its row from `writers`."""
        self._contents.close()
        db, self._db = self._db, None
        if db is None or db.closed:
            return
        try:
            if self._writer is not None and self._unknown is None:
                db.execute("DELETE FROM writers WHERE id = $1", [self._writer])
        except psycopg.Error as error:
            log.debug("closing the connection to %s: %s", self._address.label, error)
        db.close()


def _nothing() -> None: ...
