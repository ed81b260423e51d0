"""The server side of a provider's API: reads requests, writes answers and errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.script import ErrorReason, ModelAnswer

encode: Final = msgspec.json.Encoder().encode
NOTHING = msgspec.Raw()


class _HasMessages(Protocol):
    @property
    def messages(self) -> msgspec.Raw: ...


Request = TypeVar("Request", bound=_HasMessages)


@attrs.frozen
class SeenFile:
    """A file that a model has received."""

    media_type: str
    size: int = 0
    sha256: str = ""
    name: str | None = None
    url: str | None = None
    """The address of an image on the web, which has no content here."""


@attrs.frozen
class Prompt:
    """A decoded request."""

    model: str
    text: bytes
    """Everything that the model reads: tools, system prompt and messages."""
    cacheable: bytes
    """The part of it that the prompt cache may keep."""
    cache_key: str
    stream: bool
    include_usage: bool
    """Whether a stream ends with the token counts."""
    messages: msgspec.Raw
    files: Sequence[SeenFile] = ()


@attrs.frozen
class TokenCounts:
    """The tokens of one call."""

    prompt: int
    cache_read: int = 0
    cache_written: int = 0
    output: int = 0
    reasoning: int = 0


@attrs.frozen
class StreamedAnswer:
    """A streamed answer as bytes."""

    head: bytes
    chunks: list[bytes]
    tail: bytes


@attrs.frozen
class Refusal(Exception):
    """A request is answered with an error."""

    status: int
    kind: str
    message: str
    code: str | None = None


class Dialect(Protocol):
    """The API of one provider."""

    def read(self, body: bytes, headers: Mapping[str, str]) -> Prompt:
        """Decode a request. Raises `Refusal` if it is invalid."""
        ...

    def stream(self, prompt: Prompt, answer: ModelAnswer, counts: TokenCounts) -> StreamedAnswer:
        """Encode an answer as server-sent events."""
        ...

    def whole(self, prompt: Prompt, answer: ModelAnswer, counts: TokenCounts) -> bytes:
        """Encode an answer as one JSON object."""
        ...

    def refusal(self, reason: ErrorReason, headers: Mapping[str, str]) -> Refusal:
        """Return the error that the provider sends for a reason."""
        ...

    def too_long(self, tokens: int, window: int) -> Refusal:
        """Return the error for a prompt that exceeds the context window."""
        ...

    def error(self, refusal: Refusal) -> bytes:
        """Encode an error as the body of a response."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """Encode an error as a server-sent event."""
        ...


class _RoleAndContent(msgspec.Struct):
    role: str = ""
    content: str | list[JsonObject] | None = None


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def last_user_text(messages: msgspec.Raw) -> str:
    """Return the text of the last user message that has one; tool results do not count."""
    for raw in reversed(_split(messages)):
        message = msgspec.json.decode(raw, type=_RoleAndContent)
        content = message.content or ""
        if message.role == "user":
            texts = [content] if isinstance(content, str) else [p.get("text") for p in content]
            if text := "\n".join(filter(None, texts)):
                return text
    return ""


def decode_request(decode: Callable[[bytes], Request], body: bytes) -> Request:
    """Decode a request body; the messages stay undecoded. Raises `Refusal` if it is invalid."""
    try:
        request = decode(body)
        if bytes(memoryview(request.messages)[:1]) != b"[":
            raise Refusal(400, "invalid_request_error", "messages are an array")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, "invalid_request_error", str(error)) from None
    return request


def prompt_text(*parts: msgspec.Raw) -> bytes:
    """Join the JSON of the parts of a prompt, of which the messages are the last.

    The closing bracket of the messages is left out, so that a prompt is a prefix of a longer one.
    The cache sees these bytes: a client that encodes the same messages differently misses it.
    """
    *before, messages = parts
    return b"\n".join([*before, memoryview(messages)[:-1]])


_numbers = itertools.count(1)


def new_id(prefix: str) -> str:
    """Return a unique id for an answer."""
    return f"{prefix}{next(_numbers):012}"
