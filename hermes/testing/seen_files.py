"""The files in the requests of a loopback model: checked as real providers do, and not kept."""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Final

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.dialects import Refusal, SeenFile

MAX_KEPT: Final = 4096
"""Longer base64 is replaced in the recorded request, by `sha256:HASH:SIZE:FIRST BYTES`."""
IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_START = re.compile(
    rb'"(?:url|file_data)":"data:[^",]{0,100};base64,'
    rb'|"type":"base64","media_type":"[^"]{0,100}","data":"'
    rb'|"input_audio":\{"data":"'
)
_CONDENSED = re.compile(r"sha256:([0-9a-f]{64}):(\d+):([0-9a-f]*)")
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_OVERLAP = 300
_HEAD = 16
_MAGIC = {
    "image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8",
    "image/webp": b"RIFF", "application/pdf": b"%PDF-",
}  # fmt: skip


@attrs.define
class _Base64:
    """A base64 string that arrives in pieces."""

    raw: bytearray = attrs.Factory(bytearray)
    length: int = 0
    size: int = 0
    head: bytes = b""
    valid: bool = True
    _hash: hashlib._Hash = attrs.Factory(hashlib.sha256)
    _rest: bytes = b""
    _ended: bool = False

    def feed(self, piece: bytes) -> None:
        self.length += len(piece)
        if self.length <= MAX_KEPT:
            self.raw += piece
        piece = self._rest + piece
        whole = len(piece) // 4 * 4
        self._rest = piece[whole:]
        if whole:
            self._decode(piece[:whole])

    def _decode(self, piece: bytes) -> None:
        try:
            content = binascii.a2b_base64(piece, strict_mode=True)
        except binascii.Error:
            self.valid = False
            return
        self.valid = self.valid and not self._ended
        self._ended = piece.endswith(b"=")
        self.size += len(content)
        self.head += content[: _HEAD - len(self.head)]
        self._hash.update(content)

    def condensed(self) -> bytes:
        if self.length <= MAX_KEPT:
            return bytes(self.raw)
        if not self.valid or self._rest:
            return b"(invalid base64)"
        return f"sha256:{self._hash.hexdigest()}:{self.size}:{self.head.hex()}".encode()


class Base64Filter:
    """Replaces the content of files in a request while it arrives, so that it is not kept."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: _Base64 | None = None

    def feed(self, chunk: bytes) -> bytes:
        """Return what is kept of the body so far, after what was returned before."""
        self._buffer += chunk
        kept = bytearray()
        while self._advance(kept):
            pass
        return bytes(kept)

    def finish(self) -> bytes:
        """Return the rest, at the end of the body."""
        return bytes(self._buffer)

    def _advance(self, kept: bytearray) -> bool:
        """Consume up to the next file, or up to its end. Returns whether there may be more."""
        buffer = self._buffer
        if self._data is not None:
            end = buffer.find(b'"')
            self._data.feed(bytes(buffer if end < 0 else buffer[:end]))
            del buffer[: len(buffer) if end < 0 else end]
            if end >= 0:
                kept += self._data.condensed()
                self._data = None
            return end >= 0
        found = _START.search(buffer) if b"base64" in buffer or b"input_audio" in buffer else None
        end = max(0, len(buffer) - _OVERLAP) if found is None else found.end()
        kept += buffer[:end]
        del buffer[:end]
        if found is not None:
            self._data = _Base64()
        return found is not None


def read_content(text: object, media_type: str, name: str | None = None) -> SeenFile:
    """Return a file whose content is base64. Raises `Refusal` as providers do."""
    data = text if isinstance(text, str) else ""
    if (found := _CONDENSED.fullmatch(data)) is not None:
        digest, size, head = found[1], int(found[2]), bytes.fromhex(found[3])
    else:
        try:
            content = binascii.a2b_base64(data, strict_mode=True)
        except ValueError:
            raise refused("Invalid base64 data.") from None
        digest, size, head = hashlib.sha256(content).hexdigest(), len(content), content[:_HEAD]
    if size == 0:
        raise refused("The file is empty.")
    if not head.startswith(_MAGIC.get(media_type, b"")):
        raise refused(f"The file was specified as {media_type}, but appears to be another type.")
    return SeenFile(media_type, size, digest, name)


def read_data_url(url: object, name: str | None = None) -> SeenFile:
    """Return the file of a data URL. Raises `Refusal` if it is malformed."""
    found = _DATA_URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise refused("Expected a base64-encoded data URL with a media type.")
    return read_content(found[2], found[1], name)


def refused(message: str) -> Refusal:
    """Return the error of a request that is invalid."""
    return Refusal(400, "invalid_request_error", message)


class _Message(msgspec.Struct):
    role: str = ""
    content: str | list[JsonObject] | None = None


_read_messages = msgspec.json.Decoder(list[_Message]).decode


def structured(messages: msgspec.Raw) -> Iterator[tuple[str, JsonObject]]:
    """Yield the parts of messages, each with the role of its message."""
    try:
        decoded = _read_messages(messages)
    except msgspec.ValidationError as error:
        raise refused(str(error)) from None
    for message in decoded:
        if isinstance(message.content, list):
            yield from ((message.role, part) for part in message.content)
