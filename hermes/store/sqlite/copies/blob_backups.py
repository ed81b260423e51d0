"""Copy the content of attached files next to the copy of a database."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hermes.errors import StoreBusy, StoreError, StoreFull, StoreRefused
from hermes.store.files.contents import CHUNK
from hermes.store.sqlite.blobs import INCOMING, BlobFolder

_HASH = re.compile("[0-9a-f]{64}")


class BlobCopy:
    """The blobs of a copy: `collect` them, `complete` them for the database, then `publish` them.

    They are collected in a folder that is locked and removed at the end of the block. Hard links
    are used if the file system allows it: a blob never changes.
    """

    def __init__(self, source: BlobFolder, target: Path) -> None:
        self._source = source
        self._target = BlobFolder(target)
        self._partial = BlobFolder(target.with_name(f"{target.name}.partial"))
        self._lock: int | None = None
        self._published = False
        if os.path.lexists(self._target.path):
            raise StoreRefused(f"{self._target.path} already exists; choose another file")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            if error is not None and self._published:
                shutil.rmtree(self._target.path, ignore_errors=True)
            if not self._published:
                shutil.rmtree(self._partial.path, ignore_errors=True)
            os.close(self._lock)

    def collect(self) -> None:
        """Take the blobs that are there now; others may delete some at the same time."""
        with _copying():
            for path in self._source.all_blobs():
                if path.parent.name != INCOMING and _HASH.fullmatch(path.name):
                    self._take(path.name)

    def complete(self, sizes: Mapping[str, int]) -> list[str]:
        """Take the blobs of these hashes, and no others. Returns those that are not there.

        `sizes` has the size of each.
        """
        missing = []
        with _copying():
            for digest, size in sizes.items():
                if self._size(digest) is None:
                    self._take(digest)
                if self._size(digest) != size:
                    missing.append(digest)
            for path in self._partial.all_blobs():
                if path.name not in sizes:
                    path.unlink()
        return missing

    def publish(self) -> None:
        """Flush the folder and give it its name, unless it is empty."""
        if self._lock is None:
            return
        with _copying():
            for folder in self._partial.path.iterdir():
                with suppress(OSError):  # if it is not empty
                    folder.rmdir()
            folders = [*self._partial.path.iterdir()]
            for folder in [*folders, self._partial.path]:
                _flush(folder)
            if folders:
                self._partial.path.rename(self._target.path)
                self._published = True

    def _size(self, digest: str) -> int | None:
        with suppress(FileNotFoundError):
            return self._partial.path_of(digest).stat().st_size
        return None

    def _take(self, digest: str) -> None:
        """Link or copy a blob, unless it is gone."""
        self._claim()
        source, target = self._source.path_of(digest), self._partial.path_of(digest)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            os.link(source, target)
        except (FileExistsError, FileNotFoundError):
            pass
        except OSError:  # another file system, another owner, or no links
            with suppress(FileNotFoundError), source.open("rb") as file:
                _write(target, file.fileno())

    def _claim(self) -> None:
        """Create and lock the folder, and remove what an earlier process left in it."""
        if self._lock is not None:
            return
        path = self._partial.path
        path.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        if not _is_locked(lock, path):
            os.close(lock)
            raise StoreBusy(f"another backup to {self._target.path} is running; try again")
        self._lock = lock
        for left in path.iterdir():
            shutil.rmtree(left)


def _is_locked(descriptor: int, path: Path) -> bool:
    """Lock a folder. Returns False if another process has locked, moved or removed it."""
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    return False


def _write(target: Path, source: int) -> None:
    """Copy an open file to a new one that only its owner can read, and flush it."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        while chunk := os.read(source, CHUNK):
            rest = memoryview(chunk)
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _copying() -> Iterator[None]:
    """Raise `StoreFull` or `StoreError` if the file system fails in the block."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreFull("the disk is full, and no backup was made") from error
        text = f"{error.filename} cannot be copied: {error.strerror or error}"
        raise StoreError(f"{text}; no backup was made") from error
