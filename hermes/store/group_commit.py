"""Group commit: run many requests in one transaction; each is committed entirely or not at all.

`commit_group` runs a batch in one transaction and reports the outcome of each request after COMMIT.
There are no savepoints: a request that is refused usually fails before it has written anything, and
then the others are committed as if it had not been there. The meaning of any other error depends
on where it occurs:

- inside a request that has written, or from SQLite (a constraint, a full disk, an interrupt): the
  transaction is rolled back, and each half of the batch is tried again in a separate transaction,
  until the request with the error is alone and gets it as its answer;
- at COMMIT, because of a constraint, a full disk or a lock: the same;
- at COMMIT, anything else: it is unknown whether the data is on disk. The store stops with
  `StoreFailed`; after it is opened again, the idempotency keys of the requests settle the matter;
- before anything has run, because another process holds the lock: every request is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import apsw
import attrs
from outcome import Error

from hermes.errors import StoreBusy, StoreFailed
from hermes.store.connection import Database, translate
from hermes.store.transaction import Clock, LenientTransaction, Transaction, Work

log: logging.Logger = logging.getLogger(__name__)
R = TypeVar("R")


@attrs.define
class Group(Generic[R]):
    """The result or error of each request of a batch, and the transactions that were committed."""

    outcomes: list[R | Error]
    committed: list[Transaction] = attrs.Factory(list)
    stopped: StoreBusy | StoreFailed | None = None
    """Why the last requests were refused without being tried again, or None."""


def commit_group(
    db: Database, clock: Clock, check: Callable[[], None], batch: Sequence[Work[R]]
) -> Group[R]:
    """Run the batch in one transaction; if that is rolled back, try each half in its own.

    `check` is called before COMMIT and raises `StoreFailed` if the file was removed or replaced.
    """
    # BEGIN to COMMIT in one `try`: Ctrl-C at any line must not leave the write lock behind.
    try:
        db.begin()
        tx = Transaction.begin(db, clock)
        try:
            outcomes = [_run(tx, work) for work in batch]
            check()
        finally:
            tx.close()
        db.commit()
    except BaseException as error:
        db.roll_back()
        if not isinstance(error, Exception):
            raise
        return _after_rollback(db, clock, check, batch, error)
    return Group(outcomes, [tx])


def commit_unflushed(
    db: Database, clock: Clock, check: Callable[[], None], batch: Sequence[Work[R]]
) -> Group[R]:
    """Like `commit_group`, but without waiting for the disk.

    If the machine fails, the last of these commits may be lost; a process that is killed loses
    none. The next commit with a flush makes them durable too.
    """
    db.flushes(False)
    try:
        return commit_group(db, clock, check, batch)
    finally:
        db.flushes(True)


def _run(tx: Transaction, work: Work[R]) -> R | Error:
    """Run one request; raise its error if the transaction must be rolled back because of it."""
    before = tx.db.total_changes()
    try:
        return work(tx)
    except Exception as error:
        if isinstance(error, apsw.Error) or tx.db.total_changes() != before:
            raise
        return Error(translate(error))


def _after_rollback(
    db: Database,
    clock: Clock,
    check: Callable[[], None],
    batch: Sequence[Work[R]],
    error: Exception,
) -> Group[R]:
    """Refuse all requests if no other attempt makes sense, else try each half of the batch."""
    failure = translate(error)
    if failure is not error:
        failure.__cause__ = error
        db.search_stale = True
    if isinstance(failure, StoreFailed):
        return _refused(failure, len(batch))
    if isinstance(error, StoreBusy):
        return _refused(error, len(batch))
    if len(batch) == 1:
        return Group([Error(failure)])
    middle = len(batch) // 2
    group = commit_group(db, clock, check, batch[:middle])
    if group.stopped is None:
        rest = commit_group(db, clock, check, batch[middle:])
    else:
        rest = _refused(group.stopped, len(batch) - middle)
    return Group(group.outcomes + rest.outcomes, group.committed + rest.committed, rest.stopped)


def _refused(error: StoreBusy | StoreFailed, number: int) -> Group[R]:
    """The same error for each request, in its own object: raising one extends its traceback."""
    return Group([Error(type(error)(*error.args)) for _ in range(number)], stopped=error)


def commit_one(db: Database, clock: Clock, check: Callable[[], None], work: Work[R]) -> R:
    """Run one request in its own transaction and return its result, or raise."""
    group = commit_group(db, clock, check, [work])
    result = group.outcomes[0] if group.stopped is None else Error(group.stopped)
    return result.unwrap() if isinstance(result, Error) else result


def run_outside(db: Database, function: Callable[[Database], R]) -> R:
    """Run a function outside of any transaction; SQLite's errors are raised as ours."""
    try:
        return function(db)
    except apsw.Error as error:
        raise translate(error, "nothing was done") from error


def read(db: Database, clock: Clock, work: Work[R]) -> R:
    """Run a request that only reads, in one read transaction."""
    try:
        db.begin_reading()
        tx = Transaction.begin(db, clock)
        try:
            return work(tx)
        finally:
            tx.close()
    except (apsw.Error, UnicodeError) as error:
        return _read_again(db, clock, work, error)
    finally:
        db.roll_back()


def _read_again(db: Database, clock: Clock, work: Work[R], error: Exception) -> R:
    """Read with invalid UTF-8 replaced if that was the error, else raise it as ours."""
    if not isinstance(error, UnicodeDecodeError):
        raise translate(error, "nothing was read") from error
    log.warning("a stored text is not valid UTF-8; the invalid bytes are replaced: %s", error)
    tx = LenientTransaction.begin(db, clock)
    try:
        return work(tx)
    except apsw.Error as again:
        raise translate(again, "nothing was read") from again
    finally:
        tx.close()
