"""Anthropic's Messages API, with prompt cache breakpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import httpx2
import msgspec
from msgspec.structs import asdict, replace

from hermes.agents.providers.attachments import anthropic_acceptance
from hermes.agents.providers.base import (
    Completion,
    Delta,
    Endpoint,
    FileBody,
    Unavailable,
    token_count,
)
from hermes.agents.providers.formats import CACHE_CONTROL, AnthropicFormat, RequestParts
from hermes.agents.providers.options import anthropic_fields, limited, merged
from hermes.agents.providers.sse_transport import post, response_error
from hermes.agents.providers.stream_events import EventDecoder, HalfJoiner
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import NO_OPTIONS, JsonObject, Message, ToolCall, TurnOptions, Usage
from hermes.sanitize import encodable

VERSION = "2023-06-01"
MAX_TOKENS = 8192
_TRUNCATED = frozenset({"max_tokens", "model_context_window_exceeded"})
_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402,
    "permission_error": 403, "not_found_error": 404, "request_too_large": 413,
    "rate_limit_error": 429, "api_error": 500, "overloaded_error": 529,
}  # fmt: skip
_encode = msgspec.json.Encoder().encode


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Delta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: JsonObject | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None
    content: list[JsonObject] = []
    stop_reason: str | None = None


_decode = msgspec.json.Decoder(_Event, strict=False).decode


@attrs.define
class _Block:
    """A content block that is being streamed."""

    start: JsonObject
    chunks: list[str] = attrs.Factory(list)
    signature: str | None = None
    halves: HalfJoiner = attrs.Factory(HalfJoiner)

    @property
    def content(self) -> str:
        return "".join(self.chunks)


@attrs.define
class _StreamedAnswer:
    """Assembles an answer from its events."""

    endpoint: Endpoint
    on_delta: Callable[[Delta], None]
    blocks: dict[int, _Block] = attrs.Factory(dict)
    usage: _Usage = attrs.Factory(_Usage)
    stop_reason: str | None = None
    events: EventDecoder[_Event] = attrs.field(init=False)

    @events.default
    def _new_decoder(self) -> EventDecoder[_Event]:
        return EventDecoder(self.endpoint.title, _Event, _decode)

    def feed(self, data: bytes) -> None:
        """Add the data of the next event."""
        event = self.events.decode(data)
        if event is None:
            return
        if event.type == "error":
            raise _event_error(self.endpoint, event.error, data)
        self._add(event)

    def _add(self, event: _Event) -> None:
        match event.type:
            case "message":  # the whole answer, from an endpoint that does not stream
                self._count(event.usage)
                for index, block in enumerate(event.content):
                    self._start_block(index, block)
                self.stop_reason = event.stop_reason
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start":
                self._start_block(event.index, event.content_block or {})
            case "content_block_delta" if event.delta is not None:
                self._extend_block(event.index, event.delta)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self.stop_reason = event.delta.stop_reason or self.stop_reason

    def _count(self, usage: _Usage | None) -> None:
        if usage is not None:  # later counts are totals and replace the earlier ones
            counts = {name: count for name, count in asdict(usage).items() if count is not None}
            self.usage = replace(self.usage, **counts)

    def _start_block(self, index: int, start: JsonObject) -> None:
        block = self.blocks[index] = _Block(start, signature=start.get("signature") or None)
        for name in ("text", "thinking"):
            if isinstance(start.get(name), str) and start[name]:
                self._extend(block, name, start[name])

    def _extend_block(self, index: int, delta: _Delta) -> None:
        block = self.blocks.setdefault(index, _Block({"type": "text"}))
        if delta.text:
            self._extend(block, "text", delta.text)
        if delta.thinking:
            self._extend(block, "thinking", delta.thinking)
        if delta.partial_json:
            block.chunks.append(block.halves.feed(delta.partial_json))
        block.signature = delta.signature or block.signature

    def _extend(self, block: _Block, kind: str, text: str) -> None:
        self._append(block, kind, block.halves.feed(text))

    def _append(self, block: _Block, kind: str, text: str) -> None:
        if text:
            block.chunks.append(text)
            self.on_delta(TextDelta(text) if kind == "text" else ReasoningDelta(text))

    def _is_damaged(self) -> bool:
        """Return whether text is missing, after the ends of all texts have been read."""
        for block in self.blocks.values():
            kind = "text" if block.start.get("type") == "text" else "thinking"
            self._append(block, kind, block.halves.finish())
        return bool(self.events.lost) or any(b.halves.broken for b in self.blocks.values())

    def completion(self) -> Completion:
        """Return the whole answer.

        Raises `Unavailable` if the stream ended early, since tool calls may be missing, and if a
        part is missing from an answer with tool calls.
        """
        if self.stop_reason is None:
            raise Unavailable(f"{self.endpoint.title} ended the stream before the answer was over")
        damaged = self._is_damaged()
        if damaged and any(_is_call(block) for block in self.blocks.values()):
            raise Unavailable(f"{self.endpoint.title} sent a malformed answer with tool calls")
        blocks = [block for _, block in sorted(self.blocks.items())]
        message = Message(
            "assistant",
            "".join(_contents(blocks, "text")) or None,
            tool_calls=tuple(_calls(blocks)),
            reasoning="".join(_contents(blocks, "thinking")) or None,
            reasoning_details=tuple(_reasoning_details(blocks)),
            finish_reason=self.stop_reason,
        )
        usage = Usage(
            model=self.endpoint.model,
            provider=self.endpoint.name,
            input_tokens=token_count(self.usage.input_tokens, self.endpoint),
            output_tokens=token_count(self.usage.output_tokens, self.endpoint),
            cache_read_tokens=token_count(self.usage.cache_read_input_tokens, self.endpoint),
            cache_write_tokens=token_count(self.usage.cache_creation_input_tokens, self.endpoint),
        )
        truncated = self.stop_reason in _TRUNCATED
        return Completion(encodable(message), usage, truncated, damaged)


def _contents(blocks: Sequence[_Block], kind: str) -> Iterator[str]:
    return (block.content for block in blocks if block.start.get("type") == kind)


def _is_call(block: _Block) -> bool:
    return block.start.get("type") == "tool_use"


def _calls(blocks: Sequence[_Block]) -> Iterator[ToolCall]:
    for block in blocks:
        if _is_call(block):
            initial = block.start.get("input")
            whole = _encode(encodable(initial)).decode() if initial else "{}"
            arguments = block.content or whole
            yield ToolCall(str(block.start.get("id")), str(block.start.get("name")), arguments)


def _reasoning_details(blocks: Sequence[_Block]) -> Iterator[JsonObject]:
    """Yield the reasoning blocks that the provider expects back: signed or redacted ones."""
    for block in blocks:
        if block.start.get("type") == "redacted_thinking":
            yield {"type": "redacted_thinking", "data": block.start.get("data", "")}
        elif block.start.get("type") == "thinking" and block.signature:
            yield {"type": "thinking", "thinking": block.content, "signature": block.signature}


def _event_error(endpoint: Endpoint, error: object, data: bytes) -> Exception:
    """Return the exception for an error that arrives as an event, after a status of 200."""
    kind = error.get("type") if isinstance(error, dict) else None
    status = _STATUS.get(kind, 500) if isinstance(kind, str) else 500
    return response_error(endpoint, status, data.decode(errors="replace"), {})


@attrs.frozen
class AnthropicMessages:
    """A `Provider` for Anthropic's Messages API, with a fixed system prompt and fixed tools."""

    client: httpx2.AsyncClient
    endpoint: Endpoint
    system: str | None = None
    tools: tuple[JsonObject, ...] = ()
    options: TurnOptions = NO_OPTIONS
    """What the client of a turn wants."""
    request_format: AnthropicFormat = attrs.field(init=False)

    @request_format.default
    def _make_format(self) -> AnthropicFormat:
        request: JsonObject = {
            "model": self.endpoint.model,
            "stream": True,
            "max_tokens": self.endpoint.max_tokens or MAX_TOKENS,
        }
        request.update(self.endpoint.parameters)
        if self.options != NO_OPTIONS:
            request = merged(request, anthropic_fields(self.options, self.endpoint, self.tools))
        tools: list[JsonObject] = [
            {
                "name": tool["name"],
                "description": tool.get("description", ""),
                "input_schema": tool["parameters"],
            }
            for tool in self.tools
        ]
        if tools:
            tools[-1]["cache_control"] = CACHE_CONTROL
            request.pop("tools", None)
        if self.system:
            request.pop("system", None)
        parts = RequestParts(_encode(request), _encode(tools) if tools else b"", self.system)
        return AnthropicFormat(parts, anthropic_acceptance(self.endpoint))

    def configured(self, options: TurnOptions) -> AnthropicMessages:
        """Return a provider for one turn (see `ConfigurableProvider`)."""
        most = attrs.evolve(self.endpoint, max_tokens=self.endpoint.max_tokens or MAX_TOKENS)
        tools, endpoint = (*self.tools, *options.tools), limited(most, options)
        return attrs.evolve(self, endpoint=endpoint, tools=tools, options=options)

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        """Encode messages as JSON."""
        return self.request_format.encode(messages)

    def body(self, history: bytes, new: Sequence[bytes], suffix: Sequence[Message]) -> bytes:
        """Return a request body (see `Provider.body`)."""
        return self.request_format.body(history, new, suffix)

    async def complete(
        self, body: bytes | FileBody, on_delta: Callable[[Delta], None]
    ) -> Completion:
        """Send a request and return the answer (see `Provider.complete`)."""
        headers = {"anthropic-version": VERSION}
        if key := self.endpoint.key.reveal():
            headers["x-api-key"] = key
        answer = _StreamedAnswer(self.endpoint, on_delta)
        body = self.request_format.acceptance.limited(body)
        await post(self.client, self.endpoint, "/v1/messages", body, headers, answer.feed)
        return answer.completion()
