"""Calls with a file: `multipart/form-data`, of which the file is counted and not kept."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable

import attrs
import msgspec
import trio

from hermes.messages import JsonObject
from hermes.testing.telegram.errors import ApiError

MAX_UPLOAD = 50 * 1024 * 1024
MAX_PHOTO = 10 * 1024 * 1024
MAX_SIDES, MAX_RATIO = 10_000, 20
MAX_FIELD = 64 * 1024
_HEAD = 64
_DECODED = {"chat_id", "message_thread_id", "reply_parameters", "reply_markup"}
_NAME = re.compile(r'; name="([^"]*)"')
_FILE_NAME = re.compile(r'; filename="([^"]*)"')
_TYPE = re.compile(r"\r\nContent-Type: ([^\r\n]*)", re.IGNORECASE)
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")


class UploadedFile(msgspec.Struct, frozen=True):
    """A file that the bot has sent."""

    field: str
    """What it was sent as: photo, document, audio or voice."""
    name: str
    media_type: str
    size: int
    sha256: str
    head: bytes
    """The first bytes."""

    @classmethod
    def of(cls, field: str, params: JsonObject) -> UploadedFile:
        """Return the file of a call. Raises `ApiError` if it has none."""
        if not isinstance(params.get(field), dict):
            raise ApiError(400, f"Bad Request: there is no {field} in the request")
        return msgspec.convert(params[field], cls)


def check_photo(file: UploadedFile) -> None:
    """Raise `ApiError` if a file cannot be sent as a photo."""
    if file.size > MAX_PHOTO:
        raise ApiError(400, "Bad Request: file of this size can't be sent as a photo")
    if not file.head.startswith(_IMAGES):
        raise ApiError(400, "Bad Request: IMAGE_PROCESS_FAILED")
    if file.head.startswith(b"\x89PNG"):
        width, height = struct.unpack(">II", file.head[16:24])
        if width + height > MAX_SIDES or max(width, height) > MAX_RATIO * min(width, height):
            raise ApiError(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")


@attrs.define
class _Part:
    """A part of a form while it is received."""

    name: str
    file_name: str | None
    media_type: str
    kept: bytearray = attrs.Factory(bytearray)
    size: int = 0
    hash: hashlib._Hash = attrs.Factory(hashlib.sha256)

    def feed(self, data: bytes) -> None:
        """Take the next bytes; of a file only the first are kept."""
        self.size += len(data)
        self.hash.update(data)
        limit = MAX_FIELD if self.file_name is None else _HEAD
        self.kept += data[: max(0, limit - len(self.kept))]

    def value(self) -> object:
        """Return what a call gets."""
        if self.file_name is not None:
            return UploadedFile(
                self.name, self.file_name, self.media_type, self.size, self.hash.hexdigest(),
                bytes(self.kept),
            )  # fmt: skip
        text = self.kept.decode()
        return msgspec.json.decode(text) if self.name in _DECODED else text


class FormFilter:
    """Turns a form into a JSON object while it arrives. Other bodies are not changed.

    `is_cut` is called for a form, and says whether its connection is to be closed.
    """

    def __init__(self, is_cut: Callable[[], bool]) -> None:
        self._is_cut = is_cut
        self._buffer = b""
        self._delimiter: bytes | None = None
        self._is_form: bool | None = None
        self._in_headers = False
        self._part: _Part | None = None
        self._params: JsonObject = {}

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes, and return what is kept of the body."""
        if self._is_form is None and chunk:
            self._is_form = chunk.startswith(b"--")
            if self._is_form and self._is_cut():
                raise trio.BrokenResourceError
        if not self._is_form:
            return chunk
        self._buffer += chunk
        while self._step():
            pass
        return b""

    def finish(self) -> bytes:
        """Return the JSON object of a form."""
        return msgspec.json.encode(self._params) if self._is_form else b""

    def _step(self) -> bool:
        """Take something out of the buffer; returns False if more is needed for that."""
        if self._delimiter is None:
            line, end, rest = self._buffer.partition(b"\r\n")
            if end:
                self._delimiter, self._buffer, self._in_headers = b"\r\n" + line, rest, True
            return bool(end)
        if self._in_headers:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if end:
                self._part, self._buffer, self._in_headers = _new_part(head.decode()), rest, False
            return bool(end)
        return self._part is not None and self._take_content(self._part, self._delimiter)

    def _take_content(self, part: _Part, delimiter: bytes) -> bool:
        content, end, rest = self._buffer.partition(delimiter)
        if not end:
            safe = max(0, len(self._buffer) - len(delimiter))
            part.feed(self._buffer[:safe])
            self._buffer = self._buffer[safe:]
            return False
        if len(rest) < len(b"--"):
            return False
        part.feed(content)
        self._params[part.name] = part.value()
        self._part, self._buffer = None, rest.removeprefix(b"\r\n")
        self._in_headers = not rest.startswith(b"--")
        return self._in_headers


def _new_part(head: str) -> _Part:
    name, file_name, kind = _NAME.search(head), _FILE_NAME.search(head), _TYPE.search(head)
    return _Part(
        name[1] if name else "", file_name[1] if file_name else None, kind[1] if kind else ""
    )
