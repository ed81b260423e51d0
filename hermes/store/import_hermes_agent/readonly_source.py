"""Read a SQLite file of another program as of one moment, without changing any of its files.

SQLite would change them: for a database in WAL mode it creates a `-wal` and a `-shm` file, and it
checkpoints a leftover WAL into the database. So the way to open a file depends on what is there:

- `-wal` and `-shm`: the other program is running, or was killed. The `-shm` file is opened
  read-only; SQLite then reads beside the program, or builds its own index in memory.
- `-wal` only: the two files were copied from elsewhere. They are copied to a temporary directory,
  and the copy is opened. The same is done for a rollback journal that must be replayed.
- neither: nobody has the database open, and it is opened as immutable. `check_unchanged` raises
  if that has changed since.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw
import attrs

from hermes.errors import StoreError, StoreRefused
from hermes.store.sqlite import schema

BUSY_MILLISECONDS = 5000
COPY_ATTEMPTS = 5
_WAL_FORMAT = 2


@attrs.frozen
class ReadOnlySource:
    """A connection inside a read transaction."""

    path: Path
    db: apsw.Connection
    fingerprint: object = None
    """The state of the file when it was opened; None if SQLite's locks keep the view consistent."""

    def check_unchanged(self) -> None:
        """Raise `StoreError` if the file was modified, so that reads may be inconsistent."""
        if self.fingerprint is not None and _fingerprint(self.path) != self.fingerprint:
            raise StoreError(
                f"{self.path} was modified during the import; the sessions imported so far are "
                "complete, run the import again for the rest"
            )


@contextmanager
def open_readonly(path: Path) -> Iterator[ReadOnlySource]:
    """Open the file for reading. Raises `StoreRefused` if it cannot be read."""
    with ExitStack() as stack:
        try:
            source = _open(path, stack)
            begin = "PRAGMA trusted_schema = 0; BEGIN; SELECT 1 FROM sqlite_schema"
            source.db.execute(begin).fetchall()
            is_hermes = source.db.pragma("application_id") == schema.APPLICATION_ID
        except (OSError, apsw.Error) as error:
            raise StoreRefused(f"{path} cannot be read: {error}") from error
        if is_hermes:
            from hermes.settings.installation import command  # noqa: PLC0415 - rarely needed

            raise StoreRefused(
                f"{path} is a Hermes database; export its sessions, and import that file: "
                f"{command('store export --all -o sessions.jsonl --db')} {shlex.quote(str(path))}"
            )
        yield source


def _open(path: Path, stack: ExitStack) -> ReadOnlySource:
    header = _header(path)
    if not header.startswith(b"SQLite format 3\0"):
        raise StoreRefused(f"{path} is not a SQLite file")
    if header[18] != _WAL_FORMAT:
        _exists(path, "-journal")
        try:
            return ReadOnlySource(path, _connect(path, stack, "mode=ro"))
        except apsw.ReadOnlyError:  # there is a journal that must be rolled back
            return ReadOnlySource(path, _connect(_copy(path, "-journal", stack), stack))
    if not _exists(path, "-wal"):
        return ReadOnlySource(path, _connect(path, stack, "immutable=1"), _fingerprint(path))
    if not _exists(path, "-shm"):
        return ReadOnlySource(path, _connect(_copy(path, "-wal", stack), stack))
    try:
        return ReadOnlySource(path, _connect(path, stack, "mode=ro&readonly_shm=1"))
    except (apsw.ReadOnlyError, apsw.CantOpenError):  # in use, and all read marks are taken
        return ReadOnlySource(path, _connect(path, stack, "mode=ro"))


def _header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(100)


def _exists(path: Path, suffix: str) -> bool:
    companion = path.with_name(path.name + suffix)
    if companion.exists() and not companion.is_file():  # SQLite or a copy of it may never end
        raise StoreRefused(f"{companion} is not a regular file")
    return companion.exists()


def _fingerprint(path: Path) -> object:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino, _exists(path, "-wal")


def _connect(path: Path, stack: ExitStack, query: str = "mode=rw") -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE
    if query != "mode=rw":
        flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY
    db = apsw.Connection(f"file:{quote(os.fspath(path))}?{query}", flags=flags)
    stack.callback(db.close)
    db.set_busy_timeout(BUSY_MILLISECONDS)
    db.execute("SELECT 1 FROM sqlite_schema").fetchall()  # fails now if it cannot be read
    return db


def _copy(path: Path, suffix: str, stack: ExitStack) -> Path:
    """Copy the file and its WAL or journal to a temporary directory, and return the copy."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-import-")))
    companion = path.with_name(path.name + suffix)
    for _ in range(COPY_ATTEMPTS):
        before = _fingerprint(path), _fingerprint(companion)
        shutil.copyfile(path, folder / path.name)
        shutil.copyfile(companion, folder / companion.name)
        if (_fingerprint(path), _fingerprint(companion)) == before:
            return folder / path.name
    raise StoreRefused(f"{path} is being written to; stop the program that writes to it first")
