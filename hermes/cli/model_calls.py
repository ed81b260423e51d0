"""Calls to a model that show whether it can be used: an answer, a transcript, a list of models."""

from __future__ import annotations

import io
import wave

import attrs
import httpx2
import msgspec
import trio

from hermes.agents.factory import Protocol
from hermes.agents.providers.anthropic_messages import VERSION, AnthropicMessages
from hermes.agents.providers.base import Endpoint
from hermes.agents.providers.openai_chat import OpenAIChat
from hermes.agents.providers.retries import Retries
from hermes.agents.transcriber import open_transcriber
from hermes.messages import Message, StoredFile
from hermes.sanitize import one_line

QUESTION = "Answer with the word ok."
LIST_TIMEOUT = 5.0
MAX_MODELS = 1000


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def call_model(kind: Protocol, endpoint: Endpoint) -> float:
    """Ask the model for one word, and return how many seconds the answer took.

    Raises `ProviderError` or `ContextOverflow` if there is none.
    """
    provider_type = AnthropicMessages if kind == "anthropic" else OpenAIChat
    started = trio.current_time()
    async with httpx2.AsyncClient(trust_env=True) as client:
        provider = provider_type(client, endpoint, None, ())
        question = provider.encode([Message("user", QUESTION)])
        await provider.complete(provider.body(b"", question, ()), lambda _: None)
    return trio.current_time() - started


async def call_transcriber(endpoint: Endpoint) -> float:
    """Have a second of silence transcribed, and return how many seconds that took.

    Raises `ProviderError` or `ContextOverflow` if there is no transcript.
    """
    started = trio.current_time()
    async with open_transcriber(endpoint) as transcriber:
        once = attrs.evolve(transcriber, retries=Retries(max_attempts=1))
        await once.transcribe(_Silence())
    return trio.current_time() - started


class _Silence:
    """A second of silence, as a file."""

    def __init__(self) -> None:
        content = io.BytesIO()
        with wave.open(content, "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(bytes(16_000))
        self._content = content.getvalue()

    @property
    def file(self) -> StoredFile:
        return StoredFile(id="", media_type="audio/wav", size=len(self._content))

    async def read(self, offset: int = 0, size: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        return self._content[offset : None if size is None else offset + size]


async def list_models(kind: Protocol, endpoint: Endpoint) -> list[str] | None:
    """Return the names of the models that the endpoint lists; None if nothing answers there."""
    key = endpoint.key.reveal()
    path, headers = "/models", {"authorization": f"Bearer {key}"} if key else {}
    if kind == "anthropic":
        path, headers = "/v1/models", {"anthropic-version": VERSION, "x-api-key": key or ""}
    try:
        with trio.fail_after(LIST_TIMEOUT):
            async with httpx2.AsyncClient(trust_env=True) as client:
                response = await client.get(endpoint.base_url.rstrip("/") + path, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL, trio.TooSlowError, ValueError):
        return None
    try:
        found = msgspec.json.decode(response.content, type=_Models)
    except ValueError:
        return []  # not every endpoint has such a list
    return [one_line(model.id) for model in found.data[:MAX_MODELS]]
