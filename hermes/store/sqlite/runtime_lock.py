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
from io import FileIO
from pathlib import Path

from hermes.errors import StoreInUse, StoreUnavailable
from hermes.forks import watch_forks
from hermes.store.files.problems import cannot_open
from hermes.store.sqlite import guard
from hermes.store.sqlite.file_lock import resolve

LOCK_TRIES, LOCK_PAUSE = 10, 0.01
_OWNER_BYTE = 0x40000200  # follows the bytes of SQLite's locks, in a page without data
_UNKNOWN = "unknown process"
_MAX_OWNER = 100  # bytes of the lock file that are read


class RuntimeLock:
    """The exclusive lock of the one runtime of a file, until `close` or the end of the process.

    Raises `StoreInUse` if another runtime holds it, `StoreUnavailable` if the lock file cannot be
    opened or written now, and `StoreRefused` if it never can.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database: int | None = None
        try:
            self._file: FileIO = open(  # noqa: SIM115 - open for as long as the lock is held
                f"{path}.lock",
                "ab+",
                buffering=0,
                opener=lambda name, flags: os.open(name, flags, 0o600),
            )
        except OSError as error:
            raise cannot_open(f"{path}.lock", error) from error
        try:
            self._acquire()
            watch_forks(self)
            self.lock_database()
            self._write_owner()
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        """Try for a moment: another process may hold the lock briefly, inside of `owner`."""
        for _ in range(LOCK_TRIES):
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(LOCK_PAUSE)
        raise _in_use(self._path, self._read_owner())

    def _read_owner(self) -> str:
        try:
            self._file.seek(0)
            return _owner_in(self._file.read(_MAX_OWNER))
        except OSError as error:
            raise cannot_open(f"{self._path}.lock", error, "read") from error

    def _write_owner(self) -> None:
        rest = f"pid {os.getpid()}".encode()
        try:
            self._file.truncate(0)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise cannot_open(f"{self._path}.lock", error, "written") from error

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
        with open(f"{path}.lock", "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _owner_in(lock.read(_MAX_OWNER))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise cannot_open(f"{path}.lock", error) from error
    return _UNKNOWN if _is_database_locked(path) else None


def _owner_in(content: bytes) -> str:
    return content.decode(errors="replace").strip() or _UNKNOWN


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
