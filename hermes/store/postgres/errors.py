"""Errors of the server and of psycopg as those of the store."""

from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg import errors as pg

from hermes.errors import (
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from hermes.store.postgres.driver import Driver

_CONFLICTS: Final = (
    pg.UniqueViolation,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.ExclusionViolation,
    pg.ForeignKeyViolation,  # a sweep has deleted the row, or somebody has just named it
)
_FULL: Final = (pg.DiskFull, pg.OutOfMemory)
_DAMAGED: Final = (pg.DataCorrupted, pg.IndexCorrupted)
_OTHER_SCHEMA: Final = (pg.UndefinedTable, pg.UndefinedColumn)
_STANDBY: Final = (pg.ReadOnlySqlTransaction,)
_REFUSED: Final = re.compile(
    r"password|authentication|pg_hba\.conf|does not exist|permission denied|not permitted|"
    r"certificate|does not support SSL|scram|unrecognized configuration",
    re.IGNORECASE,
)
"""What a server says to a client that it will not accept later either."""


class NotCommittedError(psycopg.OperationalError):
    """The connection was lost at COMMIT, and the transaction was certainly not committed."""


def may_succeed_alone(error: BaseException) -> bool:
    """Return whether a request failed because of another transaction at the same time."""
    return isinstance(error, _CONFLICTS)


def is_lost(db: Driver | None, error: BaseException) -> bool:
    """Return whether an error means that the connection must be opened again."""
    if isinstance(error, (NotCommittedError, *_STANDBY)):
        return True
    return isinstance(error, psycopg.Error) and (db is None or db.closed)


def is_refusal(error: psycopg.Error) -> bool:
    """Return whether connecting failed because of the user, the password or the database."""
    return _REFUSED.search(str(error)) is not None


def translate(error: Exception, label: str, undone: str) -> Exception:
    """Return an error of psycopg as one of the store's, and any other error as it is."""
    if not isinstance(error, psycopg.Error):
        return error
    text = reason(error)
    if isinstance(error, _OTHER_SCHEMA):
        return StoreFailed(f"{label} has other tables than expected ({text})")
    if isinstance(error, _DAMAGED):
        return StoreFailed(f"{label} is damaged ({text})")
    if isinstance(error, _FULL):
        return StoreFull(f"the server of {label} has no space left ({text}); {undone}")
    if isinstance(error, pg.LockNotAvailable | psycopg.OperationalError):
        return StoreBusy(f"{label} did not answer in time ({text}); {undone}")
    return StoreError(f"{text}; {undone}")


def refused(error: psycopg.Error, label: str) -> StoreRefused:
    """Return the sentence for a server that does not accept the user."""
    return StoreRefused(
        f"{label} cannot be used ({reason(error)}); check the user, the password and the database"
    )


def unreachable(error: psycopg.Error, label: str) -> StoreRefused:
    """Return the error for a server that could not be connected to, now or ever."""
    if is_refusal(error):
        return refused(error, label)
    return StoreUnavailable(
        f"{label} cannot be reached ({reason(error)}); check the host, the port and the server"
    )


def reason(error: psycopg.Error) -> str:
    """Return what the server said, in one line and without the address."""
    text = error.diag.message_primary or str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    return first.rpartition("FATAL:")[2].strip() or first
