"""A VFS over real files that injects faults and records every write and sync in order."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import apsw
import attrs

ERRORS: dict[str, type[apsw.Error]] = {
    "io": apsw.IOError,
    "full": apsw.FullError,
    "busy": apsw.BusyError,
    "readonly": apsw.ReadOnlyError,
    "nomem": apsw.NoMemError,
    "cantopen": apsw.CantOpenError,
}

# Possible faults. A disk is full when it is written to and not when it is synced (that is an I/O
# error), and only locks are busy: SQLite takes BUSY from a checkpoint's write or sync for a reader
# in the way, and then deletes the log on closing, although nothing was copied.
CAN_FAIL: dict[str, tuple[str, ...]] = {
    "xWrite": ("io", "full", "readonly", "nomem"),
    "xSync": ("io", "readonly", "nomem"),
    "xTruncate": ("io", "full", "readonly", "nomem"),
    "xRead": ("io", "nomem"),
    "xOpen": ("cantopen", "io", "readonly", "nomem"),
    "xDelete": ("io", "readonly", "nomem"),
    "xLock": ("busy", "io"),
}

# The extended codes of SQLite's own VFS, so that SQLite and the store see the real code.
_CODES = {
    "io": apsw.SQLITE_IOERR,
    "full": apsw.SQLITE_FULL,
    "busy": apsw.SQLITE_BUSY,
    "readonly": apsw.SQLITE_READONLY,
    "nomem": apsw.SQLITE_NOMEM,
    "cantopen": apsw.SQLITE_CANTOPEN,
}
_EXTENDED = {
    "xWrite": apsw.SQLITE_IOERR_WRITE,
    "xSync": apsw.SQLITE_IOERR_FSYNC,
    "xTruncate": apsw.SQLITE_IOERR_TRUNCATE,
    "xRead": apsw.SQLITE_IOERR_READ,
    "xDelete": apsw.SQLITE_IOERR_DELETE,
    "xLock": apsw.SQLITE_IOERR_LOCK,
}
_numbers = itertools.count(1)


@attrs.frozen
class Fault:
    """The `at`-th call of an operation fails, or with `lasting` every call from that one on."""

    operation: str
    error: str
    at: int
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.operation}:{self.error}:{self.at}:{'lasting' if self.lasting else 'once'}"

    def make(self) -> apsw.Error:
        """The error as it is raised into SQLite."""
        error = ERRORS[self.error](f"injected by {self}")
        error.result = error.extendedresult = _CODES[self.error]
        if self.error == "io":
            error.extendedresult = _EXTENDED.get(self.operation, apsw.SQLITE_IOERR)
        return error


@attrs.frozen
class Write:
    """Bytes handed to the file system."""

    file: str
    offset: int
    data: bytes


@attrs.frozen
class Truncate:
    """A new size."""

    file: str
    size: int


@attrs.frozen
class Sync:
    """Everything before it in this file is on disk."""

    file: str


@attrs.frozen
class Delete:
    """The file was deleted; this is certain only with `synced`."""

    file: str
    synced: bool


@attrs.frozen
class Mark:
    """An entry of the driver: an acknowledgement, and how to verify it."""

    name: str
    proof: object = None


Entry = Write | Truncate | Sync | Delete | Mark


class FaultyVFS(apsw.VFS):
    """Real files behind SQLite's default VFS; `name` goes to `SessionStore(path, vfs=name)`."""

    def __init__(self, *, record: bool = False) -> None:
        self.name = f"faulty{next(_numbers)}"
        self.fault: Fault | None = None
        self.fired = 0
        self.calls: Counter[str] = Counter()
        self.log: list[Entry] | None = [] if record else None
        self._lock = threading.Lock()  # the store's connections have a thread each
        super().__init__(self.name, "")

    def arm(self, fault: Fault | None) -> None:
        """Set the fault to inject, and reset the counters."""
        with self._lock:
            self.calls.clear()
            self.fired = 0
            self.fault = fault

    def disarm(self) -> None:
        """Remove the fault; `fired` and `calls` keep their values."""
        self.fault = None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Inject and count nothing during the block, for calls of the harness itself."""
        fault, calls, self.fault = self.fault, self.calls.copy(), None
        try:
            yield
        finally:
            self.fault = fault
            self.calls = calls

    def note(self, entry: Entry) -> None:
        """Append an entry to the log."""
        if self.log is not None:
            self.log.append(entry)

    def meet(self, operation: str) -> None:
        """Count a call, and raise the fault if it is due."""
        with self._lock:
            self.calls[operation] += 1
            fault, count = self.fault, self.calls[operation]
            if fault is None or fault.operation != operation or count < fault.at:
                return
            if count > fault.at and not fault.lasting:
                return
            self.fired += 1
        raise fault.make()

    def xOpen(self, name, flags):  # noqa: N802
        self.meet("xOpen")
        return FaultyFile(self, name, flags)

    def xDelete(self, name, syncdir):  # noqa: N802
        self.meet("xDelete")
        super().xDelete(name, syncdir)
        self.note(Delete(_kind(name), bool(syncdir)))


class FaultyFile(apsw.VFSFile):
    """One open file; those without a name are SQLite's own scratch files."""

    _temporary: ClassVar[str] = ""

    def __init__(self, vfs: FaultyVFS, name, flags) -> None:
        self._vfs = vfs
        plain = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._file = self._temporary if plain is None else _kind(plain)
        super().__init__("", name, flags)
        self._readonly = bool(flags[1] & apsw.SQLITE_OPEN_READONLY)

    def _note(self, entry: Entry) -> None:
        if self._file:
            self._vfs.note(entry)

    def xRead(self, amount, offset):  # noqa: N802
        self._vfs.meet("xRead")
        return super().xRead(amount, offset)

    def xWrite(self, data, offset):  # noqa: N802
        self._vfs.meet("xWrite")
        super().xWrite(data, offset)
        if self._vfs.log is not None:
            self._note(Write(self._file, offset, bytes(data)))

    def xTruncate(self, size):  # noqa: N802
        self._vfs.meet("xTruncate")
        super().xTruncate(size)
        self._note(Truncate(self._file, size))

    def xSync(self, flags):  # noqa: N802
        self._vfs.meet("xSync")
        super().xSync(flags)
        self._note(Sync(self._file))

    def xLock(self, level):  # noqa: N802
        self._vfs.meet("xLock")
        try:
            super().xLock(level)
        except apsw.IOError:
            # A connection that only reads asks for the exclusive lock when it closes, cannot have
            # it on its descriptor, and SQLite goes on. APSW would raise what SQLite ignored.
            if self._readonly and level == apsw.SQLITE_LOCK_EXCLUSIVE:
                raise apsw.BusyError("a reader cannot lock") from None
            raise


def _kind(name: str) -> str:
    """Which of a database's files this is."""
    return next((kind for kind in ("-wal", "-journal") if name.endswith(kind)), "database")
