"""OpenAI's chat completions API, which most other endpoints implement too."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import httpx2
import msgspec

from hermes.agents.providers.attachments import openai_acceptance
from hermes.agents.providers.base import (
    Completion,
    Delta,
    Endpoint,
    FileBody,
    RequestRejected,
    Unavailable,
    token_count,
)
from hermes.agents.providers.formats import OpenAIFormat, RequestParts
from hermes.agents.providers.options import limited, merged, openai_fields
from hermes.agents.providers.sse_transport import post, response_error
from hermes.agents.providers.stream_events import (
    JSON_ERRORS,
    DetailJoiner,
    EventDecoder,
    HalfJoiner,
)
from hermes.agents.providers.tool_calls import Nesting
from hermes.events import ReasoningDelta, TextDelta
from hermes.messages import NO_OPTIONS, JsonObject, Message, ToolCall, TurnOptions, Usage
from hermes.sanitize import encodable

log: logging.Logger = logging.getLogger(__name__)

_TRUNCATED = frozenset({"length", "max_tokens"})
_STATUS = {"insufficient_quota": 402, "invalid_api_key": 401}
_encode = msgspec.json.Encoder().encode


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | JsonObject | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[JsonObject] | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    index: int | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cost: float | JsonObject | None = None
    """Some providers send an object here; its fields are not standardised."""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None
    # Not all servers report an error as `error`.
    object: Any = None
    type: Any = None
    message: Any = None
    detail: Any = None
    code: Any = None


_decode = msgspec.json.Decoder(_Chunk, strict=False).decode


@attrs.define(eq=False)
class _PartialCall:
    """A tool call that is being streamed."""

    id: str = ""
    name: str = ""
    chunks: list[str] = attrs.Factory(list)
    nesting: Nesting = attrs.Factory(Nesting)
    halves: HalfJoiner = attrs.Factory(HalfJoiner)

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.chunks)

    def add_arguments(self, text: str) -> None:
        """Add a piece of the arguments."""
        text = self.halves.feed(text)
        self.chunks.append(text)
        self.nesting.feed(text)

    def is_followed_by(self, call: _Call) -> bool:
        """Whether a chunk with the same index starts another call."""
        function = call.function
        if function is None or not function.name or not self.name:
            return False
        if call.id and self.id:
            return call.id != self.id
        return bool(function.arguments) and self._is_complete()

    def _is_complete(self) -> bool:
        if not self.nesting.closed:  # decoding the text after each piece would take too long
            return False
        try:
            msgspec.json.decode(self.arguments)
        except JSON_ERRORS:
            return False
        return True


@attrs.define
class _StreamedAnswer:
    """Assembles an answer from its events."""

    endpoint: Endpoint
    on_delta: Callable[[Delta], None]
    text: list[str] = attrs.Factory(list)
    reasoning: list[str] = attrs.Factory(list)
    details: DetailJoiner = attrs.Factory(DetailJoiner)
    calls: list[_PartialCall] = attrs.Factory(list)
    by_index: dict[int, _PartialCall] = attrs.Factory(dict)
    by_id: dict[str, _PartialCall] = attrs.Factory(dict)
    finish_reason: str | None = None
    usage: _Usage | None = None
    done: bool = False
    others: bool = False
    """Whether there are choices with other numbers than 0."""
    events: EventDecoder[_Chunk] = attrs.field(init=False)
    text_halves: HalfJoiner = attrs.Factory(HalfJoiner)
    reasoning_halves: HalfJoiner = attrs.Factory(HalfJoiner)

    @events.default
    def _new_decoder(self) -> EventDecoder[_Chunk]:
        return EventDecoder(self.endpoint.title, _Chunk, _decode)

    def feed(self, data: bytes) -> None:
        """Add the data of the next event."""
        if data == b"[DONE]":
            self.done = True
            return
        chunk = self.events.decode(data)
        if chunk is None:
            return
        if chunk.choices is None or chunk.error is not None:
            _check(self.endpoint, chunk, data)
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices or ():
            if choice.index:  # another answer to the same request
                self.others = True
                continue
            self.finish_reason = choice.finish_reason or self.finish_reason
            self._add(choice.delta or choice.message or _Delta())

    def _add(self, delta: _Delta) -> None:
        reasoning = delta.reasoning_content or delta.reasoning or ""
        self._add_reasoning(self.reasoning_halves.feed(reasoning))
        self._add_text(self.text_halves.feed(delta.content or delta.refusal or ""))
        self.details.feed(delta.reasoning_details or ())
        for call in delta.tool_calls or ():
            self._add_call(call)

    def _add_reasoning(self, text: str) -> None:
        if text:
            self.reasoning.append(text)
            self.on_delta(ReasoningDelta(text))

    def _add_text(self, text: str) -> None:
        if text:
            self.text.append(text)
            self.on_delta(TextDelta(text))

    def _is_damaged(self) -> bool:
        """Return whether text is missing, after the ends of all texts have been read."""
        self._add_reasoning(self.reasoning_halves.finish())
        self._add_text(self.text_halves.finish())
        for call in self.calls:
            call.chunks.append(call.halves.finish())
        halves = [self.text_halves, self.reasoning_halves, *(call.halves for call in self.calls)]
        return bool(self.events.lost) or any(each.broken for each in halves)

    def _add_call(self, call: _Call) -> None:
        partial = self._partial_call(call)
        function = call.function or _Function()
        partial.id = partial.id or call.id or ""
        self.by_id.setdefault(partial.id, partial)
        # Some servers repeat the name in every chunk, so names are not concatenated.
        partial.name = partial.name or function.name or ""
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = _encode(encodable(arguments)).decode()
        if arguments:
            partial.add_arguments(arguments)

    def _partial_call(self, call: _Call) -> _PartialCall:
        """Return the call that a chunk belongs to.

        Servers differ: most number the calls, some send each call in one chunk, some repeat the
        id in every chunk, and some give all calls the same number.
        """
        if call.index is not None:
            known = self.by_index.get(call.index)
        elif call.id:
            known = self.by_id.get(call.id)
        else:
            known = self.calls[-1] if self.calls else None
        if known is None or known.is_followed_by(call):
            known = _PartialCall()
            self.calls.append(known)
            if call.index is not None:
                self.by_index[call.index] = known
        return known

    def completion(self) -> Completion:
        """Return the whole answer.

        Raises `Unavailable` if the stream ended early, since tool calls may be missing, and if a
        part is missing from an answer with tool calls.
        """
        if self.finish_reason is None and (self.others or not self.done):
            raise Unavailable(f"{self.endpoint.title} ended the stream before the answer was over")
        damaged = self._is_damaged()
        if damaged and self.calls:
            raise Unavailable(f"{self.endpoint.title} sent a malformed answer with tool calls")
        calls = tuple(
            ToolCall(call.id or f"call_{index}", call.name, call.arguments or "{}")
            for index, call in enumerate(self.calls)
        )
        message = Message(
            "assistant",
            "".join(self.text) or None,
            tool_calls=calls,
            reasoning="".join(self.reasoning) or None,
            reasoning_details=self.details.finish(),
            finish_reason=self.finish_reason,
        )
        # A call counts even if the provider reports no tokens.
        usage = _usage(self.usage or _Usage(), self.endpoint)
        truncated = self.finish_reason in _TRUNCATED
        return Completion(encodable(message), usage, truncated, damaged)


@attrs.frozen
class OpenAIChat:
    """A `Provider` for chat completions, with a fixed system prompt and fixed tools."""

    client: httpx2.AsyncClient
    endpoint: Endpoint
    system: str | None = None
    tools: tuple[JsonObject, ...] = ()
    options: TurnOptions = NO_OPTIONS
    """What the client of a turn wants."""
    request_format: OpenAIFormat = attrs.field(init=False)

    @request_format.default
    def _make_format(self) -> OpenAIFormat:
        request: JsonObject = {"model": self.endpoint.model, "stream": True}
        request["stream_options"] = {"include_usage": True}
        if self.endpoint.max_tokens is not None:
            request["max_tokens"] = self.endpoint.max_tokens
        request.update(self.endpoint.parameters)
        if self.options != NO_OPTIONS:
            request = merged(request, openai_fields(self.options, self.endpoint, self.tools))
        tools = [{"type": "function", "function": tool} for tool in self.tools]
        if tools:
            request.pop("tools", None)
        parts = RequestParts(_encode(request), _encode(tools) if tools else b"", self.system)
        return OpenAIFormat(parts, openai_acceptance(self.endpoint), self.endpoint)

    def configured(self, options: TurnOptions) -> OpenAIChat:
        """Return a provider for one turn (see `ConfigurableProvider`)."""
        tools, endpoint = (*self.tools, *options.tools), limited(self.endpoint, options)
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
        key = self.endpoint.key.reveal()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = _StreamedAnswer(self.endpoint, on_delta)
        body = self.request_format.acceptance.limited(body)
        await post(self.client, self.endpoint, "/chat/completions", body, headers, answer.feed)
        return answer.completion()


def _check(endpoint: Endpoint, chunk: _Chunk, data: bytes) -> None:
    """Raise the error that an event reports, if it does, after a status of 200."""
    error = chunk.error
    if error is None:
        named = "error" in (chunk.object, chunk.type)
        if not (named or isinstance(chunk.message, str) or chunk.detail is not None):
            return
    code = error.get("code") if isinstance(error, dict) else chunk.code
    try:
        status = int(str(code))
    except ValueError:
        status = _STATUS.get(str(code), 500)
    problem = response_error(endpoint, status, data.decode(errors="replace"), {})
    if isinstance(problem, RequestRejected) and not code:
        raise Unavailable(str(problem))
    raise problem


def _usage(counts: _Usage, endpoint: Endpoint) -> Usage:
    prompt = counts.prompt_tokens_details or _PromptDetails()
    output = counts.completion_tokens_details or _OutputDetails()
    cached = token_count(prompt.cached_tokens or counts.prompt_cache_hit_tokens, endpoint)
    written = token_count(prompt.cache_write_tokens, endpoint)
    return Usage(
        model=endpoint.model,
        provider=endpoint.name,
        input_tokens=max(0, token_count(counts.prompt_tokens, endpoint) - cached - written),
        output_tokens=token_count(counts.completion_tokens, endpoint),
        cache_read_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=token_count(output.reasoning_tokens, endpoint),
        cost=_cost(counts.cost, endpoint),
    )


def _cost(reported: float | JsonObject | None, endpoint: Endpoint) -> float | None:
    """Return a cost that a provider reports. A negative one would lower what was spent."""
    if reported is None or isinstance(reported, dict):
        return None
    if not 0.0 <= reported < math.inf:
        log.warning("%s reported a cost of %s, which is ignored", endpoint.title, reported)
        return None
    return reported
