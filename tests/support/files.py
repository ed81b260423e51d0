"""Files for tests of attachments."""

from __future__ import annotations

import struct
import zlib


def png(width=2, height=3, color=0):
    """A valid PNG image of one gray tone."""
    rows = b"".join(b"\0" + bytes([color]) * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def blobs_of(path):
    """The stored contents next to a database, and the files that are being written."""
    folder = path.with_name(f"{path.name}.blobs")
    return sorted(each.read_bytes() for each in folder.rglob("*") if each.is_file())
