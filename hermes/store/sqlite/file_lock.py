"""The database file before SQLite opens it: which files may be opened, and one opener at a time."""

from __future__ import annotations

import fcntl
import functools
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hermes.errors import HermesError, StoreBusy, StoreRefused
from hermes.store.files.problems import cannot_open
from hermes.store.sqlite import guard

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.gcsfuse",
        "fuse.glusterfs", "fuse.juicefs", "fuse.mfs", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs",
        "fuse.smbnetfs", "fuse.sshfs", "fuse.vmhgfs-fuse", "gfs2", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "smbfs",
        "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip

_MAGIC = b"SQLite format 3\0"
OPENING_SECONDS = 60.0
OPENING_PAUSE = 0.002


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
        raise cannot_open(real, error) from error
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
        raise cannot_open(path, error, "created") from error
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
            with suppress(OSError, HermesError):
                _remove_lock(path)
        raise


def _remove_lock(path: Path) -> None:
    """Remove the lock file, unless another process holds the lock."""
    opening = Opening(path)
    if not opening.waits:
        with opening:
            os.unlink(f"{path}.lock")


class Opening:
    """The lock under which a file is opened or created and its guard set up.

    `waits` is true if another process or thread holds the lock. Otherwise use the object as a
    context manager, which releases it.
    """

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise cannot_open(f"{path}.lock", error) from error
        self.waits: bool = True
        self._descriptor = descriptor
        try:
            # The file may have been removed since it was opened: then the lock excludes nobody.
            locked = guard.try_lock(descriptor, fcntl.F_WRLCK, 0)
            self.waits = not (locked and _is_at(f"{path}.lock", descriptor))
        finally:
            if self.waits:
                os.close(descriptor)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _is_at(name: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(name), os.fstat(descriptor))
    except FileNotFoundError:
        return False


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
    if guard.is_guarded(status) or status.st_size == 0:
        return
    if has_wal(path, "-journal"):  # SQLite must roll it back first
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise cannot_open(path, error) from error
    try:
        header = os.read(descriptor, 100)
    finally:
        os.close(descriptor)
    magic, page_size, pages = header[:16], header[16:18], header[28:32]
    size = int.from_bytes(page_size, "big") * int.from_bytes(pages, "big")
    if magic != _MAGIC or size > status.st_size:
        what = "not an SQLite file" if magic != _MAGIC else "damaged (truncated)"
        raise StoreRefused(f"{path} is {what}; restore a backup, or choose another file")
