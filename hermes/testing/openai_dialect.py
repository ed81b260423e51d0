"""OpenAI's chat completions, as a provider speaks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _ChatRequest(msgspec.Struct):
    model: str
    messages: msgspec.Raw
    tools: msgspec.Raw = NOTHING
    stream: bool = False
    stream_options: _StreamOptions | None = None
    prompt_cache_key: str | None = None


_read_chat = msgspec.json.Decoder(_ChatRequest).decode


class OpenAIDialect:
    """Chat completions."""

    _REFUSALS: Mapping[Why, Refusal] = {
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
        request = read_by(_read_chat, body)
        text = text_of(request.tools, request.messages)
        user = request.prompt_cache_key or headers.get("authorization", "")
        options = request.stream_options or _StreamOptions()
        return Prompt(
            request.model,
            text,
            text,
            f"{request.model} {user}",
            request.stream,
            options.include_usage,
            request.messages,
        )

    def stream(self, prompt: Prompt, answer: ModelAnswer, counted: Counted) -> Streamed:
        begin = b'data: {"id":%b,"object":"chat.completion.chunk","created":0,"model":%b' % (
            encode(new_name("chatcmpl-")),
            encode(prompt.model),
        )
        none = b',"usage":null' if prompt.counts else b""

        def chunk(delta: object, finish: str | None = None) -> bytes:
            choice = encode([{"index": 0, "delta": delta, "finish_reason": finish}])
            return b'%b,"choices":%b%b}\n\n' % (begin, choice, none)

        tail = chunk({}, answer.ending)
        if prompt.counts:
            tail += b'%b,"choices":[],"usage":%b}\n\n' % (begin, encode(self._usage(counted)))
        return Streamed(
            chunk({"role": "assistant", "content": ""}),
            [chunk(delta) for delta in self._deltas(answer)],
            tail + b"data: [DONE]\n\n",
        )

    def _deltas(self, answer: ModelAnswer) -> Iterator[JsonObject]:
        for piece in answer.pieces(answer.reasoning):
            yield {"reasoning_content": piece}
        for piece in answer.pieces(answer.text):
            yield {"content": piece}
        for index, call in enumerate(answer.calls):
            function: JsonObject = {"name": call.name, "arguments": ""}
            begun = {"index": index, "id": call.id, "type": "function", "function": function}
            yield {"tool_calls": [begun]}
            for piece in answer.pieces(call.arguments):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def whole(self, prompt: Prompt, answer: ModelAnswer, counted: Counted) -> bytes:
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
            "id": new_name("chatcmpl-"),
            "object": "chat.completion",
            "created": 0,
            "model": prompt.model,
            "choices": [{"index": 0, "message": message, "finish_reason": answer.ending}],
            "usage": self._usage(counted),
        }
        return encode(response)

    def _usage(self, counted: Counted) -> JsonObject:
        return {
            "prompt_tokens": counted.prompt,
            "completion_tokens": counted.output,
            "total_tokens": counted.prompt + counted.output,
            "prompt_tokens_details": {"cached_tokens": counted.read},
            "completion_tokens_details": {"reasoning_tokens": counted.reasoning},
        }

    def refusal(self, why: Why, headers: Mapping[str, str]) -> Refusal:
        if why == "too_long":
            return self.too_long(200_001, 200_000)
        found = self._REFUSALS[why]
        key = headers.get("authorization", "").removeprefix("Bearer ")
        return attrs.evolve(found, message=found.message.replace("{key}", key))

    def too_long(self, tokens: int, window: int) -> Refusal:
        said = (
            f"This model's maximum context length is {window} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages."
        )
        return Refusal(400, "invalid_request_error", said, "context_length_exceeded")

    def error(self, refusal: Refusal) -> bytes:
        error = {"message": refusal.message, "type": refusal.kind, "param": None}
        return encode({"error": {**error, "code": refusal.code}})

    def error_event(self, refusal: Refusal) -> bytes:
        return b"data: " + self.error(refusal) + b"\n\n"
