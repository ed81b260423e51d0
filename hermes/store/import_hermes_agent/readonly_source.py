"""Another program's SQLite file, read at one moment and without changing a byte of it.

SQLite itself would: it makes a log and its index beside a file of the WAL kind, and moves a log
that somebody left into the file. So it depends on what lies there:

- a log and its index: the other program runs, or was killed. The index is opened for reading only;
  SQLite then reads beside the program, or makes an index of its own in memory.
- a log alone: somebody copied the two. They are copied once more, and SQLite may do with the
  copies as it likes. The same for a journal that waits to be rolled back.
- no log: nobody has it open, and it is read as a file that does not change. `check` says whether
  that is still so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw
import attrs

from hermes.errors import StoreError, StoreRefused
from hermes.store import schema

BUSY_MILLISECONDS = 5000
COPY_TRIES = 5
_WAL = 2


@attrs.frozen
class Untouched:
    """A connection inside a read transaction, and a way to ask whether it may be believed."""

    path: Path
    db: apsw.Connection
    seen: object = None
    """How the file looked that must not change meanwhile; None where SQLite's locks see to it."""

    def check(self) -> None:
        """Raise where what was read so far may be of two moments."""
        if self.seen is not None and _look(self.path) != self.seen:
            raise StoreError(
                f"{self.path} was written to while it was read; what was taken so far is whole: "
                "import it again to go on"
            )


@contextmanager
def open_untouched(path: Path) -> Iterator[Untouched]:
    """Open the file for reading, or refuse it in one sentence."""
    with ExitStack() as stack:
        try:
            opened = _open(path, stack)
            begin = "PRAGMA trusted_schema = 0; BEGIN; SELECT 1 FROM sqlite_schema"
            opened.db.execute(begin).fetchall()
            ours = opened.db.pragma("application_id") == schema.APPLICATION_ID
        except (OSError, apsw.Error) as error:
            raise StoreRefused(f"{path} cannot be read: {error}") from error
        if ours:
            raise StoreRefused(
                f"{path} is a Hermes database; use `export` there, and import its lines"
            )
        yield opened


def _open(path: Path, stack: ExitStack) -> Untouched:
    header = _header(path)
    if not header.startswith(b"SQLite format 3\0"):
        raise StoreRefused(f"{path} is no SQLite file")
    if header[18] != _WAL:
        try:
            return Untouched(path, _connect(path, stack, "mode=ro"))
        except apsw.ReadOnlyError:  # a journal waits to be rolled back
            return Untouched(path, _connect(_copied(path, "-journal", stack), stack))
    if not _exists(path, "-wal"):
        return Untouched(path, _connect(path, stack, "immutable=1"), _look(path))
    if not _exists(path, "-shm"):
        return Untouched(path, _connect(_copied(path, "-wal", stack), stack))
    try:
        return Untouched(path, _connect(path, stack, "mode=ro&readonly_shm=1"))
    except (apsw.ReadOnlyError, apsw.CantOpenError):  # in use, and no place is free to read from
        return Untouched(path, _connect(path, stack, "mode=ro"))


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def _exists(path: Path, suffix: str) -> bool:
    return path.with_name(path.name + suffix).exists()


def _look(path: Path) -> object:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino, _exists(path, "-wal")


def _connect(path: Path, stack: ExitStack, how: str = "mode=rw") -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE
    if how != "mode=rw":
        flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY
    db = apsw.Connection(f"file:{quote(os.fspath(path))}?{how}", flags=flags)
    stack.callback(db.close)
    db.set_busy_timeout(BUSY_MILLISECONDS)
    db.execute("SELECT 1 FROM sqlite_schema").fetchall()  # what cannot be read fails here
    return db


def _copied(path: Path, suffix: str, stack: ExitStack) -> Path:
    """The file and what lies beside it, in a folder of our own."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-import-")))
    beside = path.with_name(path.name + suffix)
    for _ in range(COPY_TRIES):
        before = _look(path), _look(beside)
        shutil.copyfile(path, folder / path.name)
        shutil.copyfile(beside, folder / beside.name)
        if (_look(path), _look(beside)) == before:
            return folder / path.name
    raise StoreRefused(f"{path} is being written to; stop what writes to it first")
