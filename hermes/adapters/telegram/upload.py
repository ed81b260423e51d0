"""How a file of a reply is sent: the method, and the body of the request.

The body is read from the store while it is sent, so a file is never in memory as a whole.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping

import httpx2
import msgspec

from hermes.adapters.telegram.media import extension
from hermes.errors import UnknownFile
from hermes.messages import StoredFile
from hermes.protocols import FileReader

MAX_UPLOAD = 50 * 1024 * 1024
"""The largest file that a bot can send."""
MAX_PHOTO = 10 * 1024 * 1024
MAX_PHOTO_SIDES = 10_000
"""The largest sum of width and height of a photo."""
MAX_PHOTO_RATIO = 20
CHUNK = 256 * 1024
_PHOTOS = frozenset({"image/jpeg", "image/png", "image/webp"})
_VOICES = frozenset({"audio/ogg", "audio/opus"})
_SONGS = frozenset({"audio/mpeg", "audio/mp4", "audio/x-m4a", "audio/m4a"})
_ESCAPED = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


def fields_for(file: StoredFile) -> list[str]:
    """Return as what a file is sent: the first, or the next one if Telegram refuses it.

    These are names of parameters: `sendPhoto` has the parameter `photo`, and so on.
    """
    if file.media_type in _PHOTOS and file.size <= MAX_PHOTO and _is_photo(file):
        return ["photo", "document"]
    if file.media_type in _VOICES:
        return ["voice", "document"]
    return ["audio", "document"] if file.media_type in _SONGS else ["document"]


def _is_photo(file: StoredFile) -> bool:
    """Return whether Telegram accepts these dimensions; True if they are not known."""
    width, height = file.width or 1, file.height or 1
    short, long = sorted((width, height))
    known = file.width is not None and file.height is not None
    return width + height <= MAX_PHOTO_SIDES and (not known or long <= MAX_PHOTO_RATIO * short)


class Upload(httpx2.AsyncByteStream):
    """The body of one request with a file: `multipart/form-data`."""

    def __init__(self, field: str, reader: FileReader, params: Mapping[str, object]) -> None:
        self.complete: bool = False
        self._reader = reader
        self._offset = 0
        boundary = secrets.token_hex(16)
        file = reader.file
        name = file.name or f"{field}{extension(file.media_type)}"
        start = f"--{boundary}\r\nContent-Disposition: form-data; name="
        parts = [f'{start}"{key}"\r\n\r\n{_text(value)}\r\n' for key, value in params.items()]
        parts.append(
            f'{start}"{field}"; filename="{name.translate(_ESCAPED)}"\r\n'
            f"Content-Type: {file.media_type}\r\n\r\n"
        )
        self._head: bytes = "".join(parts).encode(errors="replace")
        self._tail: bytes = f"\r\n--{boundary}--\r\n".encode()
        self.content_type: str = f"multipart/form-data; boundary={boundary}"
        self.length: int = len(self._head) + file.size + len(self._tail)

    def as_stream(self) -> httpx2.AsyncByteStream:
        """Return the bytes, which can be read once."""
        return self

    # Not a generator: a request that breaks off would abandon it.

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self.complete:
            raise StopAsyncIteration
        if self._head:
            head, self._head = self._head, b""
            return head
        left = self._reader.file.size - self._offset
        if not left:
            self.complete = True
            return self._tail
        chunk = await self._reader.read(self._offset, min(left, CHUNK))
        if not chunk:
            raise UnknownFile(f"the file {self._reader.file.id} is not complete")
        self._offset += len(chunk)
        return chunk


def _text(value: object) -> str:
    """Return a parameter as the Bot API reads it in a form."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
