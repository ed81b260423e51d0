"""A protocol from the provider's side: how a request is read, and an answer or an error told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.script import ModelAnswer, Why

encode = msgspec.json.Encoder().encode
NOTHING = msgspec.Raw()


class _Asked(Protocol):
    @property
    def messages(self) -> msgspec.Raw: ...


Request = TypeVar("Request", bound=_Asked)


@attrs.frozen
class Prompt:
    """A request as its model reads it: tools, system prompt, messages; of one user's cache."""

    model: str
    text: bytes
    cacheable: bytes
    key: str
    stream: bool
    counts: bool
    """Whether a stream says at its end what it cost."""
    messages: msgspec.Raw


@attrs.frozen
class Counted:
    """What a call costs, in tokens."""

    prompt: int
    read: int = 0
    written: int = 0
    output: int = 0
    reasoning: int = 0


@attrs.frozen
class Streamed:
    """An answer as bytes, in the pieces that it comes in."""

    head: bytes
    pieces: list[bytes]
    tail: bytes


@attrs.frozen
class Refusal(Exception):
    """A request that gets an error instead of an answer."""

    status: int
    kind: str
    message: str
    code: str | None = None


class Dialect(Protocol):
    """A protocol that models are spoken to in."""

    def read(self, body: bytes, headers: Mapping[str, str]) -> Prompt:
        """What is asked. Raises `Refusal` where it cannot be read."""
        ...

    def stream(self, prompt: Prompt, answer: ModelAnswer, counted: Counted) -> Streamed: ...
    def whole(self, prompt: Prompt, answer: ModelAnswer, counted: Counted) -> bytes: ...
    def refusal(self, why: Why, headers: Mapping[str, str]) -> Refusal: ...
    def too_long(self, tokens: int, window: int) -> Refusal: ...
    def error(self, refusal: Refusal) -> bytes: ...
    def error_event(self, refusal: Refusal) -> bytes: ...


class _Role(msgspec.Struct):
    role: str = ""
    content: str | list[JsonObject] | None = None


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def last_user_text(messages: msgspec.Raw) -> str:
    """What a user said last; the results of tools are no words of a user."""
    for raw in reversed(_split(messages)):
        message = msgspec.json.decode(raw, type=_Role)
        content = message.content or ""
        if message.role == "user":
            texts = [content] if isinstance(content, str) else [p.get("text") for p in content]
            if said := "\n".join(filter(None, texts)):
                return said
    return ""


def read_by(decode: Callable[[bytes], Request], body: bytes) -> Request:
    """A request, or its refusal. Messages are only split when somebody looks at them."""
    try:
        request = decode(body)
        if bytes(memoryview(request.messages)[:1]) != b"[":
            raise Refusal(400, "invalid_request_error", "messages are an array")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, "invalid_request_error", str(error)) from None
    return request


def text_of(*parts: msgspec.Raw) -> bytes:
    """A prompt of these parts; the bracket behind its messages would not be there in a longer one.

    So it is the bytes of the JSON that are cached: a client that changes them spoils its cache,
    even if a model would not see the difference.
    """
    *before, messages = parts
    return b"\n".join([*before, memoryview(messages)[:-1]])


_numbers = itertools.count(1)


def new_name(prefix: str) -> str:
    """A name for an answer."""
    return f"{prefix}{next(_numbers):012}"
