"""The server side of Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.dialects import (
    NOTHING,
    Prompt,
    Refusal,
    StreamedAnswer,
    TokenCounts,
    decode_request,
    encode,
    new_id,
    prompt_text,
)
from hermes.testing.script import ErrorReason, ModelAnswer


class _MessagesRequest(msgspec.Struct):
    model: str
    messages: msgspec.Raw
    max_tokens: int
    tools: msgspec.Raw = NOTHING
    system: msgspec.Raw = NOTHING
    stream: bool = False


_read_messages = msgspec.json.Decoder(_MessagesRequest).decode
# Inside a text the quotes would be escaped, so a match is a breakpoint (or an argument of that
# name).
_BREAKPOINT = re.compile(rb'"cache_control"\s*:\s*\{[^{}]*\}')
MAX_BREAKPOINTS = 4
_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicDialect:
    """Messages; a prompt is cacheable up to its last cache breakpoint."""

    _REFUSALS: Mapping[ErrorReason, Refusal] = {
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
        request = decode_request(_read_messages, body)
        full = prompt_text(request.tools, request.system, request.messages)
        text, cacheable = _split_at_breakpoints(full)
        key = f"{request.model} {headers.get('x-api-key', '')}"
        stream = request.stream
        return Prompt(request.model, text, cacheable, key, stream, True, request.messages)

    def stream(self, prompt: Prompt, answer: ModelAnswer, counts: TokenCounts) -> StreamedAnswer:
        message = self._message(prompt, [], None, attrs.evolve(counts, output=1))
        end = {"stop_reason": _FINISH[answer.finish_reason], "stop_sequence": None}
        usage = {"output_tokens": counts.output}
        return StreamedAnswer(
            _event("message_start", message=message) + _event("ping"),
            list(self._events(answer)),
            _event("message_delta", delta=end, usage=usage) + _event("message_stop"),
        )

    def _events(self, answer: ModelAnswer) -> Iterator[bytes]:
        """Yield the deltas of all blocks, with the start and the end of each block."""
        for index, block in enumerate(self._blocks(answer)):
            start, deltas = _start_and_deltas(block, answer)
            events = [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
            events[0] = _event("content_block_start", index=index, content_block=start) + events[0]
            events[-1] += _event("content_block_stop", index=index)
            yield from events

    def _blocks(self, answer: ModelAnswer) -> Iterator[JsonObject]:
        if answer.reasoning:
            signature = blake2b(answer.reasoning.encode(), digest_size=12).hexdigest()
            yield {"type": "thinking", "thinking": answer.reasoning, "signature": signature}
        if answer.text:
            yield {"type": "text", "text": answer.text}
        for call in answer.calls:
            arguments = msgspec.Raw(call.arguments.encode())
            yield {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}

    def whole(self, prompt: Prompt, answer: ModelAnswer, counts: TokenCounts) -> bytes:
        blocks = list(self._blocks(answer))
        return encode(self._message(prompt, blocks, _FINISH[answer.finish_reason], counts))

    def _message(
        self, prompt: Prompt, content: list[JsonObject], finish: str | None, counts: TokenCounts
    ) -> JsonObject:
        return {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": prompt.model,
            "content": content,
            "stop_reason": finish,
            "stop_sequence": None,
            "usage": {
                "input_tokens": counts.prompt - counts.cache_read - counts.cache_written,
                "cache_creation_input_tokens": counts.cache_written,
                "cache_read_input_tokens": counts.cache_read,
                "output_tokens": counts.output,
            },
        }

    def refusal(self, reason: ErrorReason, headers: Mapping[str, str]) -> Refusal:
        if reason == "too_long":
            return self.too_long(200_001, 200_000)
        refusal = self._REFUSALS[reason]
        key = headers.get("x-api-key", "")
        return attrs.evolve(refusal, message=refusal.message.replace("{key}", key))

    def too_long(self, tokens: int, window: int) -> Refusal:
        message = f"prompt is too long: {tokens} tokens > {window} maximum"
        return Refusal(400, "invalid_request_error", message)

    def error(self, refusal: Refusal) -> bytes:
        error = {"type": refusal.kind, "message": refusal.message}
        return encode({"type": "error", "error": error})

    def error_event(self, refusal: Refusal) -> bytes:
        return b"event: error\ndata: " + self.error(refusal) + b"\n\n"


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


def _start_and_deltas(
    block: JsonObject, answer: ModelAnswer
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the start of a block and its deltas, of which there is at least one."""
    match block["type"]:
        case "thinking":
            deltas: list[JsonObject] = [
                {"type": "thinking_delta", "thinking": chunk}
                for chunk in answer.chunks(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case "text":
            texts = answer.chunks(block["text"])
            return {**block, "text": ""}, [{"type": "text_delta", "text": text} for text in texts]
        case _:
            parts = ["", *answer.chunks(bytes(block["input"]).decode())]
            arguments = [{"type": "input_json_delta", "partial_json": part} for part in parts]
            return {**block, "input": {}}, arguments


def _split_at_breakpoints(full: bytes) -> tuple[bytes, bytes]:
    """Return the prompt without breakpoints, and the part of it before the last breakpoint."""
    parts: list[bytes] = []
    end = 0
    for match in _BREAKPOINT.finditer(full):
        parts.append(full[end : match.start()].rstrip().removesuffix(b","))
        end = match.end()
    if len(parts) > MAX_BREAKPOINTS:
        message = f"A maximum of {MAX_BREAKPOINTS} blocks with cache_control may be provided."
        raise Refusal(400, "invalid_request_error", f"{message} Found {len(parts)}.")
    cacheable = b"".join(parts)
    return cacheable + full[end:], cacheable
