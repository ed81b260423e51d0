"""Recognize the type of a file by its bytes; names and headers are not trusted."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

UNKNOWN = "application/octet-stream"
_HEAD = 4096
_PNG_HEADER = 24


class Media(msgspec.Struct, frozen=True):
    """The type of a file; `width` and `height` are those of an image."""

    media_type: str = UNKNOWN
    width: int | None = None
    height: int | None = None


def recognize(file: BinaryIO) -> Media:
    """Return the type of an open, seekable file. A file of an unknown type is `UNKNOWN`."""
    file.seek(0)
    head = file.read(_HEAD)
    if (
        head.startswith(b"\x89PNG\r\n\x1a\n")
        and head[12:16] == b"IHDR"
        and len(head) >= _PNG_HEADER
    ):
        return Media("image/png", *struct.unpack(">II", head[16:24]))
    is_png = head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR"
    if is_png and len(head) >= _PNG_HEADER:
        return Media("image/png", *struct.unpack(">II", head[16:24]))
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        return Media("audio/wav")
    if head.startswith(b"%PDF-"):
        return Media("application/pdf")
    try:
        head.decode()
    except UnicodeDecodeError:
        return Media()
    return Media("text/plain") if head and b"\0" not in head else Media()
