"""Files for tests of attachments."""

from __future__ import annotations

import struct
import zlib

from hermes.config import is_database_url
from tests.support.engines import Sql


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
    """The stored contents next to a database or in it, and the files that are being written."""
    if is_database_url(path):
        with Sql(path) as sql:
            rows = sql(
                "SELECT string_agg(k.data, ''::bytea ORDER BY k.n) FROM file_contents c "
                "LEFT JOIN file_chunks k ON k.content_id = c.id GROUP BY c.id"
            )
        return sorted(content or b"" for [content] in rows)
    folder = path.with_name(f"{path.name}.blobs")
    return sorted(each.read_bytes() for each in folder.rglob("*") if each.is_file())
