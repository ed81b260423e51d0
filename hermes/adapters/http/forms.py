"""Forms with files (multipart/form-data): the files go to the store while they arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import aclosing, contextmanager

import attrs
import trio
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect

from hermes.adapters.http.endpoints import Call, content_length
from hermes.adapters.http.errors import ApiError, file_error, unsupported
from hermes.errors import AttachmentRefused
from hermes.messages import Attachment, StoredFile
from hermes.user_code import contained

MAX_PARTS = 100
MAX_HEADERS = 8
MAX_HEADER = 4096
"""Bytes of one header of a part."""
MAX_FIELD = 1_000_000
"""Bytes of all fields that are no files."""
OVERHEAD = 100_000
"""Bytes of a body that are not content of files or fields."""
DISCARD_SECONDS = 10.0


@attrs.frozen
class Form:
    """What a form has sent: texts by the name of their field, and files that are stored."""

    fields: dict[str, str]
    files: tuple[tuple[str, StoredFile], ...]
    """The name of the field, and the file."""


def is_form(call: Call) -> bool:
    """Whether the body is a form that may have files."""
    kind = call.request.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == "multipart/form-data"


async def read_form(
    call: Call, key: str, *, fields: Collection[str] = (), max_files: int | None = None
) -> Form:
    """Read a form. Its files are stored for the conversation `key`, in pieces.

    `fields` are the names of the other fields that it may have.

    The caller must be admitted before anything is stored. A file is deleted after an hour unless a
    message names it; if this fails, none is left. `max_files` is the limit of a message by default.
    Raises `ApiError`.
    """
    limits = call.runtime.api.attachment_limits()
    most = limits.message_bytes + MAX_FIELD + OVERHEAD
    if content_length(call.request) > most:
        text = f"The body is longer than {most} bytes."
        raise ApiError(413, text, code="body_too_long", headers={"Connection": "close"})
    count = limits.message_files if max_files is None else max_files
    reader = _FormReader(call, key, frozenset(fields), count)
    try:
        async with aclosing(call.chunks(most)) as chunks:
            return await reader.read(_Parser(_boundary(call), chunks))
    except BaseException:
        await reader.discard()
        raise


def _boundary(call: Call) -> bytes:
    _, options = parse_options_header(call.request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if not is_form(call) or not boundary:
        text = "The body must be a form (multipart/form-data) with a boundary."
        raise ApiError(415, text, code="not_a_form")
    return boundary


@attrs.frozen
class _FormReader:
    """Reads the parts of one form."""

    call: Call
    key: str
    allowed: frozenset[str]
    max_files: int
    _fields: dict[str, str] = attrs.Factory(dict)
    _files: list[tuple[str, StoredFile]] = attrs.Factory(list)

    async def read(self, parser: _Parser) -> Form:
        """Read all parts."""
        size = 0
        while (part := await parser.next_part()) is not None:
            if part.name in self._fields:
                raise _invalid(f"{part.name!r:.60} is there twice", part.name)
            if part.filename is not None:
                await self._store(part, parser)
                continue
            if part.name not in self.allowed:
                raise unsupported(part.name[:60])
            value = bytearray()
            while (piece := await parser.next_piece()) is not None:
                value += piece
                size += len(piece)
                if size > MAX_FIELD:
                    text = f"the fields have more than {MAX_FIELD:,} bytes"
                    raise ApiError(413, f"In the form, {text}.", code="body_too_long")
            try:
                self._fields[part.name] = value.decode()
            except UnicodeDecodeError:
                raise _invalid(f"{part.name!r:.60} is not UTF-8", part.name) from None
        return Form(self._fields, tuple(self._files))

    async def _store(self, part: _Part, parser: _Parser) -> None:
        if len(self._files) >= self.max_files:
            raise _invalid(f"there are more than {self.max_files} files", part.name)
        source = self.call.caller.source("files")
        conversation = self.call.runtime.conversation(self.key, source=source)
        attachment = Attachment(chunks=parser.pieces(), name=part.filename)
        try:
            file = await conversation.put_file(attachment)
        except AttachmentRefused as error:
            if isinstance(error.__cause__, ApiError):  # of the body, not of the file
                raise error.__cause__ from None
            raise file_error(error, part.name) from None
        self._files.append((part.name, file))

    async def discard(self) -> None:
        """Delete the files that were stored; a sweep deletes what is left."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + DISCARD_SECONDS):
            for _, file in self._files:
                with contained():  # the runtime may be ending
                    await self.call.runtime.api.delete_file(file.id, session_key=self.key)


@attrs.frozen
class _Part:
    name: str
    filename: str | None


class _Parser:
    """Pulls the parts of a form out of the chunks of a body; holds one chunk at a time."""

    def __init__(self, boundary: bytes, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._events: deque[_Part | bytes | None] = deque()
        """Parts that begin, pieces of their content, and None where a part ends."""
        self._parts = 0
        self._name = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._ended = False
        callbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._add_data,
            "on_part_end": lambda: self._events.append(None),
            "on_end": self._end,
        }
        with _parsing():
            self._parser = MultipartParser(
                boundary,
                callbacks,  # type: ignore[arg-type]  # its type is a TypedDict of the callbacks
                max_header_count=MAX_HEADERS,
                max_header_size=MAX_HEADER,
            )

    async def next_part(self) -> _Part | None:
        """Return the next part, after the content of the one before; None at the end."""
        event = await self._next()
        assert event is None or isinstance(event, _Part)
        return event

    async def next_piece(self) -> bytes | None:
        """Return the next bytes of the current part; None at its end."""
        event = await self._next()
        assert event is None or isinstance(event, bytes)
        return event

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the rest of the current part."""
        while (piece := await self.next_piece()) is not None:
            yield piece

    async def _next(self) -> _Part | bytes | None:
        while not self._events:
            try:
                chunk = await anext(self._chunks, None)
            except ClientDisconnect:
                chunk = None
            if chunk is None:
                if not self._ended:
                    raise _invalid("it has no end")
                return None
            with _parsing():
                self._parser.write(chunk)
        return self._events.popleft()

    # Called by the parser

    def _begin(self) -> None:
        self._headers = {}
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _invalid(f"it has more than {MAX_PARTS} parts")

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _end_headers(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"").decode("latin-1")
        kind, options = parse_options_header(disposition)
        if kind != b"form-data" or b"name" not in options:
            raise _invalid("a part has no name")
        name, filename = options[b"name"], options.get(b"filename")
        self._events.append(_Part(_text(name), None if filename is None else _text(filename)))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self._events.append(data[start:end])

    def _end(self) -> None:
        self._ended = True


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


@contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except FormParserError:
        raise _invalid("its parts are not separated as the boundary says") from None


def _invalid(why: str, param: str | None = None) -> ApiError:
    return ApiError(400, f"The form is not valid: {why}.", code="invalid_form", param=param)
