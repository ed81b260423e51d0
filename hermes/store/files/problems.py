"""Errors of the operating system in words, and which of them are temporary."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.errors import StoreError, StoreFull, StoreRefused, StoreUnavailable

_TEMPORARY = frozenset(
    {
        errno.EAGAIN, errno.EBUSY, errno.EDQUOT, errno.EINTR, errno.EIO, errno.EMFILE, errno.ENFILE,
        errno.ENOLCK, errno.ENOMEM, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT,
    }
)  # fmt: skip
RETRY = "try again later"


def cannot_open(path: object, error: OSError, what: str = "opened") -> StoreRefused:
    """Return the error for a path that could not be opened, in one sentence."""
    if is_temporary(error):
        return StoreUnavailable(f"{path} cannot be {what} now: {error.strerror}; {RETRY}")
    return StoreRefused(f"{path} cannot be {what}: {error.strerror}{_advice(str(path), error)}")


def _advice(path: str, error: OSError) -> str:
    """Return what to do about missing rights, as the end of a sentence."""
    if error.errno == errno.EROFS:
        return "; choose a folder that can be written to"
    if error.errno not in {errno.EACCES, errno.EPERM}:
        return ""
    if os.path.exists(path):
        return "; let this user read and write that file, or choose another database"
    folder = os.path.dirname(path)
    return f"; let this user write to the folder {folder}, or choose another database"


def is_temporary(error: OSError) -> bool:
    """Return whether an error may pass, so that the same call can succeed later."""
    return error.errno in _TEMPORARY


def may_write(path: Path) -> bool:
    """Return whether this process is allowed to write to the file and its folder."""
    return os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)


@contextmanager
def storing() -> Iterator[None]:
    """Raise `StoreFull` or `StoreError` if the file system fails in the block."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull("the disk is full, and the attachment was not stored") from error
        text = f"the attachment could not be stored: {error.strerror or error}"
        raise StoreError(text) from error
