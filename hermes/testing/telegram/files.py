"""Files that users send: `getFile`, and their download with faults."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from hermes.messages import JsonObject
from hermes.testing.loopback import Response
from hermes.testing.telegram.errors import ApiError, Fault

MAX_DOWNLOAD = 20 * 1024 * 1024
_BLOCK = bytes(range(256)) * 256
_RANGE = re.compile(r"bytes=([0-9]+)-", re.ASCII)
_BOMB = 100 * 1024 * 1024
"""The size of a file that is sent compressed."""


@attrs.frozen
class UserFile:
    """A file at Telegram: its content, or the number of its bytes, which are generated then."""

    content: bytes | None
    size: int
    path: str

    def chunks(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` to `end`."""
        end = self.size if end is None else end
        while start < end:
            chunk = self.block(start, min(len(_BLOCK), end - start))
            yield chunk
            start += len(chunk)

    def block(self, start: int, size: int) -> bytes:
        """Return bytes of the file."""
        if self.content is not None:
            return self.content[start : start + size]
        offset = start % len(_BLOCK)
        return (_BLOCK + _BLOCK)[offset : offset + size]


class UserFiles:
    """The files that users have sent to the bot."""

    def __init__(self) -> None:
        self.ranges: bool = True
        """Whether a part of a file can be requested."""
        self.announced: dict[str, int | None] = {}
        """Sizes that `getFile` names instead of the right ones, by file id; None for none."""
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        """The paths and headers of all downloads."""
        self._files: dict[str, UserFile] = {}

    def add(self, content: bytes | int, **fields: Any) -> JsonObject:
        """Add a file, and return it as it is in a message, for `post(document=…)` for example.

        `content` is the content, or only its size. `fields` are those of the Bot API, such as
        `file_name`, `mime_type`, or `width` and `height`.
        """
        number = len(self._files)
        file_id = f"AgACAgIAAxkBAAI{number}"
        data = None if isinstance(content, int) else content
        size = content if isinstance(content, int) else len(content)
        self._files[file_id] = UserFile(data, size, f"documents/file_{number}.bin")
        return {
            "file_id": file_id, "file_unique_id": f"AQAD{number}", "file_size": size, **fields
        }  # fmt: skip

    def photo(self, content: bytes | int, **fields: Any) -> list[JsonObject]:
        """Add a photo, and return its sizes, for `post(photo=…)`."""
        small = self.add(b"small", width=90, height=90)
        return [small, self.add(content, width=1280, height=1280, **fields)]

    def get_file(self, params: JsonObject) -> JsonObject:
        """Answer `getFile`."""
        file_id = str(params.get("file_id"))
        file = self._files.get(file_id)
        if file is None:
            text = "Bad Request: wrong file_id or the file is temporarily unavailable"
            raise ApiError(400, text)
        size = self.announced.get(file_id, file.size)
        if size is not None and size > MAX_DOWNLOAD:
            raise ApiError(400, "Bad Request: file is too big")
        found: JsonObject = {"file_id": file_id, "file_path": file.path}
        return found if size is None else {**found, "file_size": size}

    def response(self, path: str, headers: Mapping[str, str], fault: Fault | None) -> Response:
        """Answer the download of a file, possibly with a fault."""
        self.requests.append((path, headers))
        file = next((each for each in self._files.values() if each.path == path), None)
        if file is None:
            return ApiError(404, "Not Found").response()
        found = _RANGE.fullmatch(headers.get("range", "")) if self.ranges else None
        start = int(found[1]) if found else 0
        if start >= file.size:
            return Response(status=416, headers=[("content-length", "0")])
        if fault is not None and fault.kind not in {"slow"}:
            return _broken(file, start, fault)
        return _part(file, start, file.chunks(start), file.size - start)


def _part(
    file: UserFile, start: int, chunks: Iterable[bytes], length: int, *, complete: bool = True
) -> Response:
    headers = [("content-type", "application/octet-stream"), ("content-length", str(length))]
    if start:
        headers.append(("content-range", f"bytes {start}-{file.size - 1}/{file.size}"))
    status = 206 if start else 200
    return Response(status=status, headers=headers, chunks=chunks, complete=complete)


def _broken(file: UserFile, start: int, fault: Fault) -> Response:
    """Return a response with a fault."""
    left = file.size - start
    match fault.kind:
        case "truncated":
            half = file.chunks(start, start + left // 2)
            response = _part(file, start, half, left, complete=False)
        case "short":
            response = _part(file, start, file.chunks(start, file.size - 1), left - 1)
        case "long":
            longer = itertools.chain(file.chunks(start), [b"x"])
            response = _part(file, start, longer, left + 1)
        case "endless":
            response = Response(chunks=itertools.repeat(_BLOCK))
        case "gzip":
            response = Response(headers=[("content-encoding", "gzip")], chunks=_bomb())
        case "redirect":
            elsewhere = [("location", "http://127.0.0.1:9/elsewhere"), ("content-length", "0")]
            response = Response(status=302, headers=elsewhere)
        case _:
            response = fault.response()
    return response


def _bomb() -> Iterator[bytes]:
    """Yield a small gzip stream of a large file."""
    compress = zlib.compressobj(wbits=31)
    for _ in range(_BOMB // len(_BLOCK)):
        yield compress.compress(bytes(len(_BLOCK)))
    yield compress.flush()
