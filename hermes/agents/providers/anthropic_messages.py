"""Anthropic's Messages protocol, with markers up to where a prompt may be cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import httpx2
import msgspec

from hermes.agents.providers.base import Endpoint, Piece, Reasoning, Said, Text, Unavailable
from hermes.agents.providers.sse_transport import MALFORMED, error_of, post
from hermes.agents.providers.tool_calls import name_of, object_of, plain_id
from hermes.messages import JsonObject, Message, ToolCall, Usage
from hermes.transcript.render import parts_of

VERSION = "2023-06-01"
MAX_TOKENS = 8192
MAX_MALFORMED = 20
_MARK = b',"cache_control":{"type":"ephemeral"}'
_END = b"}]}"
_CUT = frozenset({"max_tokens", "model_context_window_exceeded"})
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
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
    """A part of the answer while it comes."""

    begun: JsonObject
    text: list[str] = attrs.Factory(list)
    signature: str | None = None

    @property
    def whole(self) -> str:
        return "".join(self.text)


@attrs.define
class _Answer:
    """A message while it comes."""

    endpoint: Endpoint
    hear: Callable[[Piece], None]
    blocks: dict[int, _Block] = attrs.Factory(dict)
    usage: _Usage = attrs.Factory(_Usage)
    finish: str | None = None
    malformed: int = 0

    def take(self, data: bytes) -> None:
        """The next event."""
        try:
            event = _decode(data)
        except MALFORMED:
            self.malformed += 1
            if self.malformed > MAX_MALFORMED:
                raise Unavailable(f"{self.endpoint.name} sends garbage") from None
            return
        if event.type == "error":
            raise _failure(self.endpoint, event.error, data)
        self._follow(event)

    def _follow(self, event: _Event) -> None:
        match event.type:
            case "message":  # all at once, from an endpoint that does not stream
                self._count(event.usage)
                for index, block in enumerate(event.content):
                    self._begin(index, block)
                self.finish = event.stop_reason
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start":
                self._begin(event.index, event.content_block or {})
            case "content_block_delta" if event.delta is not None:
                self._add(event.index, event.delta)
            case "message_delta":
                self._count(event.usage)
                if event.delta is not None:
                    self.finish = event.delta.stop_reason or self.finish

    def _count(self, usage: _Usage | None) -> None:
        if usage is not None:  # later counts are the whole, not what is added
            for name in _Usage.__struct_fields__:
                if (value := getattr(usage, name)) is not None:
                    setattr(self.usage, name, value)

    def _begin(self, index: int, block: JsonObject) -> None:
        self.blocks[index] = _Block(block, signature=block.get("signature") or None)
        for name in ("text", "thinking"):
            if isinstance(block.get(name), str) and block[name]:
                self._hear(self.blocks[index], name, block[name])

    def _add(self, index: int, delta: _Delta) -> None:
        block = self.blocks.setdefault(index, _Block({"type": "text"}))
        if delta.text:
            self._hear(block, "text", delta.text)
        if delta.thinking:
            self._hear(block, "thinking", delta.thinking)
        if delta.partial_json:
            block.text.append(delta.partial_json)
        block.signature = delta.signature or block.signature

    def _hear(self, block: _Block, kind: str, text: str) -> None:
        block.text.append(text)
        self.hear(Text(text) if kind == "text" else Reasoning(text))

    def said(self) -> Said:
        """The whole of it; an answer without its end is none, since calls may be missing."""
        if self.finish is None:
            raise Unavailable(f"{self.endpoint.name} broke off in the middle of its answer")
        blocks = [block for _, block in sorted(self.blocks.items())]
        message = Message(
            "assistant",
            "".join(_texts(blocks, "text")) or None,
            tool_calls=tuple(_calls(blocks)),
            reasoning="".join(_texts(blocks, "thinking")) or None,
            reasoning_details=tuple(_thoughts(blocks)),
            finish_reason=self.finish,
        )
        usage = Usage(
            model=self.endpoint.model,
            provider=self.endpoint.name,
            input_tokens=self.usage.input_tokens or 0,
            output_tokens=self.usage.output_tokens or 0,
            cache_read_tokens=self.usage.cache_read_input_tokens or 0,
            cache_write_tokens=self.usage.cache_creation_input_tokens or 0,
        )
        return Said(message, usage, cut=self.finish in _CUT)


def _texts(blocks: Sequence[_Block], kind: str) -> Iterator[str]:
    return (block.whole for block in blocks if block.begun.get("type") == kind)


def _calls(blocks: Sequence[_Block]) -> Iterator[ToolCall]:
    for block in blocks:
        if block.begun.get("type") == "tool_use":
            begun = block.begun.get("input")
            whole = block.whole or (_encode(begun).decode() if begun else "{}")
            yield ToolCall(str(block.begun.get("id")), str(block.begun.get("name")), whole)


def _thoughts(blocks: Sequence[_Block]) -> Iterator[JsonObject]:
    """Thinking as the provider wants it back: signed, or hidden."""
    for block in blocks:
        if block.begun.get("type") == "redacted_thinking":
            yield {"type": "redacted_thinking", "data": block.begun.get("data", "")}
        elif block.begun.get("type") == "thinking" and block.signature:
            yield {"type": "thinking", "thinking": block.whole, "signature": block.signature}


def _failure(endpoint: Endpoint, error: object, data: bytes) -> Exception:
    kind = error.get("type") if isinstance(error, dict) else None
    status = _STATUS.get(kind, 500) if isinstance(kind, str) else 500
    return error_of(endpoint, status, data.decode(errors="replace"), {})


@attrs.frozen
class AnthropicMessages:
    """Speaks to one endpoint for one agent: its system prompt and tools are part of the bytes."""

    client: httpx2.AsyncClient
    endpoint: Endpoint
    system: str | None = None
    tools: tuple[JsonObject, ...] = ()
    _frame: bytes = attrs.field(init=False)

    @_frame.default
    def _make_frame(self) -> bytes:
        request: dict[str, object] = {
            "model": self.endpoint.model,
            "stream": True,
            "max_tokens": self.endpoint.max_tokens or MAX_TOKENS,
        }
        request.update(self.endpoint.parameters)
        mark = {"type": "ephemeral"}
        if self.tools:
            tools: list[JsonObject] = [
                {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "input_schema": tool["parameters"],
                }
                for tool in self.tools
            ]
            tools[-1]["cache_control"] = mark
            request["tools"] = tools
        if self.system:
            text = {"type": "text", "text": self.system, "cache_control": mark}
            request["system"] = [text]
        return _encode(request)[:-1] + b',"messages":['

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        return [_encode(wire) for wire in _wires(messages)]

    def body(self, history: bytes, fresh: Sequence[bytes], tail: Sequence[Message]) -> bytes:
        """What is stable ends with two markers: behind the history, and behind this turn so far."""
        marked = list(fresh)
        if marked:
            marked[-1] = _marked(marked[-1])
        rest = b",".join([*marked, *self.encode(tail)])
        before = _marked(history) if history else b""
        return b"".join([self._frame, before, b"," if before and rest else b"", rest, b"]}"])

    async def ask(self, body: bytes, hear: Callable[[Piece], None]) -> Said:
        headers = {"anthropic-version": VERSION}
        if key := self.endpoint.key.reveal():
            headers["x-api-key"] = key
        answer = _Answer(self.endpoint, hear)
        await post(self.client, self.endpoint, "/v1/messages", body, headers, answer.take)
        return answer.said()


def _marked(message: bytes) -> bytes:
    """With a marker on its last block; all our messages end with one."""
    return message.removesuffix(_END) + _MARK + _END if message.endswith(_END) else message


def _wires(messages: Sequence[Message]) -> Iterator[JsonObject]:
    """Messages as objects; the results of one message's calls are one message of the user."""
    results: list[JsonObject] = []
    for message in messages:
        if message.role == "tool":
            results.append(_result(message))
            continue
        if results:
            yield {"role": "user", "content": results}
            results = []
        yield {"role": message.role, "content": list(_blocks(message))}
    if results:
        yield {"role": "user", "content": results}


def _result(message: Message) -> JsonObject:
    text = message.content or "(no output)"
    return {
        "type": "tool_result",
        "tool_use_id": plain_id(message.tool_call_id),
        "content": [{"type": "text", "text": text}],
    }


def _blocks(message: Message) -> Iterator[JsonObject]:
    # What another protocol's model thought is refused here.
    yield from (each for each in message.reasoning_details if each.get("type") in _THOUGHTS)
    if message.parts:
        yield from map(_part, parts_of(message))
    elif message.content and message.content.strip():  # a block of blanks is refused
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        yield {
            "type": "tool_use",
            "id": plain_id(call.id),
            "name": name_of(call),
            "input": object_of(call),
        }


def _part(part: JsonObject) -> JsonObject:
    """A part in Anthropic's form; images come as OpenAI's clients send them."""
    if part.get("type") not in {"image_url", "input_image"}:
        return part
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        return part
    if url.startswith("data:") and ";base64," in url:
        media, _, data = url.removeprefix("data:").partition(";base64,")
        return {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}
    return {"type": "image", "source": {"type": "url", "url": url}}
