"""Group commit: run many requests in one transaction; each is committed entirely or not at all.

`commit_group` runs a batch in one transaction and reports the outcome of each request after COMMIT.
There are no savepoints: a request that is refused usually fails before it has written anything, and
then the others are committed as if it had not been there. The meaning of any other error depends
on where it occurs:

- inside a request that has written, or from the database (a constraint, a full disk, an interrupt):
  the transaction is rolled back, and each half of the batch is tried again in a separate
  transaction, until the request with the error is alone and gets it as its answer;
- at COMMIT, because of a constraint, a full disk or a lock: the same;
- at COMMIT, anything else: it is unknown whether the data is on disk. The store stops with
  `StoreFailed`; after it is opened again, the idempotency keys of the requests settle the matter;
- before anything has run, because another process holds the lock: every request is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs
from outcome import Error

from hermes.errors import StoreBusy, StoreFailed
from hermes.store.engine import Connection
from hermes.store.transaction import Clock, Transaction, Work

R = TypeVar("R")


@attrs.define
class Group(Generic[R]):
    """The result or error of each request of a batch, and the transactions that were committed."""

    outcomes: list[R | Error]
    committed: list[Transaction] = attrs.Factory(list)
    stopped: StoreBusy | StoreFailed | None = None
    """Why the last requests were refused without being tried again, or None."""


def commit_group(
    db: Connection, clock: Clock, batch: Sequence[Work[R]], tries: int = 0
) -> Group[R]:
    """Run the batch in one transaction; if that is rolled back, try each half in its own.

    `tries` counts the attempts before this one that failed.
    """
    # BEGIN to COMMIT in one `try`: Ctrl-C at any line must not leave the write lock behind.
    try:
        tx = db.begin(clock, batch)
        try:
            outcomes = [_run(db, tx, work) for work in tx.in_order(batch)]
            db.check()
        finally:
            tx.close()
        db.commit()
    except BaseException as error:
        db.roll_back()
        if not isinstance(error, Exception):
            raise
        return _after_rollback(db, clock, batch, error, tries + 1)
    return Group(outcomes, [tx])


def commit_unflushed(db: Connection, clock: Clock, batch: Sequence[Work[R]]) -> Group[R]:
    """Like `commit_group`, but without waiting for the disk.

    If the machine fails, the last of these commits may be lost; a process that is killed loses
    none. The next commit with a flush makes them durable too.
    """
    db.flushes(False)
    try:
        return commit_group(db, clock, batch)
    finally:
        db.flushes(True)


def _run(db: Connection, tx: Transaction, work: Work[R]) -> R | Error:
    """Run one request; raise its error if the transaction must be rolled back because of it."""
    before = db.total_changes()
    try:
        return work(tx)
    except Exception as error:
        if isinstance(error, db.driver_errors) or db.total_changes() != before:
            raise
        return Error(db.translate(error))


def _after_rollback(
    db: Connection, clock: Clock, batch: Sequence[Work[R]], error: Exception, tries: int
) -> Group[R]:
    """Refuse all requests if no other attempt makes sense, else try each half of the batch."""
    failure, alone = db.translate(error), len(batch) == 1
    if failure is not error:
        failure.__cause__ = error
        if db.recover(error, tries, alone=alone):
            return commit_group(db, clock, batch, tries)
    if isinstance(failure, StoreFailed):
        return _refused(failure, len(batch))
    if isinstance(error, StoreBusy):
        return _refused(error, len(batch))
    if alone:
        return Group([Error(failure)])
    middle = len(batch) // 2
    group = commit_group(db, clock, batch[:middle])
    if group.stopped is None:
        rest = commit_group(db, clock, batch[middle:])
    else:
        rest = _refused(group.stopped, len(batch) - middle)
    return Group(group.outcomes + rest.outcomes, group.committed + rest.committed, rest.stopped)


def _refused(error: StoreBusy | StoreFailed, number: int) -> Group[R]:
    """The same error for each request, in its own object: raising one extends its traceback."""
    return Group([Error(type(error)(*error.args)) for _ in range(number)], stopped=error)


def commit_one(db: Connection, clock: Clock, work: Work[R]) -> R:
    """Run one request in its own transaction and return its result, or raise."""
    group = commit_group(db, clock, [work])
    result = group.outcomes[0] if group.stopped is None else Error(group.stopped)
    return result.unwrap() if isinstance(result, Error) else result


def run_outside(db: Connection, function: Callable[[Connection], R]) -> R:
    """Run a function outside of any transaction; the driver's errors are raised as ours."""
    try:
        return function(db)
    except db.driver_errors as error:
        raise db.translate(error, "nothing was done") from error
