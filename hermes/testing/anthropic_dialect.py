"""The server side of Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b, sha256

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.dialects import (
    NOTHING,
    Prompt,
    Refusal,
    SeenFile,
    StreamedAnswer,
    TokenCounts,
    decode_request,
    encode,
    new_id,
    prompt_text,
)
from hermes.testing.script import ErrorReason, ModelAnswer
from hermes.testing.seen_files import IMAGE_TYPES, read_content, refused, structured


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
MAX_REQUEST = 32_000_000
MAX_IMAGE = 5 * 2**20
"""The longest base64 of an image."""
_RESULT = frozenset({"text", "image", "document"})
_ALLOWED = {
    "user": _RESULT | {"tool_result"},
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
}
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
        if int(headers.get("content-length", "0")) > MAX_REQUEST:
            message = "Request exceeds the maximum allowed number of bytes."
            raise Refusal(413, "request_too_large", message)
        request = decode_request(_read_messages, body)
        full = prompt_text(request.tools, request.system, request.messages)
        text, cacheable = _split_at_breakpoints(full)
        key = f"{request.model} {headers.get('x-api-key', '')}"
        stream = request.stream
        messages = request.messages
        files = list(_files(messages)) if _has_files(body) else ()
        return Prompt(request.model, text, cacheable, key, stream, True, messages, files)

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


def _has_files(body: bytes) -> bool:
    """Return whether a request may have files; most have none."""
    return any(word in body for word in (b'"image', b'"document"', b'"file"'))


def _files(messages: msgspec.Raw) -> Iterator[SeenFile]:
    """Yield the files of a request. Raises `Refusal` for what the API rejects."""
    for role, block in structured(messages):
        yield from _block_files(block, _ALLOWED.get(role, frozenset()))


def _block_files(block: JsonObject, allowed: frozenset[str]) -> Iterator[SeenFile]:
    kind = block.get("type")
    if kind not in allowed:
        tags = ", ".join(sorted(allowed))
        raise refused(f"Input tag {kind!r} does not match any of the expected tags: {tags}.")
    if kind == "tool_result" and isinstance(block.get("content"), list):
        for each in block["content"]:
            yield from _block_files(each, _RESULT)
    elif kind == "image":
        yield _image(block.get("source"))
    elif kind == "document":
        yield _document(block.get("source"), block.get("title"))


def _image(source: object) -> SeenFile:
    fields = source if isinstance(source, dict) else {}
    if fields.get("type") == "url" and str(fields.get("url")).startswith("http"):
        return SeenFile("", url=fields["url"])
    if fields.get("type") != "base64" or fields.get("media_type") not in IMAGE_TYPES:
        raise refused("image.source.media_type: Input should be an image type.")
    file = read_content(fields.get("data"), fields["media_type"])
    length = -(-file.size // 3) * 4
    if length > MAX_IMAGE:
        raise refused(f"image exceeds 5 MB maximum: {length} bytes > {MAX_IMAGE} bytes")
    return file


def _document(source: object, title: object) -> SeenFile:
    fields = source if isinstance(source, dict) else {}
    name = title if isinstance(title, str) else None
    match fields.get("type"), fields.get("media_type"):
        case "base64", "application/pdf":
            return read_content(fields.get("data"), "application/pdf", name)
        case "text", "text/plain" if isinstance(fields.get("data"), str):
            content = fields["data"].encode()
            return SeenFile("text/plain", len(content), sha256(content).hexdigest(), name)
        case _:
            raise refused("document.source: Input should be a PDF or plain text.")
