"""The lock of a runtime on its database file: it holds even if the lock file is removed.

A runtime holds two locks. The one on the lock file exists before the database does, and its text
names the process. The other one is on a byte of the database itself that SQLite does not use; it
belongs to the open file, so removing or replacing the lock file does not affect it.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from hermes.errors import StoreInUse, StoreUnavailable
from hermes.forks import watch_forks
from hermes.store.files import guard
from hermes.store.files.file_lock import resolve
from hermes.store.files.problems import cannot_open

LOCK_TRIES, LOCK_PAUSE = 10, 0.01
_OWNER_BYTE = 0x40000200  # follows the bytes of SQLite's locks, in a page without data
_UNKNOWN = "unknown process"


class RuntimeLock:
    """The exclusive lock of the one runtime of a file, until `close` or the end of the process.

    Raises `StoreInUse` if another runtime holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: int | None = None
        try:
            self._file: IO[str] = open(  # noqa: SIM115 - open for as long as the lock is held
                f"{path}.lock", "a+", opener=lambda name, flags: os.open(name, flags, 0o600)
            )
        except OSError as error:
            raise cannot_open(f"{path}.lock", error) from error
        if not self._acquire():
            self._file.seek(0)
            owner = self._file.read(100).strip() or _UNKNOWN
            self._file.close()
            raise _in_use(path, owner)
        watch_forks(self)
        try:
            self.lock_database()
        except BaseException:
            self.close()
            raise
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()}")
        self._file.flush()

    def _acquire(self) -> bool:
        """Try for a moment: another process may hold the lock briefly, inside of `owner`."""
        for _ in range(LOCK_TRIES):
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(LOCK_PAUSE)
        return False

    def lock_database(self) -> None:
        """Lock the database itself, if it exists. Call it again when it has been created.

        Raises `StoreInUse` if another runtime holds it: its lock file was removed.
        """
        if self._database is not None:
            return
        descriptor = _open(self._path, os.O_RDWR)
        if descriptor is None:
            return
        for _ in range(LOCK_TRIES):
            if guard.try_lock(descriptor, fcntl.F_WRLCK, _OWNER_BYTE):
                self._database = descriptor
                return
            time.sleep(LOCK_PAUSE)
        guard.close_descriptor(descriptor)
        raise _in_use(self._path, _UNKNOWN)

    def forked(self) -> None:
        """Close a forked process's copies, which would hold the lock after the parent's end."""
        self._file.close()
        if self._database is not None:
            os.close(self._database)  # the child has no other locks that this could drop
            self._database = None

    def close(self) -> None:
        """Release the lock."""
        if self._database is not None:
            guard.lock(self._database, fcntl.F_UNLCK, _OWNER_BYTE)
            guard.close_descriptor(self._database)
            self._database = None
        self._file.close()


def owner(path: Path) -> str | None:
    """Return the process that owns the file as its runtime ("pid 123"), or None.

    The locks decide, not the text in the lock file.
    """
    try:
        with open(f"{path}.lock", encoding="utf-8", errors="replace") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return lock.read(100).strip() or _UNKNOWN
    except FileNotFoundError:
        pass
    except OSError as error:
        raise cannot_open(f"{path}.lock", error) from error
    return _UNKNOWN if _is_database_locked(path) else None


def _is_database_locked(path: Path) -> bool:
    descriptor = _open(path, os.O_RDONLY)
    if descriptor is None:
        return False
    try:
        return guard.is_locked(descriptor, _OWNER_BYTE)
    finally:
        guard.close_descriptor(descriptor)


def _open(path: Path, flags: int) -> int | None:
    """Open the database, or return None if it does not exist or SQLite will report the error."""
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        problem = cannot_open(path, error)
        if isinstance(problem, StoreUnavailable):
            raise problem from error
        return None


def require_free(path: str | os.PathLike[str]) -> None:
    """Raise `StoreInUse` if a runtime owns the file; one may still acquire it later."""
    real = resolve(path)
    if (other := owner(real)) is not None:
        raise _in_use(real, other)


def _in_use(path: Path, owner: str) -> StoreInUse:
    return StoreInUse(
        f"{path} is already in use by another Hermes runtime ({owner}); "
        "stop that one, or choose another file"
    )
