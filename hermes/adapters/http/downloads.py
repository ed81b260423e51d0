"""Stored files as responses: a browser shows images only, and runs nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from hermes.adapters.http.errors import ApiError
from hermes.messages import StoredFile
from hermes.protocols import FileReader

INLINE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What a browser may show. The types are recognized by the bytes of a file."""
PIECE = 1 << 18
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def file_response(request: Request, reader: FileReader) -> Response:
    """Return a file, or the range of it that was asked for. Raises `ApiError` (416)."""
    file = reader.file
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": content_disposition(file),
        "Content-Security-Policy": "sandbox",
        "Content-Type": file.media_type,
        "ETag": f'"{file.id}"',
        "X-Content-Type-Options": "nosniff",
    }
    start, end = _range(request, file)
    headers["Content-Length"] = str(end - start)
    status = 200
    if (start, end) != (0, file.size):
        status, headers["Content-Range"] = 206, f"bytes {start}-{end - 1}/{file.size}"
    return StreamingResponse(_pieces(reader, start, end), status, headers)


async def _pieces(reader: FileReader, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        piece = await reader.read(start, min(PIECE, end - start))
        start += len(piece)
        yield piece


def content_disposition(file: StoredFile) -> str:
    """Return the header that says whether a file is shown, and its name in ASCII and UTF-8."""
    shown = "inline" if file.media_type in INLINE else "attachment"
    if file.name is None:
        return shown
    plain = re.sub(r"[^ !#-\[\]-~]|%", "_", file.name)
    return f"{shown}; filename=\"{plain}\"; filename*=UTF-8''{quote(file.name, safe='')}"


def _range(request: Request, file: StoredFile) -> tuple[int, int]:
    """Return the first byte and the one after the last; all of them if no range is asked for.

    Several ranges, and those of another file (`If-Range`), are ignored.
    """
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or request.headers.get("if-range", f'"{file.id}"') != f'"{file.id}"':
        return 0, file.size
    first, last = found.groups()
    if not first and not last:
        return 0, file.size
    if not first:
        start, end = max(0, file.size - int(last)), file.size
    else:
        start, end = int(first), min(file.size, int(last) + 1 if last else file.size)
    if last and first and int(last) < int(first):
        return 0, file.size
    if start >= end:
        raise ApiError(
            416,
            f"The file has {file.size} bytes.",
            code="range_not_satisfiable",
            headers={"Content-Range": f"bytes */{file.size}"},
        )
    return start, end
