"""Anthropic's Messages protocol, as a provider speaks it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.dialects import (
    NOTHING,
    Counted,
    Prompt,
    Refusal,
    Streamed,
    encode,
    new_name,
    read_by,
    text_of,
)
from hermes.testing.script import ModelAnswer, Why


class _MessagesRequest(msgspec.Struct):
    model: str
    messages: msgspec.Raw
    max_tokens: int
    tools: msgspec.Raw = NOTHING
    system: msgspec.Raw = NOTHING
    stream: bool = False


_read_messages = msgspec.json.Decoder(_MessagesRequest).decode
# In a text its quotes would be escaped, so this is a marker, or an argument of the same name.
_MARKER = re.compile(rb'"cache_control"\s*:\s*\{[^{}]*\}')
MAX_MARKERS = 4
_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicDialect:
    """Messages; only what stands before a marker is cached."""

    _REFUSALS: Mapping[Why, Refusal] = {
        "rate_limit": Refusal(
            429,
            "rate_limit_error",
            "This request would exceed your organization's rate limit of 50,000 input tokens per "
            "minute.",
        ),
        "server_error": Refusal(500, "api_error", "Internal server error"),
        "overloaded": Refusal(529, "overloaded_error", "Overloaded"),
        "bad_key": Refusal(401, "authentication_error", "invalid x-api-key: {key}"),
        "no_quota": Refusal(
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & "
            "Billing to upgrade or purchase credits.",
        ),
        "payment": Refusal(402, "billing_error", "There is an issue with your payment."),
    }

    def read(self, body: bytes, headers: Mapping[str, str]) -> Prompt:
        request = read_by(_read_messages, body)
        marked = text_of(request.tools, request.system, request.messages)
        text, cacheable = _without_markers(marked)
        key = f"{request.model} {headers.get('x-api-key', '')}"
        stream = request.stream
        return Prompt(request.model, text, cacheable, key, stream, True, request.messages)

    def stream(self, prompt: Prompt, answer: ModelAnswer, counted: Counted) -> Streamed:
        message = self._message(prompt, [], None, attrs.evolve(counted, output=1))
        end = {"stop_reason": _FINISH[answer.ending], "stop_sequence": None}
        usage = {"output_tokens": counted.output}
        return Streamed(
            _event("message_start", message=message) + _event("ping"),
            list(self._pieces(answer)),
            _event("message_delta", delta=end, usage=usage) + _event("message_stop"),
        )

    def _pieces(self, answer: ModelAnswer) -> Iterator[bytes]:
        """The deltas of all blocks; a block begins and ends with its first and last one."""
        for index, block in enumerate(self._blocks(answer)):
            begun, deltas = _begun(block, answer)
            frames = [_event("content_block_delta", index=index, delta=each) for each in deltas]
            frames[0] = _event("content_block_start", index=index, content_block=begun) + frames[0]
            frames[-1] += _event("content_block_stop", index=index)
            yield from frames

    def _blocks(self, answer: ModelAnswer) -> Iterator[JsonObject]:
        if answer.reasoning:
            signature = blake2b(answer.reasoning.encode(), digest_size=12).hexdigest()
            yield {"type": "thinking", "thinking": answer.reasoning, "signature": signature}
        if answer.text:
            yield {"type": "text", "text": answer.text}
        for call in answer.calls:
            arguments = msgspec.Raw(call.arguments.encode())
            yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}

    def whole(self, prompt: Prompt, answer: ModelAnswer, counted: Counted) -> bytes:
        blocks = list(self._blocks(answer))
        return encode(self._message(prompt, blocks, _FINISH[answer.ending], counted))

    def _message(
        self, prompt: Prompt, content: list[JsonObject], finish: str | None, counted: Counted
    ) -> JsonObject:
        return {
            "id": new_name("msg_"),
            "type": "message",
            "role": "assistant",
            "model": prompt.model,
            "content": content,
            "stop_reason": finish,
            "stop_sequence": None,
            "usage": {
                "input_tokens": counted.prompt - counted.read - counted.written,
                "cache_creation_input_tokens": counted.written,
                "cache_read_input_tokens": counted.read,
                "output_tokens": counted.output,
            },
        }

    def refusal(self, why: Why, headers: Mapping[str, str]) -> Refusal:
        if why == "too_long":
            return self.too_long(200_001, 200_000)
        found = self._REFUSALS[why]
        key = headers.get("x-api-key", "")
        return attrs.evolve(found, message=found.message.replace("{key}", key))

    def too_long(self, tokens: int, window: int) -> Refusal:
        said = f"prompt is too long: {tokens} tokens > {window} maximum"
        return Refusal(400, "invalid_request_error", said)

    def error(self, refusal: Refusal) -> bytes:
        error = {"type": refusal.kind, "message": refusal.message}
        return encode({"type": "error", "error": error})

    def error_event(self, refusal: Refusal) -> bytes:
        return b"event: error\ndata: " + self.error(refusal) + b"\n\n"


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


def _begun(block: JsonObject, answer: ModelAnswer) -> tuple[JsonObject, list[JsonObject]]:
    """A block as it begins, and what is added to it; at least one piece, be it empty."""
    match block["type"]:
        case "thinking":
            deltas: list[JsonObject] = [
                {"type": "thinking_delta", "thinking": piece}
                for piece in answer.pieces(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "text":
            texts = answer.pieces(block["text"])
            return {**block, "text": ""}, [{"type": "text_delta", "text": text} for text in texts]
        case _:
            parts = ["", *answer.pieces(bytes(block["input"]).decode())]
            adding = [{"type": "input_json_delta", "partial_json": part} for part in parts]
            return {**block, "input": {}}, adding


def _without_markers(marked: bytes) -> tuple[bytes, bytes]:
    """The text, and the part of it up to its last marker, which stands last in its block."""
    kept: list[bytes] = []
    end = 0
    markers = 0
    for found in _MARKER.finditer(marked):
        kept.append(marked[end : found.start()].rstrip().removesuffix(b","))
        end = found.end()
        markers += 1
    if markers > MAX_MARKERS:
        said = f"A maximum of {MAX_MARKERS} blocks with cache_control may be provided."
        raise Refusal(400, "invalid_request_error", f"{said} Found {markers}.")
    cacheable = b"".join(kept)
    return cacheable + marked[end:], cacheable
