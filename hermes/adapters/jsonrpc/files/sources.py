"""Files that a client uploads, in chunks."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import BinaryIO

import attrs
import trio

from hermes.adapters.jsonrpc.types import MAX_CHUNK
from hermes.errors import AttachmentRefused
from hermes.messages import Attachment


@attrs.frozen
class Source:
    """The chunks of a file, and its size if that is known."""

    chunks: AsyncIterator[bytes]
    size: int | None


@asynccontextmanager
async def open_source(attachment: Attachment) -> AsyncIterator[Source]:
    """Open the content of an attachment. Raises `AttachmentRefused` if it cannot be read."""
    opened, size = attachment.file, attachment.size
    if attachment.data is not None:
        size = len(attachment.data)
    if attachment.path is not None:
        opened = await trio.to_thread.run_sync(_open, attachment.path)
        size = os.fstat(opened.fileno()).st_size
    if attachment.url is not None:
        raise AttachmentRefused("only a file with content can be uploaded")
    try:
        async with aclosing(_chunks(attachment, opened)) as chunks:
            yield Source(chunks, size)
    finally:
        if attachment.path is not None and opened is not None:
            opened.close()


async def _chunks(attachment: Attachment, opened: BinaryIO | None) -> AsyncGenerator[bytes, None]:
    """Yield the content in pieces that fit into a frame."""
    if opened is not None:
        while chunk := await _read(opened):
            yield chunk
    elif attachment.data is not None:
        for piece in _pieces(attachment.data):
            yield piece
    elif attachment.chunks is not None:
        async for chunk in attachment.chunks:
            for piece in _pieces(chunk):
                yield piece


def _pieces(content: bytes) -> Iterator[bytes]:
    return (content[first : first + MAX_CHUNK] for first in range(0, len(content), MAX_CHUNK))


async def _read(opened: BinaryIO) -> bytes:
    try:
        return await trio.to_thread.run_sync(opened.read, MAX_CHUNK)
    except (OSError, ValueError) as error:
        raise AttachmentRefused(f"the file cannot be read: {error}") from error


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
