"""The database file before and around SQLite: what may be opened, who owns it, is it still there.

POSIX locks have a trap: when any code of a process closes any descriptor of a file, all locks of
the process on that file are gone, SQLite's included. A second copy of SQLite, or
`open(path).close()`, is enough; the next process to close the file then removes the log under our
feet, and what we commit is seen by nobody. `FileGuard` holds what such an accident would lose by
open-file-description locks, which belong to the descriptor and survive it, and notices when the
files are no longer the ones in the directory.
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
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # SQLite's shared lock on the database
_SHM_DEADMAN = 128  # its "somebody is here" byte in the shared memory file


def refuse_old_sqlite(version: str) -> None:
    """Releases before 3.51.3 can lose the log at a checkpoint (fixed in 3.44.6 and 3.50.7 too)."""
    number = tuple(int(part) for part in version.split("."))
    mended = (
        number >= (3, 51, 3) or (3, 44, 6) <= number < (3, 45) or (3, 50, 7) <= number < (3, 51)
    )
    if not mended or number[:2] == (3, 52):
        raise StoreRefused(
            f"SQLite {version} has a bug that can lose committed data; install apsw 3.53 or newer"
        )


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """SQLite's log needs shared memory, which no network file system gives."""
    kind = _file_system(os.stat(path.parent).st_dev, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreRefused(
            f"{path} lies on a network file system ({kind}), where SQLite loses data; "
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


def has_log(path: Path, suffix: str = "-wal") -> bool:
    """Whether a log with something in it lies beside the file."""
    try:
        return os.stat(f"{path}{suffix}").st_size > 0
    except FileNotFoundError:
        return False


def resolve(path: str | os.PathLike[str]) -> Path:
    """The file behind links, by an absolute path, or one sentence about why it cannot be one.

    A folder may be a link: the log and the lock lie in the same folder by either name.
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
        raise StoreRefused(f"{real} is a directory; name a file in it, such as {real}/state.db")
    if not stat.S_ISREG(mode):
        raise StoreRefused(f"{real} is not a regular file")
    return real


def create(path: Path) -> bool:
    """Create the file for its owner alone; False where it exists."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreRefused(f"{path} cannot be created: {error.strerror}") from error
    os.close(descriptor)  # nobody can have locked it yet
    return True


def has_lock(path: Path) -> bool:
    """Whether somebody has opened this file as a store before."""
    return os.path.exists(f"{path}.lock")


@contextmanager
def no_trace(path: Path, *, had_lock: bool) -> Iterator[None]:
    """Leave no lock file beside a file that is refused: it belongs to another program."""
    try:
        yield
    except StoreRefused:
        if not had_lock:
            with suppress(OSError):
                os.unlink(f"{path}.lock")
        raise


class Opening:
    """A turn to open or create the file, one at a time on this machine, until its guard stands.

    `waits` where it is somebody else's turn.
    """

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(f"{path}.lock cannot be opened: {error.strerror}") from error
        self.waits = not _try_lock(descriptor, fcntl.F_WRLCK, 0, 1)
        self._descriptor = descriptor
        if self.waits:
            os.close(descriptor)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def wait_opening(path: Path) -> Opening:
    """Wait for a turn to open the file."""
    give_up = time.monotonic() + OPENING_SECONDS
    while (turn := Opening(path)).waits:
        if time.monotonic() > give_up:
            raise StoreBusy(f"{path} is being opened by another process; try again")
        time.sleep(OPENING_PAUSE)
    return turn


def refuse_damaged(path: Path) -> None:
    """Look at the first bytes and the size of a file without a log, before SQLite adds one.

    Only while nobody here has the file open: closing it would take that connection's locks away.
    """
    status = os.stat(path)
    if (status.st_dev, status.st_ino) in _guards or status.st_size == 0:
        return
    if has_log(path, "-journal"):  # SQLite must repair it first
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
        what = "no SQLite file" if magic != _MAGIC else "damaged (it is shorter than it says)"
        raise StoreRefused(f"{path} is {what}; restore a backup, or name another file")


class RuntimeLock:
    """The right to be the one runtime of a file, held until `close` or the end of the process."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = open(  # noqa: SIM115 - open for as long as we live
                f"{path}.lock", "a+", opener=lambda name, flags: os.open(name, flags, 0o600)
            )
        except OSError as error:
            raise StoreRefused(f"{path}.lock cannot be opened: {error.strerror}") from error
        if not self._take():
            self._file.seek(0)
            owner = self._file.read(100).strip() or "unknown process"
            self._file.close()
            raise _in_use(path, owner)
        self._file.truncate(0)
        self._file.write(f"pid {os.getpid()}")
        self._file.flush()

    def _take(self) -> bool:
        """Try for a moment: `owner` of another process may have it just now, to look."""
        for _ in range(LOCK_TRIES):
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(LOCK_PAUSE)
        return False

    def close(self) -> None:
        self._file.close()


def owner(path: Path) -> str | None:
    """Who runs on this file now, by its lock and not by what is written somewhere."""
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
    """Refuse where another runtime has the file; one may still take it after this."""
    real = resolve(path)
    if (other := owner(real)) is not None:
        raise _in_use(real, other)


def _in_use(path: Path, owner: str) -> StoreInUse:
    return StoreInUse(
        f"{path} is already in use by another Hermes runtime ({owner}); "
        "stop that one, or choose another file"
    )


@attrs.define
class _Held:
    """The descriptors that guard one file, shared by all connections of this process."""

    database: int
    log: int
    shared: int
    directory: int
    identities: dict[str, tuple[int, int]]
    users: int = 0
    inherited: list[int] = attrs.Factory(list)
    settled: int = 0
    """The time of the directory's last change, when the files were seen to be in place since."""


_guards: dict[tuple[int, int], _Held] = {}
_guards_lock = threading.Lock()


class FileGuard:
    """Keeps a file's locks through the accidents above, and tells when the file was taken away.

    Create it once the connections are open; call `leave` before they are closed, `close` after.
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

    def check(self) -> None:
        """Raise `StoreFailed` where a file is no longer the one that others would open.

        Whoever takes a file away changes its directory. So one look at the directory is enough,
        unless it changed so lately that a second change could bear the same time.
        """
        changed = os.fstat(self._held.directory).st_mtime_ns
        if changed == self._held.settled:
            return
        self.check_files()
        if time.time_ns() - changed > _SETTLED_NS:
            self._held.settled = changed

    def check_files(self) -> None:
        """`check`, by looking at each file."""
        for path, identity in self._held.identities.items():
            try:
                found = os.stat(path)
            except OSError:
                found = None
            if found is None or (found.st_dev, found.st_ino) != identity:
                raise StoreFailed(f"{path} was removed or replaced while in use")

    def leave(self) -> None:
        """Let SQLite take the exclusive lock under which the last connection removes the log."""
        with _guards_lock:
            self._held.users -= 1
            if self._held.users == 0:
                del _guards[self._key]
                _lock(self._held.shared, fcntl.F_UNLCK, _SHM_DEADMAN, 1)
                _lock(self._held.database, fcntl.F_UNLCK, _SHARED_FIRST, _SHARED_SIZE)

    def close(self) -> None:
        """Close the descriptors, unless this process has opened the file again meanwhile."""
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


def _hold(path: Path) -> _Held:
    names = [f"{path}{suffix}" for suffix in ("", "-wal", "-shm")]
    database, log, shared = (os.open(name, os.O_RDONLY | os.O_CLOEXEC) for name in names)
    statuses = [os.fstat(descriptor) for descriptor in (database, log, shared)]
    identities = [(status.st_dev, status.st_ino) for status in statuses]
    _lock(database, fcntl.F_RDLCK, _SHARED_FIRST, _SHARED_SIZE)
    _lock(shared, fcntl.F_RDLCK, _SHM_DEADMAN, 1)
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    return _Held(database, log, shared, directory, dict(zip(names, identities, strict=True)))


def _lock(descriptor: int, kind: int, start: int, length: int) -> None:
    if sys.platform != "linux":  # elsewhere only `check` helps
        return
    request = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(descriptor, _OFD_SETLK, request)


def _try_lock(descriptor: int, kind: int, start: int, length: int) -> bool:
    try:
        _lock(descriptor, kind, start, length)
    except (BlockingIOError, PermissionError):
        return False
    return True
