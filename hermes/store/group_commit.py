"""From requests to commits: each request whole or absent, an error that says which.

`commit_group` runs many requests in one transaction, and answers for all of them only after COMMIT.
Most batches need no savepoints: who is refused is refused before he has written anything, and
leaves nothing to undo. An error that may leave something ends the attempt, and the batch is run
again with each request in a savepoint. What an error means depends on where it came from:

- inside a request, with the transaction still open: that request alone is undone;
- inside a request, with the transaction gone (disk full, I/O error, interrupt): all are undone, and
  each is run again alone;
- at COMMIT, for a constraint, a full disk or a lock: undone, and each is run again alone;
- at COMMIT, anything else: nobody can tell whether it is on disk. `StoreFailed`; the file is opened
  anew, and the idempotency keys settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import apsw
import attrs

from hermes.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from hermes.messages import OutboxRow
from hermes.store.connection import Database
from hermes.store.transaction import Clock, Transaction, Work

R = TypeVar("R")


@attrs.define
class Done(Generic[R]):
    """On disk."""

    value: R


@attrs.define
class Failed:
    """Not on disk."""

    error: Exception


Outcome = Done[R] | Failed


@attrs.define
class Group(Generic[R]):
    """What became of a batch, and hints about what it wrote."""

    outcomes: list[Outcome[R]]
    boundaries: bool = False
    unindexed: bool = False
    outbox: Sequence[OutboxRow] = ()
    fatal: StoreFailed | None = None
    """Set when the store must stop; the requests it hit have it as their outcome."""


class _TransactionLost(Exception):
    """SQLite rolled everything back: run the requests again, one by one."""


class _SavepointsNeeded(Exception):
    """A request failed half done: undo everything, and run the requests again in savepoints."""


def translate(error: Exception, undone: str = "nothing was stored") -> Exception:
    """SQLite's error as one of ours; other errors as they are."""
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


def _each(error: StoreFailed | StoreBusy, number: int) -> list[Failed]:
    """The same bad news for each, in an exception of its own: raising one adds to its traceback."""
    return [Failed(type(error)(*error.args)) for _ in range(number)]


def commit_group(
    db: Database, clock: Clock, check: Callable[[], None], batch: Sequence[Work[R]]
) -> Group[R]:
    """Run the batch in one transaction, or each by itself where that is lost."""
    if len(batch) > 1:
        try:
            try:
                return _together(db, clock, check, batch, _unguarded)
            except _SavepointsNeeded:
                return _together(db, clock, check, batch, _in_savepoint)
        except _TransactionLost:
            pass
        except StoreFailed as fatal:
            return Group([*_each(fatal, len(batch))], fatal=fatal)
    return _one_by_one(db, clock, check, batch)


def commit_one(db: Database, clock: Clock, check: Callable[[], None], work: Work[R]) -> R:
    """Run one request in its own transaction, or raise."""
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
        # Alone each would wait as long again, and all the others behind it.
        return Group([*_each(StoreBusy(str(translate(error))), len(batch))])
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
    return Group(outcomes, tx.boundaries, tx.unindexed, tx.outbox)


def _unguarded(db: Database, tx: Transaction, work: Work[R]) -> Outcome[R]:
    before = db.total_changes()
    try:
        return Done(work(tx))
    except apsw.Error as error:
        db.shaken = True
        raise (_SavepointsNeeded if db.in_transaction else _TransactionLost) from error
    except Exception as error:  # the request's own: whatever it is, it is answered
        if db.total_changes() != before:
            raise _SavepointsNeeded from error
        return Failed(error)


def _in_savepoint(db: Database, tx: Transaction, work: Work[R]) -> Outcome[R]:
    cursor, written = tx.cursor, len(tx.outbox)
    try:
        cursor.execute("SAVEPOINT request")
        value = work(tx)
        cursor.execute("RELEASE request")
    except Exception as error:  # the request's own: whatever it is, it is answered
        if not db.in_transaction:
            db.shaken = True
            raise _TransactionLost from error
        failure = translate(error)
        if isinstance(failure, StoreFailed):
            raise failure from error
        try:
            cursor.execute("ROLLBACK TO request")
            cursor.execute("RELEASE request")
        except apsw.Error as worse:
            db.shaken = True
            raise _TransactionLost from worse
        del tx.outbox[written:]
        return Failed(failure)
    return Done(value)


def _one_by_one(
    db: Database, clock: Clock, check: Callable[[], None], batch: Sequence[Work[R]]
) -> Group[R]:
    outcomes: list[Outcome[R]] = []
    boundaries = unindexed = False
    outbox: list[OutboxRow] = []
    for work in batch:
        try:
            tx, value = _commit(db, clock, check, work)
        except StoreFailed as fatal:
            # What was committed before this one is on disk, and is answered so.
            outcomes += _each(fatal, len(batch) - len(outcomes))
            return Group(outcomes, boundaries, unindexed, outbox, fatal=fatal)
        except StoreBusy as busy:
            outcomes += _each(busy, len(batch) - len(outcomes))
            break
        except Exception as error:  # noqa: BLE001 - answered to the request it belongs to
            outcomes.append(Failed(error))
        else:
            outcomes.append(Done(value))
            boundaries |= tx.boundaries
            unindexed |= tx.unindexed
            outbox += tx.outbox
    return Group(outcomes, boundaries, unindexed, outbox)


def _commit(
    db: Database, clock: Clock, check: Callable[[], None], work: Work[R]
) -> tuple[Transaction, R]:
    # From BEGIN to COMMIT in one `try`: a Ctrl-C at any line must not leave the write lock behind.
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
        db.shaken = True
        _roll_back(db)
        raise translate(error) from error
    except BaseException:
        _roll_back(db)
        raise
    return tx, value


def _finish(db: Database, *, lost: type[Exception] | None) -> None:
    """COMMIT, and tell errors that surely undid it from those that leave it unknown."""
    try:
        db.execute("COMMIT")
    except (apsw.ConstraintError, apsw.FullError, apsw.BusyError) as error:
        db.shaken = True
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
    """Run a request that only reads, on one snapshot."""
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
