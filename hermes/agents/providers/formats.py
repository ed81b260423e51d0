"""How requests are put together from encoded parts, for calls and when a recorded one is rebuilt.

Nothing here needs a connection or a credential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import attrs
import msgspec

from hermes.agents.providers import anthropic_blocks, openai_messages
from hermes.agents.providers.attachments import Acceptance
from hermes.agents.providers.base import Endpoint
from hermes.agents.providers.options import as_user
from hermes.messages import AttachmentKind, Message
from hermes.redaction import redact_all
from hermes.redaction.urls import hide_credentials

FormatName: TypeAlias = Literal["openai", "anthropic"]
CACHE_CONTROL = {"type": "ephemeral"}
_BREAKPOINT = b',"cache_control":{"type":"ephemeral"}'
_END = b"}]}"
_encode = msgspec.json.Encoder().encode


@attrs.frozen
class RequestParts:
    """What a request has besides messages."""

    fields: bytes
    """The model and its settings, as a JSON object."""
    tools: bytes = b""
    """The tools as a JSON array in the format of the endpoint; empty if there are none."""
    system: str | None = None
    """The system prompt."""

    @property
    def start(self) -> bytes:
        """The start of the body: the fields and the tools."""
        tools = b',"tools":' + self.tools if self.tools else b""
        return self.fields[:-1] + tools


class RequestFormat(Protocol):
    """Encodes messages, and puts request bodies together (see `Provider`)."""

    @property
    def name(self) -> FormatName:
        """The protocol."""
        ...

    @property
    def parts(self) -> RequestParts:
        """What each request has besides messages."""
        ...

    @property
    def acceptance(self) -> Acceptance:
        """The attachments that the model takes."""
        ...

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON."""
        ...

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body."""
        ...


@attrs.frozen
class OpenAIFormat:
    """The format of chat completions."""

    parts: RequestParts
    acceptance: Acceptance
    endpoint: Endpoint
    name: FormatName = attrs.field(default="openai", init=False)
    _start: bytes = attrs.field(init=False)
    _system: bytes = attrs.field(init=False)

    @_start.default
    def _make_start(self) -> bytes:
        return self.parts.start + b',"messages":['

    @_system.default
    def _make_system(self) -> bytes:
        system = {"role": "system", "content": self.parts.system}
        return _encode(system) if self.parts.system else b""

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON."""
        encoded = openai_messages.to_json(messages, self.acceptance, self.endpoint)
        return [_encode(each) for each in encoded]

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body (see `Provider.body`)."""
        messages = [self._system, history, *new, *self.encode(suffix)]
        return b"".join([self._start, b",".join(filter(None, messages)), b"]}"])


@attrs.frozen
class AnthropicFormat:
    """The format of the Messages API."""

    parts: RequestParts
    acceptance: Acceptance
    name: FormatName = attrs.field(default="anthropic", init=False)
    _start: bytes = attrs.field(init=False)

    @_start.default
    def _make_start(self) -> bytes:
        start = self.parts.start
        if self.parts.system:
            text = {"type": "text", "text": self.parts.system, "cache_control": CACHE_CONTROL}
            start += b',"system":' + _encode([text])
        return start + b',"messages":['

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON."""
        return [_encode(each) for each in anthropic_blocks.to_json(messages, self.acceptance)]

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body (see `Provider.body`).

        Cache breakpoints are set after the history and after the messages of the current turn.
        """
        marked = list(new)
        if marked:
            marked[-1] = _with_breakpoint(marked[-1])
        suffix = [as_user(each) if each.role == "system" else each for each in suffix]
        rest = b",".join([*marked, *self.encode(suffix)])
        before = _with_breakpoint(history) if history else b""
        return b"".join([self._start, before, b"," if before and rest else b"", rest, b"]}"])


def _with_breakpoint(message: bytes) -> bytes:
    """Add a cache breakpoint to the last content block; all encoded messages end with one."""
    return message.removesuffix(_END) + _BREAKPOINT + _END if message.endswith(_END) else message


class RequestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request was sent, and what it has besides texts and tools."""

    format: FormatName
    provider: str
    model: str
    url: str
    alternate_roles: bool = False
    attachments: tuple[AttachmentKind, ...] = ()
    fields: msgspec.Raw
    """The fields of the request, byte for byte."""


@attrs.frozen
class RequestTexts:
    """What requests have besides messages, without secrets, as it is recorded."""

    settings: str
    tools: str | None
    system: str | None
    redacted: bool
    """Whether something was removed."""


def texts_of(
    format_: RequestFormat, endpoint: Endpoint, redact: Callable[[str], str]
) -> RequestTexts:
    """Return what is recorded of each request of an endpoint."""
    parts = format_.parts
    settings = RequestSettings(
        format=format_.name,
        provider=endpoint.name,
        model=endpoint.model,
        url=hide_credentials(endpoint.base_url),
        alternate_roles=endpoint.alternate_roles,
        attachments=tuple(format_.acceptance.kinds),
        fields=msgspec.Raw(parts.fields),
    )
    given = _encode(settings), parts.tools
    kept = [_redacted(each, redact) for each in given]
    system = redact(parts.system) if parts.system else None
    changed = (*given, parts.system or None) != (*kept, system)
    return RequestTexts(kept[0].decode(), kept[1].decode() or None, system, changed)


def _redacted(encoded: bytes, redact: Callable[[str], str]) -> bytes:
    """Return JSON without secrets in any of its strings; if it has none, the same bytes."""
    value = msgspec.json.decode(encoded) if encoded else None
    kept = redact_all(value, redact)
    return encoded if kept is value else _encode(kept)
