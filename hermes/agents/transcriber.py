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

from hermes.agents.providers.base import Endpoint, RequestRejected
from hermes.agents.providers.file_body import BodyStream, body_around
from hermes.agents.providers.redacting import EndpointRedactor
from hermes.agents.providers.retries import Retries
from hermes.agents.providers.sse_transport import post
from hermes.protocols import FileReader, RunsOnTrio, Transcriber

PATH: Final = "/audio/transcriptions"
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
        `ProviderError`.
        """
        deadline = trio.current_effective_deadline()
        return self._redactor(await self.retries.run(lambda: self._call(audio), deadline))

    async def _call(self, audio: FileReader) -> str:
        boundary, key = secrets.token_hex(16), self.endpoint.key.reveal()
        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        headers |= {"authorization": f"Bearer {key}"} if key else {}
        form, answer = _form(self.endpoint, audio, boundary), list[bytes]()
        await post(self.client, self.endpoint, PATH, form, headers, answer.append)
        try:
            return _decode(b"".join(answer)).text
        except msgspec.DecodeError:
            text = f"{self.endpoint.title} did not answer with a transcript"
            raise RequestRejected(text) from None


def _form(endpoint: Endpoint, audio: FileReader, boundary: str) -> BodyStream:
    """Return a form with the fields of a request, and its file."""
    fields = {"model": endpoint.model, "response_format": "json", **dict(endpoint.parameters)}
    line = f"--{boundary}\r\nContent-Disposition: form-data; name="
    texts = [f'{line}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
    media_type = audio.file.media_type
    file = f'{line}"file"; filename="audio.{_EXTENSIONS.get(media_type, "bin")}"\r\n'
    head = "".join([*texts, file, f"Content-Type: {media_type}\r\n\r\n"])
    return body_around(head.encode(), audio, f"\r\n--{boundary}--\r\n".encode())


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
