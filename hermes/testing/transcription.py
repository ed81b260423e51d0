"""`open_transcription`: a service that transcribes audio, on a loopback socket."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from email.message import Message as Mime
from email.parser import BytesParser
from email.policy import HTTP
from typing import TypeAlias

import attrs
import msgspec
import trio

from hermes.testing.loopback import Request, Response, serve_http
from hermes.testing.openai_dialect import OpenAIDialect
from hermes.testing.script import Fault, HangUp, Refuse

PATH = "/v1/audio/transcriptions"
FORMATS = ("flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "oga", "ogg", "wav", "webm")
MAX_BYTES = 25 * 2**20
_JSON = [("content-type", "application/json")]
_dialect = OpenAIDialect()


@attrs.frozen(kw_only=True)
class TranscriptionRequest:
    """A request that the service has received."""

    headers: Mapping[str, str]
    fields: Mapping[str, str]
    """The fields of the form, without the file."""
    file_name: str
    media_type: str
    content: bytes = attrs.field(repr=False)


Transcribe: TypeAlias = Callable[[TranscriptionRequest], str]


class LoopbackTranscription:
    """The service; made by `open_transcription`."""

    def __init__(self, script: Sequence[str] | Transcribe, faults: Sequence[Fault | None]) -> None:
        self.url: str = ""
        """The base URL, up to `/v1`."""
        self.requests: list[TranscriptionRequest] = []
        self._script = script
        self._faults = deque(faults)

    async def respond(self, request: Request) -> Response:
        """Answer a request, as the real service does."""
        await trio.lowlevel.checkpoint()
        if request.path != PATH:
            return _error(404, "Invalid URL")
        try:
            form = _parse(request)
        except ValueError as error:
            return _error(400, str(error))
        self.requests.append(form)
        fault = self._faults.popleft() if self._faults else None
        if isinstance(fault, Refuse):
            return _refused(fault, request)
        if isinstance(fault, HangUp):
            return Response(complete=False)
        if (problem := _problem(form)) is not None:
            return problem
        text = self._script(form) if callable(self._script) else self._next()
        return Response(headers=_JSON, chunks=[msgspec.json.encode({"text": text})])

    def _next(self) -> str:
        assert not callable(self._script)
        number = len(self.requests) - 1
        return self._script[number] if number < len(self._script) else "(words)"


def _parse(request: Request) -> TranscriptionRequest:
    """Return the form of a request. Raises `ValueError` if it is none, or has no file."""
    head = f"content-type: {request.headers.get('content-type', '')}\r\n\r\n".encode()
    form: Mime = BytesParser(policy=HTTP).parsebytes(head + request.body)
    if form.get_content_type() != "multipart/form-data" or not form.is_multipart():
        raise ValueError("Could not parse multipart form")
    fields: dict[str, str] = {}
    file: Mime | None = None
    for part in form.get_payload():
        assert isinstance(part, Mime)
        name = str(part.get_param("name", header="content-disposition"))
        if name == "file":
            file = part
        else:
            fields[name] = _content(part).decode()
    if file is None:
        raise ValueError("'file' is a required property")
    return TranscriptionRequest(
        headers=request.headers,
        fields=fields,
        file_name=file.get_filename() or "",
        media_type=file.get_content_type(),
        content=_content(file),
    )


def _content(part: Mime) -> bytes:
    content = part.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content


def _problem(form: TranscriptionRequest) -> Response | None:
    if not form.fields.get("model"):
        return _error(400, "you must provide a model parameter")
    if form.file_name.rpartition(".")[2] not in FORMATS:
        return _error(400, f"Invalid file format. Supported formats: {list(FORMATS)}")
    if len(form.content) > MAX_BYTES:
        return _error(413, f"Maximum content size limit ({MAX_BYTES}) exceeded")
    return None


def _error(status: int, message: str) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return Response(status=status, headers=_JSON, chunks=[msgspec.json.encode({"error": error})])


def _refused(fault: Refuse, request: Request) -> Response:
    refusal = _dialect.refusal(fault.reason, request.headers)
    headers = list(_JSON)
    if fault.retry_after is not None:
        headers.append(("retry-after", f"{fault.retry_after:g}"))
    return Response(status=refusal.status, headers=headers, chunks=[_dialect.error(refusal)])


@asynccontextmanager
async def open_transcription(
    script: Sequence[str] | Transcribe = (), faults: Sequence[Fault | None] = ()
) -> AsyncIterator[LoopbackTranscription]:
    """Serve transcriptions on a loopback port until the end of the block, as OpenAI does.

    Args:
        script: The transcripts, one for each request, or a function of a request.
        faults: What goes wrong with the first requests, `Refuse` or `HangUp`; None: nothing.
    """
    service = LoopbackTranscription(script, faults)
    async with serve_http(service.respond) as port:
        service.url = f"http://127.0.0.1:{port}/v1"
        yield service
