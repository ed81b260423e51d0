"""Request bodies with files, which are read and encoded in pieces while the body is sent."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Final, TypeAlias, TypeVar

import attrs
import msgspec

from hermes.agents.providers.base import (
    SLOT_FIELDS,
    FileBody,
    SentDigest,
    Unavailable,
    decode_header,
)
from hermes.errors import HermesError, UnknownFile
from hermes.protocols import FileReader

R = TypeVar("R")

CHUNK: Final = 3 * 2**18
"""How many bytes of a file are read at once: a multiple of 3, so that base64 needs no padding."""
_encode = msgspec.json.Encoder().encode


async def open_body(body: FileBody) -> BodyStream:
    """Open the files of a body.

    A note takes the place of a file that is hidden or does not exist any more, and of the oldest
    files if the provider does not take all of them in one request.
    """
    pieces, segments = body.pieces, list[_Segment]()
    body.digest.value = None
    starts = range(0, len(pieces) - 1, SLOT_FIELDS + 1)
    contents = [await _content(body, pieces[start + 1]) for start in starts]
    first = _first_sent([each.size if each else 0 for each in contents], body.max_bytes)
    for index, start in enumerate(starts):
        json, _, before, after, note = pieces[start : start + SLOT_FIELDS + 1]
        content = contents[index]
        if content is None or index < first:
            segments.append(_Bytes(json + note))
        else:
            segments += [_Bytes(json + before), content, _Bytes(after)]
    return BodyStream([*segments, _Bytes(pieces[-1])], body.digest)


async def _content(body: FileBody, header: bytes) -> _Segment | None:
    """Return the content of a file; None if it is not shown."""
    file_id, encoding, _ = decode_header(header)
    if file_id in body.hidden:
        return None
    if encoding == "url":
        return _Bytes(b"")
    try:
        reader = await _readable(body.open_file(file_id))
        return await (_text(reader) if encoding == "text" else _base64(reader))
    except UnknownFile:
        return None


def _first_sent(sizes: Sequence[int], limit: int | None) -> int:
    """Return the index of the first file to send, so that the rest fits into a request.

    Files are left out until the rest has half of the limit, so that the prompt's prefix does not
    change with each new file. The result only depends on the files, in their order.
    """
    first = total = 0
    for index, size in enumerate(sizes):
        total += size
        if limit is not None and total > limit:
            while first < index and total > limit // 2:
                total -= sizes[first]
                first += 1
    return first


def body_around(head: bytes, file: FileReader, tail: bytes) -> BodyStream:
    """Return a body that is a file as it is, between `head` and `tail`."""
    return BodyStream([_Bytes(head), _Content(file), _Bytes(tail)])


@attrs.frozen
class _Bytes:
    """A piece of a body that is in memory."""

    content: bytes = attrs.field(repr=False)

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def chunks(self) -> int:
        return 1 if self.content else 0

    async def read(self, index: int) -> bytes:
        return self.content


@attrs.frozen
class _Base64:
    """A file as base64."""

    reader: FileReader

    @property
    def size(self) -> int:
        return -(-self.reader.file.size // 3) * 4

    @property
    def chunks(self) -> int:
        return -(-self.reader.file.size // CHUNK)

    async def read(self, index: int) -> bytes:
        wanted = min(CHUNK, self.reader.file.size - index * CHUNK)
        return base64.b64encode(await _read(self.reader, index * CHUNK, wanted))


@attrs.frozen
class _Content:
    """A file as it is."""

    reader: FileReader

    @property
    def size(self) -> int:
        return self.reader.file.size

    @property
    def chunks(self) -> int:
        return -(-self.reader.file.size // CHUNK)

    async def read(self, index: int) -> bytes:
        wanted = min(CHUNK, self.reader.file.size - index * CHUNK)
        return await _read(self.reader, index * CHUNK, wanted)


_Segment: TypeAlias = _Bytes | _Base64 | _Content


class BodyStream:
    """The chunks of a body, which are read when they are needed."""

    def __init__(self, segments: Sequence[_Segment], digest: SentDigest | None = None) -> None:
        self.size: int = sum(each.size for each in segments)
        """The length of the body in bytes."""
        self._segments = segments
        self._digest = digest or SentDigest()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._digest.value, sent = None, hashlib.sha256()
        for segment in self._segments:
            for index in range(segment.chunks):
                try:
                    chunk = await segment.read(index)
                except UnknownFile as error:  # another attempt sends a note instead
                    raise Unavailable(f"an attached file cannot be read: {error}") from error
                sent.update(chunk)
                yield chunk
        self._digest.value = sent.hexdigest()


async def _text(reader: FileReader) -> _Bytes:
    """Return a text file as the inside of a JSON string."""
    content = await _read(reader, 0, reader.file.size)
    return _Bytes(_encode(content.decode("utf-8-sig", "replace"))[1:-1])


async def _base64(reader: FileReader) -> _Base64:
    """Return a file as base64, after a look whether it is there, to its last byte."""
    size = reader.file.size
    await _read(reader, max(0, size - 1), min(1, size))
    return _Base64(reader)


async def _read(reader: FileReader, offset: int, size: int) -> bytes:
    """Return a piece of a file. Raises `Unavailable` if it cannot be read now."""
    content = await _readable(reader.read(offset, size))
    if len(content) != size:
        raise Unavailable("an attached file cannot be read: it is shorter than it was")
    return content


async def _readable(result: Awaitable[R]) -> R:
    """Await what the store returns. Raises `Unavailable` if it fails, except for `UnknownFile`."""
    try:
        return await result
    except UnknownFile:
        raise
    except (HermesError, OSError) as error:
        raise Unavailable(f"an attached file cannot be read: {error}") from error
