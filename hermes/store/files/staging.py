"""Stage attached files: write their content to an upload while it is hashed and checked."""

from __future__ import annotations

import functools
import io
import os
import stat
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Protocol, TypeVar

import trio

from hermes.errors import AttachmentRefused, AttachmentTooLarge, HermesError
from hermes.media import recognize
from hermes.messages import Attachment
from hermes.store.files.contents import CHUNK, FileContents, StagedFile
from hermes.store.files.hashing import Hashing
from hermes.store.files.problems import storing

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


class FileWriter:
    """Writes one file: `write` its chunks, then `finish`, or `discard` it.

    `limit` is the largest size that is accepted, and `expected` the only one, unless it is None.
    With `held`, the caller has `contents.hold()` until the file is placed.
    """

    def __init__(
        self,
        contents: FileContents,
        limit: int,
        expected: int | None = None,
        *,
        held: bool = False,
    ) -> None:
        if expected is not None and expected > limit:
            raise _too_large(limit)
        self._limit = limit
        self._expected = expected
        self._size = 0
        self._hashing = Hashing()
        self._hold = ExitStack()
        with storing(), ExitStack() as hold:
            if not held:
                hold.enter_context(contents.hold())
            self._upload = contents.begin()
            self._hold = hold.pop_all()

    def write(self, chunk: bytes | bytearray) -> None:
        """Append bytes. Raises `AttachmentRefused` if the file becomes too large."""
        self._size += len(chunk)
        if self._size > self._limit:
            raise _too_large(self._limit)
        if self._expected is not None and self._size > self._expected:
            raise AttachmentRefused(f"the file has more than the expected {self._expected:,} bytes")
        with storing():
            self._upload.write(chunk)
        self._hashing.add(chunk)

    def finish(self) -> StagedFile:
        """Flush the file and return it. Raises `AttachmentRefused` if its size is wrong."""
        if not self._size:
            raise AttachmentRefused("the file is empty")
        if self._expected is not None and self._expected != self._size:
            text = f"the file has {self._size:,} bytes instead of {self._expected:,}; send it again"
            raise AttachmentRefused(text)
        with storing(), self._upload.finish() as file:
            media = recognize(file)
        digest, hold = self._hashing.finish(), self._hold.pop_all()
        return StagedFile(self._upload, digest, self._size, media, hold=hold)

    def discard(self) -> None:
        """Remove the file."""
        self._upload.discard()
        self._hashing.close()
        self._hold.close()


async def stage_chunks(
    contents: FileContents, attachment: Attachment, limit: int, run: RunInThread
) -> StagedFile:
    """Write an attachment that arrives in chunks, or from an open file; each chunk in a thread.

    Reading a pipe may block for any time: that is abandoned if the caller is cancelled. Any other
    file is not touched after that. Raises `AttachmentRefused` if it cannot be read, is empty, or is
    too large.
    """
    writer = await run(lambda: FileWriter(contents, limit, attachment.size))
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


async def _write_chunks(writer: FileWriter, chunks: AsyncIterable[bytes], run: RunInThread) -> None:
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


def stage(contents: FileContents, attachment: Attachment, limit: int) -> StagedFile:
    """Copy an attachment into an upload. Blocks, so call it in a thread.

    Raises `AttachmentRefused` if it cannot be read, is empty, or is too large.
    """
    with _opened(attachment) as read:
        writer = FileWriter(contents, limit, attachment.size)
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
