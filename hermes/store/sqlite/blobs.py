"""Contents of attached files in a folder: one file for each distinct content, next to the database.

`state.db.blobs/ab/ab12…` is named by the SHA-256 hash of its bytes. A new file is written to
`state.db.blobs/incoming` and flushed; the transaction that stores its row moves it to its name.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from hermes.store.files.contents import (
    SPARED,
    Queries,
    StagedFile,
    Swept,
    has_row,
    require_range,
)
from hermes.store.files.problems import storing

log: Final = logging.getLogger(__name__)

INCOMING = "incoming"
_BLOB_NAME = re.compile("[0-9a-f]{64}")
_ADD_ROW = (
    "INSERT INTO blobs (hash, size, created_at) VALUES (?, ?, ?) ON CONFLICT (hash) DO NOTHING"
)


class FolderUpload:
    """A file in the folder `incoming`; see `Upload`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "w+b", buffering=0)
        os.fchmod(descriptor, 0o600)  # whatever the umask is

    @property
    def id(self) -> str:
        """The name of the file."""
        return self._path.name

    def write(self, data: bytes | bytearray) -> None:
        """Append bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]

    def finish(self) -> BinaryIO:
        """Flush the file, and return it."""
        os.fsync(self._file.fileno())
        return self._file

    def discard(self) -> None:
        """Remove the file, unless it was moved to its place."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()


class BlobFolder:
    """The folder of a database's blobs; it is created with the first one."""

    def __init__(self, database: Path) -> None:
        self.path: Path = database.with_name(f"{database.name}.blobs")
        self._flushed: set[Path] = set()
        """The folders whose names this process has flushed."""

    def path_of(self, digest: str) -> Path:
        """Return the path of a blob."""
        return self.path / digest[:2] / digest

    def begin(self) -> FolderUpload:
        """Create a file to be staged."""
        return FolderUpload(self.new_file())

    def place(self, tx: Queries, staged: StagedFile) -> None:
        """Move a staged file to its place, and flush the folders; store the row of its content.

        Called in the transaction that stores its row, so that no sweep runs at the same time. A
        sweep compares the time of the file with `tx.now`. A blob that is there already is replaced:
        it may be damaged. A transaction that is tried again has moved the file before.
        """
        with storing():
            source, target = self.path / INCOMING / staged.upload.id, self.path_of(staged.hash)
            self._create(target.parent)
            try:
                os.utime(source, (tx.now, tx.now))
                os.rename(source, target)
            except FileNotFoundError:
                if not target.exists():
                    raise
            flush_folder(target.parent)
            self._flush_names(target.parent, self.path)
        tx.run(_ADD_ROW, staged.hash, staged.size, tx.now)

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Return bytes of a blob, as far as it has them.

        Raises `FileNotFoundError` if it is gone, and `ValueError` for a negative offset or size.
        """
        require_range(offset, size)
        with open(self.path_of(digest), "rb") as file:  # buffered: it reads more than 2 GB, too
            rest = os.fstat(file.fileno()).st_size - offset
            file.seek(offset)
            return file.read(max(0, min(size, rest)))

    def _create(self, folder: Path) -> None:
        """Create a folder that only its owner can read, unless it exists."""
        if folder.is_dir():
            return
        if folder != self.path:
            self._create(self.path)
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o700)  # whatever the umask is
            self._flushed.discard(folder)

    def _flush_names(self, *folders: Path) -> None:
        """Flush the parents of folders, once in each process: another may have created them."""
        for folder in folders:
            if folder not in self._flushed:
                flush_folder(folder.parent)
                self._flushed.add(folder)

    def new_file(self) -> Path:
        """Return a path for a file to be staged, in a folder that exists."""
        folder = self.path / INCOMING
        self._create(folder)
        return folder / secrets.token_hex(16)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep staged files from being swept during the block, however old they are."""
        self._create(self.path / INCOMING)
        descriptor = os.open(self.path / INCOMING, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def folders(self) -> list[Path]:
        """Return the folders that have files: those of blobs, and that of staged files.

        A link to another folder is none of them: a sweep would delete what it finds there.
        """
        with suppress(OSError):
            return sorted(each for each in self.path.iterdir() if _is_folder(each))
        return []

    def all_blobs(self) -> Iterator[Path]:
        """Yield every file in the folder, staged ones included."""
        for folder in self.folders():
            with suppress(FileNotFoundError):
                yield from sorted(folder.iterdir())

    def absence(self) -> str | None:
        """Return why no blob can be there, or None."""
        return None if self.path.is_dir() else f"{self.path} does not exist"

    def size(self, tx: Queries, digest: str) -> int:
        """Return the size of a blob. Raises `OSError` if it is gone or cannot be read."""
        return self.path_of(digest).stat().st_size

    def where(self, digest: str) -> str:
        """Return the path of a blob as a text."""
        return str(self.path_of(digest))

    # Sweeps

    def remove(self, tx: Queries, digest: str) -> None:
        """Remove a blob whose row an earlier transaction has deleted."""
        path = self.path_of(digest)
        with _reported(path):
            path.unlink()

    def sweep(self, tx: Queries, after: str) -> Swept:
        """Remove the files of the next subfolder that are old and have no row."""
        names: list[str] = []
        with suppress(OSError):
            names = sorted(name for name in os.listdir(self.path) if name > after)
        for name in names:
            if _is_folder(self.path / name):
                return _remove_old(tx, self.path / name)._replace(last=name)
        return Swept()

    def old(self, tx: Queries) -> Iterator[tuple[str, int]]:
        """Yield the names and sizes of blobs and staged files that are old."""
        for folder in self.folders():
            with _reported(folder):
                for path, size in _old_files(tx, folder):
                    yield path.name, size


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove_old(tx: Queries, folder: Path) -> Swept:
    """Remove the files of one folder that are old and have no row."""
    blobs = size = 0
    with _reported(folder), _locked(folder) as is_ours:
        for path, bytes_ in _old_files(tx, folder) if is_ours else ():
            if not has_row(tx, path.name):
                with _reported(path):
                    path.unlink()
                    blobs, size = blobs + 1, size + bytes_
    return Swept("", blobs, size)


def _old_files(tx: Queries, folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield the blobs or staged files of a folder that are old, with their sizes."""
    for path in folder.iterdir():
        if folder.name == INCOMING or _BLOB_NAME.fullmatch(path.name):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_mtime < tx.now - SPARED:
                    yield path, status.st_size


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder for the block; yields False if others keep staged files in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        locked = False
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        yield locked
    finally:
        os.close(descriptor)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Log an error of the file system in the block, unless the file does not exist."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s was not swept: %s", path, error.strerror or error)


def flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
