"""Errors of SQLite as errors of the store."""

from __future__ import annotations

from pathlib import Path

import apsw

from hermes.errors import (
    StoreBusy,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from hermes.store.files.problems import RETRY, may_write


def unreadable(path: Path, error: apsw.Error) -> StoreError:
    """Return the error for a file that could not be opened, in one sentence."""
    temporary = isinstance(error, apsw.IOError | apsw.NoMemError)
    if temporary or (isinstance(error, apsw.CantOpenError) and may_write(path)):
        kind = type(error).__name__
        return StoreUnavailable(f"{path} cannot be opened now: {kind}: {error}; {RETRY}")
    match error:
        case apsw.BusyError():
            return StoreBusy(f"{path} is in use by another process; try again")
        case apsw.FullError():
            return StoreUnavailable(f"the disk is full; {path} was left as it is; {RETRY}")
        case apsw.CantOpenError() | apsw.PermissionsError() | apsw.ReadOnlyError():
            return StoreRefused(f"{path} cannot be opened: {error}")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreRefused(
                f"{path} is damaged or not an SQLite file ({error}); restore a backup, or choose "
                "another file"
            )
        case _:
            return StoreRefused(f"{path} cannot be read now: {type(error).__name__}: {error}")


def translate(error: Exception, undone: str = "nothing was stored") -> Exception:
    """Return an SQLite error as one of ours, and any other error as it is.

    Texts are stored with lone surrogates replaced, but an id with one would become another id.
    """
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"another process holds the database; {undone}, try again")
        case apsw.FullError():
            return StoreFull(f"the disk is full; {undone}, try again when there is room")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreFailed(f"the database is damaged: {error}")
        case apsw.Error():
            return StoreError(f"{undone}: {type(error).__name__}: {error}")
        case UnicodeEncodeError():
            shown = f"{error.object[:50]!r}"
            return ValueError(f"ids, keys and names cannot have lone surrogates: {shown}; {undone}")
        case _:
            return error
