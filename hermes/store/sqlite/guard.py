"""What keeps the locks of a database file, and detects that the file was removed or replaced.

POSIX locks have a trap: when any code of a process closes any descriptor of a file, the process
loses all its locks on that file, including those of SQLite. A second copy of SQLite, or
`open(path).close()`, is enough. The next process that closes the file then removes the WAL file
although it is in use, and nobody sees later commits. `FileGuard` takes the same locks as
open-file-description locks, which belong to their descriptor and survive this.
"""

from __future__ import annotations

import fcntl
import operator
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import apsw
import attrs

from hermes.errors import StoreFailed
from hermes.store.sqlite.stamp import Stamp

_SETTLED_NS = 100_000_000
_OFD_GETLK, _OFD_SETLK = 36, 37  # constants of Linux; the fcntl module has no names for them
_REQUEST = "hhqqi4x"  # struct flock
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # the bytes of SQLite's shared lock
_SHM_DEADMAN = 128  # the byte in the shared memory file that every connection locks

# In the index: the page size, the number of frames, the last frame's checksum, and the salt.
_INDEX = struct.Struct("=14xHI4xII8s")
_FRAME_END = struct.Struct(">8sII")  # the end of a frame's header: the salt and the checksum
_LOG_HEADER, _FRAME_HEADER, _SALT = 32, 24, 16  # in the WAL file: two sizes and a position

_Seen: TypeAlias = tuple[tuple[int, ...], int, bytes | None]
"""The database's file and its change time, that of the directory, and the salt of the WAL file."""
_facts: Callable[[os.stat_result], tuple[int, ...]] = operator.attrgetter(
    "st_dev", "st_ino", "st_ctime_ns"
)


@attrs.define
class _Descriptors:
    """The open files that guard one database, shared by all its connections in this process."""

    database: int
    log: int
    shared: int
    directory: int
    identities: dict[str, tuple[int, int]]
    users: int = 0
    inherited: list[int] = attrs.Factory(list)


_guards: dict[tuple[int, int], _Descriptors] = {}
_guards_lock = threading.Lock()


class FileGuard:
    """Keeps a file's locks, and detects that the file was removed or replaced.

    Create it when the connections are open; call `leave` before they are closed, `close` after.
    """

    def __init__(self, path: Path) -> None:
        status = os.stat(path)
        self._key = (status.st_dev, status.st_ino)
        with _guards_lock:
            held = _guards.get(self._key)
            if held is None:
                held = _guards[self._key] = _hold(path)
            held.users += 1
        self._held = held
        self._path = str(path)
        self._pid = os.getpid()
        self._settled: object = ()
        self._stamp: Stamp | None = None

    def check(self) -> None:
        """Raise `StoreFailed` if a file was removed, replaced, overwritten or cut while in use.

        This changes what the database's path leads to, its change time, or that of its directory,
        or the WAL file does not fit its index. Call it in a write transaction, in which nobody else
        may write to that file.
        """
        seen = None
        with suppress(OSError):
            seen = _facts(os.stat(self._path)), *_look(self._held)
        if seen != self._settled:
            self._check_changed(seen)

    def _check_changed(self, seen: _Seen | None) -> None:
        self.check_files()
        if _look(self._held)[1] is None:
            error = StoreFailed(f"{self._path}-wal was overwritten or truncated while in use")
            if self._stamp is not None:
                self._stamp.lose_log(str(error) if self._has_foreign_log() else None)
            raise error
        if self._stamp is not None:
            self._stamp.check()
        # A second change could have the same time as a recent one.
        if seen is not None and time.time_ns() - max(seen[0][-1], seen[1]) > _SETTLED_NS:
            self._settled = seen

    def _has_foreign_log(self) -> bool:
        """Return whether the WAL file begins as that of another database."""
        salt = os.pread(self._held.log, 8, _SALT)
        return bool(salt) and salt != os.pread(self._held.shared, 8, _INDEX.size - 8)

    def check_files(self) -> None:
        """Raise `StoreFailed` if a file was removed or replaced since it was opened."""
        for path in self._held.identities:
            if not self._is_there(path):
                raise StoreFailed(_replaced(path))

    def new_stamp(self, db: apsw.Connection) -> Stamp:
        """Return a stamp for the owner of the file; `check` then also looks for it.

        `check` must be called in the thread of the connection.
        """
        held = self._held
        self._stamp = Stamp(Path(self._path), held.database, held.log, held.shared, db)
        return self._stamp

    def leave(self) -> None:
        """Release the locks, so that SQLite can remove the WAL file at the last close."""
        if os.getpid() != self._pid:  # a forked process shares the locks with its parent
            return
        with _guards_lock:
            self._held.users -= 1
            if self._held.users == 0:
                del _guards[self._key]
                lock(self._held.shared, fcntl.F_UNLCK, _SHM_DEADMAN)
                lock(self._held.database, fcntl.F_UNLCK, _SHARED_FIRST, _SHARED_SIZE)

    def close(self) -> None:
        """Close the descriptors, unless this process has opened the file again meanwhile.

        In that case the new guard closes them, since closing would drop the new locks.
        """
        held = self._held
        with _guards_lock:
            if held.users:
                return
            descriptors = [held.shared, held.log, held.database, held.directory, *held.inherited]
            if (successor := _guards.get(self._key)) is not None:
                successor.inherited.extend(descriptors)
                return
            for descriptor in descriptors:
                os.close(descriptor)
        self._keep_lost_log()

    def _keep_lost_log(self) -> None:
        """Move the WAL file away if it does not belong to the database that is there now.

        SQLite would move it into the database when it is opened again, and destroy both.
        """
        why = None if self._stamp is None else self._stamp.lost
        if self._stamp is not None and not self._is_there(self._path):
            why = _replaced(self._path)
        log = f"{self._path}-wal"
        if why is None or not self._is_there(log):
            return
        kept = f"{log}.lost-{time.time_ns()}"
        os.rename(log, kept)
        raise StoreFailed(f"{why}; the write-ahead log is kept as {os.path.basename(kept)}")

    def _is_there(self, path: str) -> bool:
        """Return whether the file that was opened at this path is still there."""
        try:
            found = os.stat(path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._held.identities[path]


def _replaced(path: str) -> str:
    return f"{path} was removed or replaced while in use"


def _hold(path: Path) -> _Descriptors:
    names = [f"{path}{suffix}" for suffix in ("", "-wal", "-shm")]
    opened: list[int] = []
    try:
        for name in (*names, str(path.parent)):
            opened.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - to close
    except OSError:
        for descriptor in opened:
            os.close(descriptor)
        raise
    database, log, shared, directory = opened
    statuses = [os.fstat(descriptor) for descriptor in (database, log, shared)]
    identities = [(status.st_dev, status.st_ino) for status in statuses]
    lock(database, fcntl.F_RDLCK, _SHARED_FIRST, _SHARED_SIZE)
    lock(shared, fcntl.F_RDLCK, _SHM_DEADMAN)
    return _Descriptors(database, log, shared, directory, dict(zip(names, identities, strict=True)))


def _look(held: _Descriptors) -> tuple[int, bytes | None]:
    """Return the directory's change time and the WAL file's salt.

    The salt is None if the WAL file lacks the last commit that its index in shared memory names.
    """
    index = os.pread(held.shared, _INDEX.size, 0).ljust(_INDEX.size)  # it may be cut, too
    page_size, frames, *checksum, salt = _INDEX.unpack(index)
    end = _LOG_HEADER + frames * (_FRAME_HEADER + page_size) - page_size - _FRAME_END.size
    found = os.pread(held.log, len(salt), _SALT) + os.pread(held.log, _FRAME_END.size, max(end, 0))
    is_there = not frames or found == salt + _FRAME_END.pack(salt, *checksum)
    return os.fstat(held.directory).st_ctime_ns, salt if is_there else None


def is_guarded(status: os.stat_result) -> bool:
    """Return whether this process has the database with this status open."""
    return (status.st_dev, status.st_ino) in _guards


def close_descriptor(descriptor: int) -> None:
    """Close a descriptor of a database, or let the guard do it if this process has it open."""
    status = os.fstat(descriptor)
    with _guards_lock:
        held = _guards.get((status.st_dev, status.st_ino))
        if held is None:
            os.close(descriptor)
        else:
            held.inherited.append(descriptor)


def lock(descriptor: int, kind: int, start: int, length: int = 1) -> None:
    """Set or release a lock that belongs to the descriptor; raises `OSError` if it is held."""
    if sys.platform != "linux":  # other systems have only `FileGuard.check`
        return
    request = struct.pack(_REQUEST, kind, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(descriptor, _OFD_SETLK, request)


def try_lock(descriptor: int, kind: int, start: int, length: int = 1) -> bool:
    """Set the lock, and return whether nobody else holds it."""
    try:
        lock(descriptor, kind, start, length)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(descriptor: int, start: int) -> bool:
    """Return whether somebody else holds a lock on this byte."""
    if sys.platform != "linux":
        return False
    request = struct.pack(_REQUEST, fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
    found: int = struct.unpack(_REQUEST, fcntl.fcntl(descriptor, _OFD_GETLK, request))[0]
    return found != fcntl.F_UNLCK
