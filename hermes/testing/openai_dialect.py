"""The server side of OpenAI's chat completions API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
from hermes.testing.seen_files import (
    IMAGE_TYPES,
    read_content,
    read_data_url,
    refused,
    structured,
)


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _ChatRequest(msgspec.Struct):
    model: str
    messages: msgspec.Raw
    tools: msgspec.Raw = NOTHING
    stream: bool = False
    stream_options: _StreamOptions | None = None
    prompt_cache_key: str | None = None


_TEXTS = {"user": (), "assistant": ("text", "refusal")}
_AUDIO_FORMATS = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_read_chat = msgspec.json.Decoder(_ChatRequest).decode


class OpenAIDialect:
    """Chat completions; all of a prompt is cacheable."""

    _REFUSALS: Mapping[ErrorReason, Refusal] = {
        "rate_limit": Refusal(
            429,
            "requests",
            "Rate limit reached for requests per min (RPM): Limit 3, Used 3, Requested 1. Please "
            "try again in 20s. You can increase your rate limit by adding a payment method to your "
            "account at https://platform.openai.com/account/billing.",
            "rate_limit_exceeded",
        ),
        "server_error": Refusal(500, "server_error", "The server had an error. Sorry about that!"),
        "overloaded": Refusal(503, "server_error", "The engine is currently overloaded."),
        "bad_key": Refusal(
            401, "invalid_request_error", "Incorrect API key provided: {key}.", "invalid_api_key"
        ),
        "no_quota": Refusal(
            429,
            "insufficient_quota",
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
        ),
        "payment": Refusal(402, "payment_required", "Insufficient credits."),
    }

    def read(self, body: bytes, headers: Mapping[str, str]) -> Prompt:
        request = decode_request(_read_chat, body)
        text = prompt_text(request.tools, request.messages)
        cache_key = request.prompt_cache_key or headers.get("authorization", "")
        options = request.stream_options or _StreamOptions()
        return Prompt(
            request.model,
            text,
            text,
            f"{request.model} {cache_key}",
            request.stream,
            options.include_usage,
            request.messages,
            list(_files(request.messages)) if _has_files(body) else (),
        )

    def stream(self, prompt: Prompt, answer: ModelAnswer, counts: TokenCounts) -> StreamedAnswer:
        start = b'data: {"id":%b,"object":"chat.completion.chunk","created":0,"model":%b' % (
            encode(new_id("chatcmpl-")),
            encode(prompt.model),
        )
        no_usage = b',"usage":null' if prompt.include_usage else b""

        def event(delta: object, finish: str | None = None) -> bytes:
            choice = encode([{"index": 0, "delta": delta, "finish_reason": finish}])
            return b'%b,"choices":%b%b}\n\n' % (start, choice, no_usage)

        tail = event({}, answer.finish_reason)
        if prompt.include_usage:
            tail += b'%b,"choices":[],"usage":%b}\n\n' % (start, encode(self._usage(counts)))
        return StreamedAnswer(
            event({"role": "assistant", "content": ""}),
            [event(delta) for delta in self._deltas(answer)],
            tail + b"data: [DONE]\n\n",
        )

    def _deltas(self, answer: ModelAnswer) -> Iterator[JsonObject]:
        for chunk in answer.chunks(answer.reasoning):
            yield {"reasoning_content": chunk}
        for chunk in answer.chunks(answer.text):
            yield {"content": chunk}
        for index, call in enumerate(answer.calls):
            function: JsonObject = {"name": call.name, "arguments": ""}
            start = {"index": index, "id": call.id, "type": "function", "function": function}
            yield {"tool_calls": [start]}
            for chunk in answer.chunks(call.arguments):
                yield {"tool_calls": [{"index": index, "function": {"arguments": chunk}}]}

    def whole(self, prompt: Prompt, answer: ModelAnswer, counts: TokenCounts) -> bytes:
        message: JsonObject = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        response = {
            "id": new_id("chatcmpl-"),
            "object": "chat.completion",
            "created": 0,
            "model": prompt.model,
            "choices": [{"index": 0, "message": message, "finish_reason": answer.finish_reason}],
            "usage": self._usage(counts),
        }
        return encode(response)

    def _usage(self, counts: TokenCounts) -> JsonObject:
        return {
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.output,
            "total_tokens": counts.prompt + counts.output,
            "prompt_tokens_details": {"cached_tokens": counts.cache_read},
            "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
        }

    def refusal(self, reason: ErrorReason, headers: Mapping[str, str]) -> Refusal:
        if reason == "too_long":
            return self.too_long(200_001, 200_000)
        refusal = self._REFUSALS[reason]
        key = headers.get("authorization", "").removeprefix("Bearer ")
        return attrs.evolve(refusal, message=refusal.message.replace("{key}", key))

    def too_long(self, tokens: int, window: int) -> Refusal:
        message = (
            f"This model's maximum context length is {window} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages."
        )
        return Refusal(400, "invalid_request_error", message, "context_length_exceeded")

    def error(self, refusal: Refusal) -> bytes:
        error = {"message": refusal.message, "type": refusal.kind, "param": None}
        return encode({"error": {**error, "code": refusal.code}})

    def error_event(self, refusal: Refusal) -> bytes:
        return b"data: " + self.error(refusal) + b"\n\n"


def _has_files(body: bytes) -> bool:
    """Return whether a request may have files; most have none."""
    return any(word in body for word in (b'"image', b'"input_audio"', b'"file"'))


def _files(messages: msgspec.Raw) -> Iterator[SeenFile]:
    """Yield the files of a request. Raises `Refusal` for what the API rejects."""
    for role, part in structured(messages):
        kind = part.get("type")
        if role != "user" and kind not in _TEXTS.get(role, ("text",)):
            raise refused(f"Invalid value: {kind!r}. Supported values are: 'text'.")
        match kind:
            case "image_url":
                yield _image(part.get("image_url"))
            case "file":
                yield _document(part.get("file"))
            case "input_audio":
                yield _audio(part.get("input_audio"))
            case "text" | "refusal":
                pass
            case _:
                raise refused(f"Invalid value: {kind!r}. Supported values are: 'text', 'file'.")


def _image(image: object) -> SeenFile:
    url = image.get("url") if isinstance(image, dict) else None
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return SeenFile("", url=url)
    file = read_data_url(url)
    if file.media_type not in IMAGE_TYPES:
        raise refused(f"You uploaded an unsupported image: {file.media_type}.")
    return file


def _document(document: object) -> SeenFile:
    fields = document if isinstance(document, dict) else {}
    name = fields.get("filename")
    if not isinstance(name, str) or not name:
        raise refused("Missing required parameter: 'file.filename'.")
    file = read_data_url(fields.get("file_data"), name)
    if file.media_type != "application/pdf":
        raise refused(f"Invalid file data: expected application/pdf, got {file.media_type}.")
    return file


def _audio(audio: object) -> SeenFile:
    fields = audio if isinstance(audio, dict) else {}
    if fields.get("format") not in _AUDIO_FORMATS:
        raise refused("Invalid value of 'input_audio.format'. Expected 'wav' or 'mp3'.")
    return read_content(fields.get("data"), _AUDIO_FORMATS[fields["format"]])
