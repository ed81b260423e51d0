"""Files for tests of attachments, in memory and as stored parts."""

from __future__ import annotations

import hashlib
import struct
import zlib

import attrs
import trio

from hermes.errors import UnknownFile
from hermes.messages import StoredFile


def png(width=3, height=2, padding=b""):
    """A small image; `padding` makes it larger."""

    def chunk(kind, content):
        end = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + end

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress((b"\0" + b"\x80" * width) * height))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"tEXt", padding) + rows + chunk(b"IEND", b"")


PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def file_id(number):
    """The id of a stored file."""
    return f"file_{number:032x}"


def digest(content):
    """The hash that a loopback model reports for a file."""
    return hashlib.sha256(content).hexdigest()


@attrs.define
class Reader:
    """Reads a file in memory."""

    file: StoredFile
    content: bytes
    reads: list = attrs.Factory(list)

    async def read(self, offset=0, size=None):
        await trio.lowlevel.checkpoint()
        if self.content is None:
            raise UnknownFile(f"the file {self.file.id} was deleted")
        end = None if size is None else offset + size
        self.reads.append(size)
        return self.content[offset:end]


class Files:
    """Files in memory: `add` returns the part of one, and `open_file` a reader."""

    def __init__(self):
        self.readers = {}

    def add(self, content, media_type, name=None, **fields):
        file = StoredFile(
            id=file_id(len(self.readers) + 1), media_type=media_type, size=len(content), name=name,
            **fields,
        )  # fmt: skip
        self.readers[file.id] = Reader(file, content)
        return file.part

    async def open_file(self, id_):
        await trio.lowlevel.checkpoint()
        if id_ not in self.readers:
            raise UnknownFile(f"there is no file {id_}")
        return self.readers[id_]
