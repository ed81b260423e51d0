"""The content of attached files: one file for each distinct content, next to the database.

`state.db.blobs/ab/ab12…` is named by the SHA-256 hash of its bytes. A new file is written to
`state.db.blobs/incoming` and flushed; the transaction that stores its row moves it to its name.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import attrs

from hermes.errors import AttachmentRefused, StoreError, StoreFull
from hermes.media import Media, recognize
from hermes.messages import Attachment

CHUNK = 1 << 20
INCOMING = "incoming"
T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a function in a thread, or at once in tests."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


@attrs.frozen
class StagedFile:
    """A file that is complete and flushed, but has no row yet."""

    path: Path
    hash: str
    size: int
    media: Media

    def discard(self) -> None:
        """Remove the file, unless it was moved to its place."""
        with suppress(OSError):
            self.path.unlink()


class BlobFolder:
    """The folder of a database's blobs; it is created with the first one."""

    def __init__(self, database: Path) -> None:
        self.path: Path = database.with_name(f"{database.name}.blobs")

    def path_of(self, digest: str) -> Path:
        """Return the path of a blob."""
        return self.path / digest[:2] / digest

    def place(self, staged: StagedFile, now: float) -> None:
        """Move a staged file to its place and flush the folder, unless the blob is there already.

        Called in the transaction that stores its row, so that no sweep runs at the same time. A
        sweep compares the time of the file with `now`.
        """
        target = self.path_of(staged.hash)
        if _size(target) != staged.size:
            self._create(target.parent)
            os.utime(staged.path, (now, now))
            os.rename(staged.path, target)
            _flush_folder(target.parent)

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Return bytes of a blob. Raises `FileNotFoundError` if it is gone."""
        with open(self.path_of(digest), "rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset)

    def _create(self, folder: Path) -> None:
        """Create a folder that only its owner can read, and flush its parent."""
        if not folder.is_dir():
            if folder != self.path:
                self._create(self.path)
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            _flush_folder(folder.parent)

    def new_file(self) -> Path:
        """Return a path for a file to be staged, in a folder that exists."""
        folder = self.path / INCOMING
        self._create(folder)
        return folder / secrets.token_hex(16)

    @contextmanager
    def staging(self) -> Iterator[None]:
        """Keep staged files from being swept during the block, however old they are."""
        self._create(self.path / INCOMING)
        descriptor = os.open(self.path / INCOMING, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)

    def all_blobs(self) -> Iterator[Path]:
        """Yield every file in the folder, staged ones included."""
        with suppress(FileNotFoundError):
            for folder in sorted(self.path.iterdir()):
                if folder.is_dir():
                    yield from sorted(folder.iterdir())


class BlobWriter:
    """Writes one file: `write` its chunks, then `finish`, or `discard` it."""

    def __init__(self, folder: BlobFolder, limit: int) -> None:
        self._limit = limit
        self._hash = hashlib.sha256()
        self._size = 0
        try:
            self._path = folder.new_file()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise _store_error(error) from error
        self._file = os.fdopen(descriptor, "w+b", buffering=0)

    def write(self, chunk: bytes) -> None:
        """Append bytes. Raises `AttachmentRefused` if the file becomes too large."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise AttachmentRefused(f"the file is larger than {self._limit:,} bytes")
        self._hash.update(chunk)
        try:
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _store_error(error) from error

    def finish(self, expected: int | None = None) -> StagedFile:
        """Flush the file and return it. Raises `AttachmentRefused` if its size is wrong."""
        if not self._size:
            raise AttachmentRefused("the file is empty")
        if expected is not None and expected != self._size:
            text = f"the file has {self._size:,} bytes instead of {expected:,}; send it again"
            raise AttachmentRefused(text)
        try:
            os.fsync(self._file.fileno())
            media = recognize(self._file)
            self._file.close()
        except OSError as error:
            raise _store_error(error) from error
        return StagedFile(self._path, self._hash.hexdigest(), self._size, media)

    def discard(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()


async def stage_chunks(
    folder: BlobFolder, attachment: Attachment, limit: int, run: RunInThread
) -> StagedFile:
    """Write an attachment that arrives in chunks, each in a thread."""
    assert attachment.chunks is not None
    writer = await run(lambda: BlobWriter(folder, limit))
    try:
        async for chunk in attachment.chunks:
            await run(functools.partial(writer.write, chunk))
        return await run(lambda: writer.finish(attachment.size))
    except BaseException:
        writer.discard()
        raise


def stage(folder: BlobFolder, attachment: Attachment, limit: int) -> StagedFile:
    """Copy an attachment into the folder. Blocks, so call it in a thread.

    Raises `AttachmentRefused` if it cannot be read, is empty, or is too large.
    """
    read, close = _reader(attachment)
    try:
        writer = BlobWriter(folder, limit)
        try:
            for chunk in _chunks(read):
                writer.write(chunk)
            return writer.finish(attachment.size)
        except BaseException:
            writer.discard()
            raise
    finally:
        close()


def _chunks(read: Callable[[int], bytes]) -> Iterable[bytes]:
    while True:
        try:
            chunk = read(CHUNK)
        except (OSError, ValueError) as error:
            raise AttachmentRefused(f"the file cannot be read: {error}") from error
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise AttachmentRefused("the file must be opened in binary mode")
        if not chunk:
            return
        yield bytes(chunk)


def _reader(attachment: Attachment) -> tuple[Callable[[int], bytes], Callable[[], None]]:
    """Return functions that read the next bytes of an attachment, and that close it."""
    if attachment.file is not None:
        return attachment.file.read, lambda: None
    if attachment.data is not None:
        whole, position = memoryview(attachment.data), 0

        def read(size: int) -> bytes:
            nonlocal position
            position += size
            return bytes(whole[position - size : position])

        return read, lambda: None
    if attachment.path is None:
        raise AttachmentRefused("only a file with content can be stored")
    opened = _open(attachment.path)
    return opened.read, opened.close


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; a pipe or a device would block."""
    try:
        file = open(path, "rb", buffering=0, opener=_without_blocking)  # noqa: SIM115 - returned
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AttachmentRefused(f"{os.fspath(path)} cannot be read: {reason}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise AttachmentRefused(f"{os.fspath(path)} is not a regular file")
    return file


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _store_error(error: OSError) -> StoreError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull("the disk is full, and the attachment was not stored")
    return StoreError(f"the attachment could not be stored: {error.strerror or error}")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
