"""The content of attached files: one file for each distinct content, next to the database.

`state.db.blobs/ab/ab12…` is named by the SHA-256 hash of its bytes. A new file is written to
`state.db.blobs/incoming` and flushed; the transaction that stores its row moves it to its name.
"""

from __future__ import annotations

import fcntl
import functools
import io
import os
import secrets
import stat
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import attrs
import trio

from hermes.errors import AttachmentRefused, AttachmentTooLarge, HermesError
from hermes.media import Media, recognize
from hermes.messages import Attachment
from hermes.store.files.hashing import Hashing
from hermes.store.files.problems import storing

CHUNK = 1 << 20
INCOMING = "incoming"
T = TypeVar("T")


class RunInThread(Protocol):
    """Runs a function in a thread, or at once in tests.

    Its caller cannot be cancelled before the function has returned, unless it may be abandoned.
    With a `limiter`, its thread does not count for the limit of all others.
    """

    def __call__(
        self,
        function: Callable[[], T],
        /,
        *,
        may_abandon: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> Awaitable[T]: ...


def new_file_id() -> str:
    """Return the id of a new file, which nobody can guess."""
    return f"file_{secrets.token_hex(16)}"


@attrs.frozen
class StagedFile:
    """A file that is complete and flushed, but has no row yet."""

    path: Path
    hash: str
    size: int
    media: Media
    id: str = attrs.Factory(new_file_id)
    """The id of its row."""
    staging: ExitStack = attrs.field(factory=ExitStack, repr=False)
    """What keeps the file from being swept until it is discarded or in its place."""

    def discard(self) -> None:
        """Remove the file, unless it was moved to its place."""
        with suppress(OSError):
            self.path.unlink()
        self.staging.close()


class BlobFolder:
    """The folder of a database's blobs; it is created with the first one."""

    def __init__(self, database: Path) -> None:
        self.path: Path = database.with_name(f"{database.name}.blobs")
        self._flushed: set[Path] = set()
        """The folders whose names this process has flushed."""

    def path_of(self, digest: str) -> Path:
        """Return the path of a blob."""
        return self.path / digest[:2] / digest

    def place(self, staged: StagedFile, now: float) -> None:
        """Move a staged file to its place, and flush the folders.

        Called in the transaction that stores its row, so that no sweep runs at the same time. A
        sweep compares the time of the file with `now`. A blob that is there already is replaced: it
        may be damaged. A transaction that is tried again has moved the file before.
        """
        with storing():
            target = self.path_of(staged.hash)
            self._create(target.parent)
            try:
                os.utime(staged.path, (now, now))
                os.rename(staged.path, target)
            except FileNotFoundError:
                if not target.exists():
                    raise
            flush_folder(target.parent)
            self._flush_names(target.parent, self.path)

    def read(self, digest: str, offset: int, size: int) -> bytes:
        """Return bytes of a blob, as far as it has them.

        Raises `FileNotFoundError` if it is gone, and `ValueError` for a negative offset or size.
        """
        if offset < 0 or size < 0:
            raise ValueError(f"a file cannot be read from {offset:,} on, {size:,} bytes")
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
    def staging(self) -> Iterator[None]:
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
            folders = (each for each in self.path.iterdir() if not each.is_symlink())
            return sorted(folder for folder in folders if folder.is_dir())
        return []

    def all_blobs(self) -> Iterator[Path]:
        """Yield every file in the folder, staged ones included."""
        for folder in self.folders():
            with suppress(FileNotFoundError):
                yield from sorted(folder.iterdir())


class BlobWriter:
    """Writes one file: `write` its chunks, then `finish`, or `discard` it.

    `limit` is the largest size that is accepted, and `expected` the only one, unless it is None.
    """

    def __init__(self, folder: BlobFolder, limit: int, expected: int | None = None) -> None:
        if expected is not None and expected > limit:
            raise _too_large(limit)
        self._limit = limit
        self._expected = expected
        self._size = 0
        self._hashing = Hashing()
        self._staging = ExitStack()
        with storing():
            self._staging.enter_context(folder.staging())
            self._path = folder.new_file()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "w+b", buffering=0)
            os.fchmod(descriptor, 0o600)  # whatever the umask is

    def write(self, chunk: bytes | bytearray) -> None:
        """Append bytes. Raises `AttachmentRefused` if the file becomes too large."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise _too_large(self._limit)
        if self._expected is not None and self._size > self._expected:
            raise AttachmentRefused(f"the file has more than the expected {self._expected:,} bytes")
        with storing():
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._hashing.add(chunk)

    def finish(self) -> StagedFile:
        """Flush the file and return it. Raises `AttachmentRefused` if its size is wrong."""
        if not self._size:
            raise AttachmentRefused("the file is empty")
        if self._expected is not None and self._expected != self._size:
            text = f"the file has {self._size:,} bytes instead of {self._expected:,}; send it again"
            raise AttachmentRefused(text)
        with storing():
            os.fsync(self._file.fileno())
            media = recognize(self._file)
            self._file.close()
        digest = self._hashing.finish()
        staging = self._staging.pop_all()
        return StagedFile(self._path, digest, self._size, media, staging=staging)

    def discard(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()
        self._hashing.close()
        self._staging.close()


async def stage_chunks(
    folder: BlobFolder, attachment: Attachment, limit: int, run: RunInThread
) -> StagedFile:
    """Write an attachment that arrives in chunks, or from an open file; each chunk in a thread.

    Reading a pipe may block for any time: that is abandoned if the caller is cancelled. Any other
    file is not touched after that. Raises `AttachmentRefused` if it cannot be read, is empty, or is
    too large.
    """
    writer = await run(lambda: BlobWriter(folder, limit, attachment.size))
    try:
        if attachment.file is not None:
            read, leave = (
                functools.partial(_read, attachment.file.read),
                _may_block(attachment.file),
            )
            own = trio.CapacityLimiter(1)  # slow sources must not take the threads of other files
            while chunk := await run(read, may_abandon=leave, limiter=own):
                await run(functools.partial(writer.write, chunk))
        elif attachment.chunks is not None:
            await _write_chunks(writer, attachment.chunks, run)
        return await run(writer.finish)
    except BaseException:
        writer.discard()
        raise


async def _write_chunks(writer: BlobWriter, chunks: AsyncIterable[bytes], run: RunInThread) -> None:
    """Write the chunks, small ones together."""
    block, source = bytearray(), aiter(chunks)
    try:
        while (chunk := await _next(source)) is not None:
            block += chunk
            if len(block) >= CHUNK:
                await run(functools.partial(writer.write, block))
                block = bytearray()
        await run(functools.partial(writer.write, block))
    finally:
        if isinstance(source, AsyncGenerator):
            with trio.CancelScope(shield=True):
                await source.aclose()


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    """Return the next chunk, or None at the end."""
    await trio.lowlevel.checkpoint()  # the source may never wait
    with _reading():
        try:
            chunk = await anext(source)
        except StopAsyncIteration:
            return None
    return _checked(chunk)


def stage(folder: BlobFolder, attachment: Attachment, limit: int) -> StagedFile:
    """Copy an attachment into the folder. Blocks, so call it in a thread.

    Raises `AttachmentRefused` if it cannot be read, is empty, or is too large.
    """
    with _opened(attachment) as read:
        writer = BlobWriter(folder, limit, attachment.size)
        try:
            while chunk := _read(read):
                writer.write(chunk)
            return writer.finish()
        except BaseException:
            writer.discard()
            raise


def _may_block(file: BinaryIO) -> bool:
    """Return whether reading may take any time: a pipe, a socket or a terminal."""
    try:
        return not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # it is foreign code, and may have no descriptor
        return False


def _read(read: Callable[[int], bytes]) -> bytes:
    """Return the next bytes of an open file."""
    with _reading():
        chunk = read(CHUNK)
    return _checked(chunk)


def _checked(chunk: object) -> bytes:
    """Return a chunk of an attachment, which comes from foreign code, as bytes."""
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return bytes(chunk)
    if chunk is None:
        raise AttachmentRefused("the file cannot be read: it has no data yet and does not wait")
    raise AttachmentRefused("the file cannot be read: it must be opened in binary mode")


@contextmanager
def _reading() -> Iterator[None]:
    """Refuse the attachment if reading it fails; foreign code can raise anything."""
    try:
        yield
    except HermesError:
        raise
    except Exception as error:
        raise AttachmentRefused(f"the file cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


@contextmanager
def _opened(attachment: Attachment) -> Iterator[Callable[[int], bytes]]:
    """Open an attachment for the block; yields a function that reads its next bytes."""
    if attachment.file is not None:
        yield attachment.file.read
    elif attachment.data is not None:
        with _reading():
            file = io.BytesIO(attachment.data)
        yield file.read
    elif attachment.path is not None:
        with _open(attachment.path) as opened:
            yield opened.read
    elif attachment.chunks is not None:
        raise AttachmentRefused("chunks can only be stored by an asynchronous store")
    else:
        raise AttachmentRefused("only a file with content can be stored")


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; a pipe or a device would block."""
    try:
        file = open(path, "rb", buffering=0, opener=_without_blocking)  # noqa: SIM115 - returned
    except (OSError, ValueError) as error:
        raise AttachmentRefused(f"{os.fspath(path)} cannot be read: {_reason(error)}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise AttachmentRefused(f"{os.fspath(path)} is not a regular file")
    return file


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _too_large(limit: int) -> AttachmentTooLarge:
    return AttachmentTooLarge(f"the file is larger than {limit:,} bytes")


def flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
