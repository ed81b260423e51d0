"""Group commit: run many requests in one transaction; each is committed entirely or not at all.

`commit_group` runs a batch in one transaction and reports the outcome of each request after COMMIT.
The first attempt uses no savepoints: a request that is refused usually fails before it has written
anything. If one fails after it has written, the batch is rolled back and run again with a savepoint
around each request. The meaning of an error depends on where it occurs:

- inside a request, with the transaction still open: that request alone is rolled back;
- inside a request, with the transaction gone (disk full, I/O error, interrupt): everything is
  rolled back, and each request is run again in its own transaction;
- at COMMIT, because of a constraint, a full disk or a lock: the same;
- at COMMIT, anything else: it is unknown whether the data is on disk. The store stops with
  `StoreFailed`; after it is opened again, the idempotency keys of the requests settle the matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import apsw
import attrs

from hermes.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from hermes.store.connection import Database
from hermes.store.transaction import Clock, Transaction, Work

R = TypeVar("R")


@attrs.define
class Done(Generic[R]):
    """The request is on disk."""

    value: R


@attrs.define
class Failed:
    """Nothing of the request is on disk."""

    error: Exception


Outcome = Done[R] | Failed


@attrs.define
class Group(Generic[R]):
    """The outcome of each request of a batch, and the transactions that were committed."""

    outcomes: list[Outcome[R]]
    committed: list[Transaction] = attrs.Factory(list)
    fatal: StoreFailed | None = None
    """Set if the store must stop; the affected requests have it as their outcome."""


class _TransactionLost(Exception):
    """SQLite rolled the transaction back: run the requests again, one by one."""


class _SavepointsNeeded(Exception):
    """A request failed after it had written: run the batch again with savepoints."""


def translate(error: Exception, undone: str = "nothing was stored") -> Exception:
    """Return an SQLite error as one of ours, and any other error as it is."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"another process holds the database; {undone}, try again")
        case apsw.FullError():
            return StoreFull(f"the disk is full; {undone}, try again when there is room")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreFailed(f"the database is damaged: {error}")
        case apsw.Error():
            return StoreError(f"{undone}: {type(error).__name__}: {error}")
        case _:
            return error


def _copies(error: StoreFailed | StoreBusy, number: int) -> list[Failed]:
    """The same error for each request, in its own object: raising one extends its traceback."""
    return [Failed(type(error)(*error.args)) for _ in range(number)]


def commit_group(
    db: Database, clock: Clock, check: Callable[[], None], batch: Sequence[Work[R]]
) -> Group[R]:
    """Run the batch in one transaction; if that is lost, run each request in its own.

    `check` is called before COMMIT and raises `StoreFailed` if the file was removed or replaced.
    """
    if len(batch) > 1:
        try:
            try:
                return _together(db, clock, check, batch, _unguarded)
            except _SavepointsNeeded:
                return _together(db, clock, check, batch, _in_savepoint)
        except _TransactionLost:
            pass
        except StoreFailed as fatal:
            return Group([*_copies(fatal, len(batch))], fatal=fatal)
    return _one_by_one(db, clock, check, batch)


def commit_one(db: Database, clock: Clock, check: Callable[[], None], work: Work[R]) -> R:
    """Run one request in its own transaction and return its result, or raise."""
    return _commit(db, clock, check, work)[1]


def _together(
    db: Database,
    clock: Clock,
    check: Callable[[], None],
    batch: Sequence[Work[R]],
    run: Callable[[Database, Transaction, Work[R]], Outcome[R]],
) -> Group[R]:
    try:
        db.begin()
    except apsw.BusyError as error:
        # One by one, each request would wait for the lock again.
        return Group([*_copies(StoreBusy(str(translate(error))), len(batch))])
    except apsw.Error as error:
        raise _TransactionLost from error
    try:
        tx = Transaction.begin(db, clock)
        try:
            outcomes = [run(db, tx, work) for work in batch]
            check()
        finally:
            tx.close()
        _finish(db, lost=_TransactionLost)
    except BaseException:
        _roll_back(db)
        raise
    return Group(outcomes, [tx])


def _unguarded(db: Database, tx: Transaction, work: Work[R]) -> Outcome[R]:
    before = db.total_changes()
    try:
        return Done(work(tx))
    except apsw.Error as error:
        db.search_stale = True
        raise (_SavepointsNeeded if db.in_transaction else _TransactionLost) from error
    except Exception as error:  # the answer to this request
        if db.total_changes() != before:
            raise _SavepointsNeeded from error
        return Failed(error)


def _in_savepoint(db: Database, tx: Transaction, work: Work[R]) -> Outcome[R]:
    cursor, replies, accepted = tx.cursor, len(tx.outbox), len(tx.accepted)
    try:
        cursor.execute("SAVEPOINT request")
        value = work(tx)
        cursor.execute("RELEASE request")
    except Exception as error:  # the answer to this request
        if not db.in_transaction:
            db.search_stale = True
            raise _TransactionLost from error
        failure = translate(error)
        if isinstance(failure, StoreFailed):
            raise failure from error
        try:
            cursor.execute("ROLLBACK TO request")
            cursor.execute("RELEASE request")
        except apsw.Error as worse:
            db.search_stale = True
            raise _TransactionLost from worse
        del tx.outbox[replies:], tx.accepted[accepted:]
        return Failed(failure)
    return Done(value)


def _one_by_one(
    db: Database, clock: Clock, check: Callable[[], None], batch: Sequence[Work[R]]
) -> Group[R]:
    group: Group[R] = Group([])
    for work in batch:
        try:
            tx, value = _commit(db, clock, check, work)
        except StoreFailed as fatal:
            # The requests before this one are on disk.
            group.outcomes += _copies(fatal, len(batch) - len(group.outcomes))
            group.fatal = fatal
            break
        except StoreBusy as busy:
            group.outcomes += _copies(busy, len(batch) - len(group.outcomes))
            break
        except Exception as error:  # noqa: BLE001 - the answer to this request
            group.outcomes.append(Failed(error))
        else:
            group.outcomes.append(Done(value))
            group.committed.append(tx)
    return group


def _commit(
    db: Database, clock: Clock, check: Callable[[], None], work: Work[R]
) -> tuple[Transaction, R]:
    # BEGIN to COMMIT in one `try`: Ctrl-C at any line must not leave the write lock behind.
    try:
        db.begin()
        tx = Transaction.begin(db, clock)
        try:
            value = work(tx)
            check()
        finally:
            tx.close()
        _finish(db, lost=None)
    except apsw.Error as error:
        db.search_stale = True
        _roll_back(db)
        raise translate(error) from error
    except BaseException:
        _roll_back(db)
        raise
    return tx, value


def _finish(db: Database, *, lost: type[Exception] | None) -> None:
    """COMMIT. Tell errors that certainly rolled back from those that leave the outcome unknown.

    `lost` is raised instead of a translated error if the transaction was rolled back.
    """
    try:
        db.execute("COMMIT")
    except (apsw.ConstraintError, apsw.FullError, apsw.BusyError) as error:
        db.search_stale = True
        _roll_back(db)
        raise (translate(error) if lost is None else lost()) from error
    except apsw.Error as error:
        db.fatal = StoreFailed(
            f"cannot tell whether the last commit is on disk ({error}); open the store again to see"
        )
        _roll_back(db)
        raise db.fatal from error


def _roll_back(db: Database) -> None:
    if not db.in_transaction:
        return
    try:
        db.execute("ROLLBACK")
    except apsw.Error as error:
        db.fatal = StoreFailed(f"the database cannot be rolled back: {error}")
        raise db.fatal from error


def read(db: Database, clock: Clock, work: Work[R]) -> R:
    """Run a request that only reads, in one read transaction."""
    try:
        db.begin_reading()
        tx = Transaction.begin(db, clock)
        try:
            return work(tx)
        finally:
            tx.close()
    except apsw.Error as error:
        raise translate(error, "nothing was read") from error
    finally:
        _roll_back(db)
