"""`ModelTranscriber`: turns voice into text with a model."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, Final

import attrs
import httpx2
import msgspec
import trio

from hermes.agents.providers.base import (
    AuthenticationFailed,
    Endpoint,
    RequestRejected,
    Unavailable,
)
from hermes.agents.providers.redacting import EndpointRedactor
from hermes.agents.providers.retries import Retries
from hermes.agents.providers.sse_transport import response_error
from hermes.errors import UnknownFile
from hermes.protocols import FileReader, RunsOnTrio, Transcriber

PATH: Final = "/audio/transcriptions"
CHUNK: Final = 2**18
"""How many bytes of a file are read at once."""
MAX_ANSWER: Final = 4 * 2**20
_EXTENSIONS = {
    "audio/aac": "aac",
    "audio/flac": "flac",
    "audio/mp4": "m4a",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
    "audio/webm": "webm",
}
"""By media type: a server recognizes the format by the name of the file."""


class _Answer(msgspec.Struct):
    text: str


_decode = msgspec.json.Decoder(_Answer).decode


@attrs.frozen(kw_only=True)
class ModelTranscriber(Transcriber, RunsOnTrio):
    """A transcriber that calls a model by OpenAI's protocol. Usually made by `open_transcriber`.

    `Endpoint.parameters` are further fields of the form, such as `("language", "de")`.
    """

    on_trio: ClassVar[bool] = True

    client: httpx2.AsyncClient = attrs.field(repr=False)
    endpoint: Endpoint
    retries: Retries = attrs.Factory(Retries)
    redact: Callable[[str], str] | None = attrs.field(default=None, repr=False)
    """Removes secrets from transcripts. The credentials of the endpoint are removed in any case."""
    _redactor: EndpointRedactor = attrs.field(init=False, repr=False)

    @_redactor.default
    def _make_redactor(self) -> EndpointRedactor:
        return EndpointRedactor(self.endpoint, self.redact)

    async def transcribe(self, audio: FileReader, /) -> str:
        """Return what is said in an audio file. The file is sent in pieces, as it is read.

        A call is retried after a temporary failure, as those of chat models are. Raises
        `ProviderError`, or `UnknownFile` if the file was deleted.
        """
        deadline = trio.current_effective_deadline()
        return self._redactor(await self.retries.run(lambda: self._call(audio), deadline))

    async def _call(self, audio: FileReader) -> str:
        endpoint, body = self.endpoint, _FormStream(self.endpoint, audio)
        try:
            with trio.fail_after(endpoint.call_timeout):
                async with self._sent(body) as response:
                    content = await _read_start(response)
        except trio.TooSlowError:
            text = f"{endpoint.title} did not finish within {endpoint.call_timeout:g} seconds"
            raise Unavailable(text) from None
        except httpx2.TimeoutException:
            raise Unavailable(f"{endpoint.title} did not respond in time") from None
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            why = endpoint.redact(str(error))
            raise RequestRejected(f"the URL of {endpoint.title} is invalid: {why}") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            why = endpoint.redact(str(error) or type(error).__name__)
            raise Unavailable(f"the connection to {endpoint.title} failed: {why}") from None
        if not response.is_success:
            text = content.decode(errors="replace")
            raise response_error(endpoint, response.status_code, text, response.headers)
        try:
            return _decode(content).text
        except msgspec.DecodeError:
            raise RequestRejected(f"{endpoint.title} did not answer with a transcript") from None

    @asynccontextmanager
    async def _sent(self, body: _FormStream) -> AsyncIterator[httpx2.Response]:
        """Send a request, and yield the response."""
        endpoint = self.endpoint
        url = endpoint.base_url.rstrip("/") + PATH
        timeout = httpx2.Timeout(
            endpoint.read_timeout, connect=endpoint.connect_timeout, pool=endpoint.call_timeout
        )
        key = endpoint.key.reveal()
        headers = {
            "content-type": f"multipart/form-data; boundary={body.boundary}",
            "content-length": str(body.size),
            "accept-encoding": "identity",
            **({"authorization": f"Bearer {key}"} if key else {}),
            **dict(endpoint.headers),
        }
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            # The exception of the HTTP client would quote the value.
            text = f"the API key or a header of {endpoint.title} has characters that HTTP cannot"
            raise AuthenticationFailed(f"{text} send, such as a line break")
        request = self.client.build_request("POST", url, headers=headers, timeout=timeout)
        # The client would wrap it in an async generator, and leave that open if sending fails.
        request.stream = body
        response = await self.client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


async def _read_start(response: httpx2.Response) -> bytes:
    """Return the first `MAX_ANSWER` bytes of a body; the rest is read and dropped."""
    read = bytearray()
    async for chunk in response.aiter_bytes():
        read += chunk[: MAX_ANSWER - len(read)]
    return bytes(read)


class _FormStream(httpx2.AsyncByteStream):
    """A form with the fields of a request and its file, sent once and in pieces."""

    def __init__(self, endpoint: Endpoint, audio: FileReader) -> None:
        self.boundary: str = secrets.token_hex(16)
        self._audio = audio
        fields = {"model": endpoint.model, "response_format": "json", **dict(endpoint.parameters)}
        file, line = audio.file, f"--{self.boundary}\r\n"
        name = f"audio.{_EXTENSIONS.get(file.media_type, 'bin')}"
        form = [
            f'{line}Content-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
            for field, value in fields.items()
        ]
        form += [
            f'{line}Content-Disposition: form-data; name="file"; filename="{name}"\r\n'
            f"Content-Type: {file.media_type}\r\n\r\n"
        ]
        self._head = "".join(form).encode()
        self._tail = f"\r\n--{self.boundary}--\r\n".encode()
        self.size: int = len(self._head) + file.size + len(self._tail)
        """The length of the body in bytes."""
        self._offsets = iter([None, *range(0, file.size, CHUNK), file.size])

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            offset = next(self._offsets)
        except StopIteration:
            raise StopAsyncIteration from None
        size = self._audio.file.size
        if offset is None:
            return self._head
        if offset == size:
            return self._tail
        chunk = await self._audio.read(offset, min(CHUNK, size - offset))
        if len(chunk) != min(CHUNK, size - offset):
            raise UnknownFile("the audio file is shorter than it was")
        return chunk


@asynccontextmanager
async def open_transcriber(
    endpoint: Endpoint, *, redact: Callable[[str], str] | None = None
) -> AsyncIterator[ModelTranscriber]:
    """Open an HTTP client and yield a `ModelTranscriber` for `open_runtime` that uses it.

    Args:
        endpoint: URL, model name and API key of a service that has OpenAI's
            `/audio/transcriptions`.
        redact: Removes secrets from transcripts.
    """
    async with httpx2.AsyncClient(trust_env=True) as client:
        yield ModelTranscriber(client=client, endpoint=endpoint, redact=redact)
        await trio.lowlevel.checkpoint()
