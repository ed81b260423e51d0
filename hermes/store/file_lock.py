"""The database file outside of SQLite: which files may be opened, who owns one, is it in place.

POSIX locks have a trap: when any code of a process closes any descriptor of a file, the process
loses all its locks on that file, including those of SQLite. A second copy of SQLite, or
`open(path).close()`, is enough. The next process that closes the file then removes the WAL file
although it is in use, and nobody sees later commits. `FileGuard` takes the same locks as
open-file-description locks, which belong to their descriptor and survive this. It also detects
that a file was removed or replaced.
"""

from __future__ import annotations

import fcntl
import functools
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import attrs

from hermes.errors import StoreBusy, StoreFailed, StoreInUse, StoreRefused
from hermes.forks import watch_forks

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.glusterfs", "fuse.rclone",
        "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3",
        "smbfs", "vboxsf", "virtiofs",
    }
)  # fmt: skip

_MAGIC = b"SQLite format 3\0"
OPENING_SECONDS = 60.0
OPENING_PAUSE = 0.002
LOCK_TRIES, LOCK_PAUSE = 10, 0.01
_SETTLED_NS = 100_000_000
_OFD_SETLK = 37  # F_OFD_SETLK of Linux; the fcntl module has no name for it
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # the bytes of SQLite's shared lock
_SHM_DEADMAN = 128  # the byte in the shared memory file that every connection locks


def refuse_old_sqlite(version: str) -> None:
    """Raise `StoreRefused` for SQLite versions with the WAL-reset bug.

    They can lose committed data at a checkpoint. Fixed in 3.51.3, 3.50.7 and 3.44.6; 3.52.0 was
    withdrawn.
    """
    number = tuple(int(part) for part in version.split("."))
    fixed = number >= (3, 51, 3) or (3, 44, 6) <= number < (3, 45) or (3, 50, 7) <= number < (3, 51)
    if not fixed or number[:2] == (3, 52):
        raise StoreRefused(
            f"SQLite {version} has a bug that can lose committed data; install apsw 3.53 or newer"
        )


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Raise `StoreRefused` on a network file system: WAL needs shared memory."""
    kind = _file_system(os.stat(path.parent).st_dev, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreRefused(
            f"{path} is on a network file system ({kind}), where SQLite loses data; "
            "choose a folder on a local disk"
        )


@functools.lru_cache(maxsize=64)
def _file_system(device: int, mounts: Path) -> str | None:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2:3] == [wanted]:
            return rest.split(" ")[0]
    return None


def has_wal(path: Path, suffix: str = "-wal") -> bool:
    """Return whether there is a WAL file (or another `suffix`) that is not empty."""
    try:
        return os.stat(f"{path}{suffix}").st_size > 0
    except FileNotFoundError:
        return False


def resolve(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of the file, with symbolic links to the file resolved.

    Links to its folder may stay: the WAL file and the lock file are found by either name. Raises
    `StoreRefused` if the folder does not exist or the path is not a regular file.
    """
    name = os.path.expanduser(path)
    linked = os.path.islink(name) or os.pardir in os.fspath(name)
    real = Path(os.path.realpath(name) if linked else os.path.abspath(name))
    try:
        mode = os.stat(real).st_mode
    except FileNotFoundError:
        if not real.parent.is_dir():
            raise StoreRefused(
                f"the folder {real.parent} does not exist; create it first"
            ) from None
        return real
    except OSError as error:
        raise StoreRefused(f"{real} cannot be opened: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise StoreRefused(f"{real} is a directory; choose a file in it, such as {real}/state.db")
    if not stat.S_ISREG(mode):
        raise StoreRefused(f"{real} is not a regular file")
    return real


def create(path: Path) -> bool:
    """Create the file, readable by its owner only; return False if it exists."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreRefused(f"{path} cannot be created: {error.strerror}") from error
    os.close(descriptor)  # the file is new: there are no locks to lose
    return True


def has_lock(path: Path) -> bool:
    """Return whether there is a lock file, so that the file was opened as a store before."""
    return os.path.exists(f"{path}.lock")


@contextmanager
def no_trace(path: Path, *, had_lock: bool) -> Iterator[None]:
    """Remove a new lock file if the file is refused: it may belong to another program."""
    try:
        yield
    except StoreRefused:
        if not had_lock:
            with suppress(OSError):
                os.unlink(f"{path}.lock")
        raise


class Opening:
    """The lock under which a file is opened or created and its guard set up.

    `waits` is true if another process or thread holds the lock. Otherwise use the object as a
    context manager, which releases it.
    """

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(f"{path}.lock cannot be opened: {error.strerror}") from error
        self.waits: bool = not _try_lock(descriptor, fcntl.F_WRLCK, 0, 1)
        self._descriptor = descriptor
        if self.waits:
            os.close(descriptor)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def wait_opening(path: Path) -> Opening:
    """Wait for the lock under which the file is opened; raise `StoreBusy` after a minute."""
    deadline = time.monotonic() + OPENING_SECONDS
    while (opening := Opening(path)).waits:
        if time.monotonic() > deadline:
            raise StoreBusy(f"{path} is being opened by another process; try again")
        time.sleep(OPENING_PAUSE)
    return opening


def refuse_damaged(path: Path) -> None:
    """Raise `StoreRefused` if the header or the size of a file without WAL file is wrong.

    SQLite itself would first create a WAL file. The check is skipped if this process has the file
    open: closing a descriptor here would drop the locks of that connection.
    """
    status = os.stat(path)
    if (status.st_dev, status.st_ino) in _guards or status.st_size == 0:
        return
    if has_wal(path, "-journal"):  # SQLite must roll it back first
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreRefused(f"{path} cannot be opened: {error.strerror}") from error
    try:
        header = os.read(descriptor, 100)
    finally:
        os.close(descriptor)
    magic, page_size, pages = header[:16], header[16:18], header[28:32]
    size = int.from_bytes(page_size, "big") * int.from_bytes(pages, "big")
    if magic != _MAGIC or size > status.st_size:
        what = "not an SQLite file" if magic != _MAGIC else "damaged (truncated)"
        raise StoreRefused(f"{path} is {what}; restore a backup, or choose another file")


class RuntimeLock:
    """The exclusive lock of the one runtime of a file, until `close` or the end of the process.

    Raises `StoreInUse` if another runtime holds it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = open(  # noqa: SIM115 - open for as long as the lock is held
                f"{path}.lock", "a+", opener=lambda name, flags: os.open(name, flags, 0o600)
            )
        except OSError as error:
            raise StoreRefused(f"{path}.lock cannot be opened: {error.strerror}") from error
        if not self._acquire():
            self._file.seek(0)
            owner = self._file.read(100).strip() or "unknown process"
            self._file.close()
            raise _in_use(path, owner)
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()}")
        self._file.flush()
        watch_forks(self)

    def _acquire(self) -> bool:
        """Try for a moment: another process may hold the lock briefly, inside of `owner`."""
        for _ in range(LOCK_TRIES):
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(LOCK_PAUSE)
        return False

    def forked(self) -> None:
        """Close the copy of a forked process, which would hold the lock after the parent's end."""
        self._file.close()

    def close(self) -> None:
        """Release the lock."""
        self._file.close()


def owner(path: Path) -> str | None:
    """Return the process that owns the file as its runtime ("pid 123"), or None.

    The lock decides, not the text in the lock file.
    """
    try:
        with open(f"{path}.lock", encoding="utf-8", errors="replace") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return lock.read(100).strip() or "unknown process"
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreRefused(f"{path}.lock cannot be opened: {error.strerror}") from error


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
    settled: int = 0
    """The directory's modification time when the files were last found in place."""


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
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise `StoreFailed` if a file was removed or replaced since it was opened.

        Either changes the directory, so its modification time is enough to know, unless it is so
        recent that a second change could have the same time.
        """
        changed = os.fstat(self._held.directory).st_mtime_ns
        if changed == self._held.settled:
            return
        self.check_files()
        if time.time_ns() - changed > _SETTLED_NS:
            self._held.settled = changed

    def check_files(self) -> None:
        """The same as `check`, without relying on the directory's modification time."""
        for path, identity in self._held.identities.items():
            try:
                found = os.stat(path)
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != identity:
                raise StoreFailed(f"{path} was removed or replaced while in use")

    def leave(self) -> None:
        """Release the locks, so that SQLite can remove the WAL file at the last close."""
        if os.getpid() != self._pid:  # a forked process shares the locks with its parent
            return
        with _guards_lock:
            self._held.users -= 1
            if self._held.users == 0:
                del _guards[self._key]
                _lock(self._held.shared, fcntl.F_UNLCK, _SHM_DEADMAN, 1)
                _lock(self._held.database, fcntl.F_UNLCK, _SHARED_FIRST, _SHARED_SIZE)

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


def _hold(path: Path) -> _Descriptors:
    names = [f"{path}{suffix}" for suffix in ("", "-wal", "-shm")]
    database, log, shared = (os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in names)
    statuses = [os.fstat(descriptor) for descriptor in (database, log, shared)]
    identities = [(status.st_dev, status.st_ino) for status in statuses]
    _lock(database, fcntl.F_RDLCK, _SHARED_FIRST, _SHARED_SIZE)
    _lock(shared, fcntl.F_RDLCK, _SHM_DEADMAN, 1)
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    return _Descriptors(database, log, shared, directory, dict(zip(names, identities, strict=True)))


def _lock(descriptor: int, kind: int, start: int, length: int) -> None:
    if sys.platform != "linux":  # other systems have only `check`
        return
    request = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(descriptor, _OFD_SETLK, request)


def _try_lock(descriptor: int, kind: int, start: int, length: int) -> bool:
    try:
        _lock(descriptor, kind, start, length)
    except (BlockingIOError, PermissionError):
        return False
    return True
