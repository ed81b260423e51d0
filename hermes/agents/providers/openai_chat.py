"""The protocol of OpenAI's chat completions, which most endpoints speak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import httpx2
import msgspec

from hermes.agents.providers.base import (
    Endpoint,
    Piece,
    Reasoning,
    RequestRefused,
    Said,
    Text,
    Unavailable,
)
from hermes.agents.providers.sse_transport import MALFORMED, error_of, post
from hermes.agents.providers.tool_calls import arguments_of, name_of
from hermes.messages import JsonObject, Message, ToolCall, Usage
from hermes.transcript.render import parts_of

MAX_MALFORMED = 20
"""So many events without sense, and the provider counts as broken."""
_CUT = frozenset({"length", "max_tokens"})
_STATUS = {"insufficient_quota": 402, "invalid_api_key": 401}
_FOREIGN = frozenset({"thinking", "redacted_thinking"})
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
    """An object where the provider tells its parts, which not all name alike."""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk, strict=False).decode


@attrs.define(eq=False)
class _Begun:
    """A tool call while it comes."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_followed_by(self, call: _Call) -> bool:
        """Whether a piece that has our number begins another call."""
        function = call.function
        if function is None or not function.name or not self.name:
            return False
        if call.id and self.id:
            return call.id != self.id
        return bool(function.arguments) and self._is_whole()

    def _is_whole(self) -> bool:
        try:
            msgspec.json.decode(self.arguments)
        except MALFORMED:
            return False
        return True


@attrs.define
class _Answer:
    """A message while it comes."""

    endpoint: Endpoint
    hear: Callable[[Piece], None]
    text: list[str] = attrs.Factory(list)
    reasoning: list[str] = attrs.Factory(list)
    details: list[JsonObject] = attrs.Factory(list)
    calls: list[_Begun] = attrs.Factory(list)
    numbered: dict[int, _Begun] = attrs.Factory(dict)
    finish: str | None = None
    counted: _Usage | None = None
    malformed: int = 0
    done: bool = False

    def take(self, data: bytes) -> None:
        """The next event."""
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(data)
        except MALFORMED:
            self.malformed += 1
            if self.malformed > MAX_MALFORMED:
                raise Unavailable(f"{self.endpoint.name} sends garbage") from None
            return
        if chunk.error is not None:
            raise _failure(self.endpoint, data)
        self.counted = chunk.usage or self.counted
        for choice in (chunk.choices or ())[:1]:
            self.finish = choice.finish_reason or self.finish
            self._add(choice.delta or choice.message or _Delta())

    def _add(self, delta: _Delta) -> None:
        thought = delta.reasoning_content or delta.reasoning
        if thought:
            self.reasoning.append(thought)
            self.hear(Reasoning(thought))
        if said := delta.content or delta.refusal:
            self.text.append(said)
            self.hear(Text(said))
        self.details += delta.reasoning_details or ()
        for call in delta.tool_calls or ():
            self._call(call)

    def _call(self, call: _Call) -> None:
        begun = self._begun(call)
        function = call.function or _Function()
        begun.id = begun.id or call.id or ""
        # A name comes once; who repeats it in every piece must not have it twice.
        begun.name = begun.name or function.name or ""
        said = function.arguments
        begun.arguments += _encode(said).decode() if isinstance(said, dict) else said or ""

    def _begun(self, call: _Call) -> _Begun:
        """The call that a piece belongs to.

        Some number the pieces, some send each call whole, some repeat its id in each piece, and
        some give all calls one number.
        """
        if call.index is not None:
            known = self.numbered.get(call.index)
        elif call.id:
            known = next((each for each in self.calls if each.id == call.id), None)
        else:
            known = self.calls[-1] if self.calls else None
        if known is None or known.is_followed_by(call):
            known = _Begun()
            self.calls.append(known)
            if call.index is not None:
                self.numbered[call.index] = known
        return known

    def said(self) -> Said:
        """The whole of it; an answer without its end is none, since calls may be missing."""
        if self.finish is None and not self.done:
            raise Unavailable(f"{self.endpoint.name} broke off in the middle of its answer")
        calls = tuple(
            ToolCall(each.id or f"call_{place}", each.name, each.arguments or "{}")
            for place, each in enumerate(self.calls)
        )
        message = Message(
            "assistant",
            "".join(self.text) or None,
            tool_calls=calls,
            reasoning="".join(self.reasoning) or None,
            reasoning_details=tuple(self.details),
            finish_reason=self.finish,
        )
        # Who counts nothing was called all the same.
        usage = _usage(self.counted or _Usage(), self.endpoint)
        return Said(message, usage, cut=self.finish in _CUT)


@attrs.frozen
class OpenAIChat:
    """Speaks to one endpoint for one agent: its system prompt and tools are part of the bytes."""

    client: httpx2.AsyncClient
    endpoint: Endpoint
    system: str | None = None
    tools: tuple[JsonObject, ...] = ()
    _frame: tuple[bytes, bytes] = attrs.field(init=False)

    @_frame.default
    def _make_frame(self) -> tuple[bytes, bytes]:
        request: dict[str, object] = {"model": self.endpoint.model, "stream": True}
        request["stream_options"] = {"include_usage": True}
        if self.endpoint.max_tokens is not None:
            request["max_tokens"] = self.endpoint.max_tokens
        request.update(self.endpoint.parameters)
        if self.tools:
            request["tools"] = [{"type": "function", "function": tool} for tool in self.tools]
        head = _encode(request)[:-1] + b',"messages":['
        system = {"role": "system", "content": self.system}
        return head, _encode(system) if self.system else b""

    def encode(self, messages: Sequence[Message]) -> list[bytes]:
        return [_encode(_wire(message)) for message in messages]

    def body(self, history: bytes, fresh: Sequence[bytes], tail: Sequence[Message]) -> bytes:
        head, system = self._frame
        messages = [system, history, *fresh, *self.encode(tail)]
        return b"".join([head, b",".join(filter(None, messages)), b"]}"])

    async def ask(self, body: bytes, hear: Callable[[Piece], None]) -> Said:
        key = self.endpoint.key.reveal()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = _Answer(self.endpoint, hear)
        await post(self.client, self.endpoint, "/chat/completions", body, headers, answer.take)
        return answer.said()


def _failure(endpoint: Endpoint, data: bytes) -> Exception:
    """An error that comes as an event, after the answer has begun with success."""
    found = msgspec.json.decode(data)
    error = found.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    try:
        status = int(str(code))
    except ValueError:
        status = _STATUS.get(str(code), 500)
    problem = error_of(endpoint, status, data.decode(errors="replace"), {})
    if isinstance(problem, RequestRefused) and not code:
        return Unavailable(str(problem))
    return problem


def _usage(counted: _Usage, endpoint: Endpoint) -> Usage:
    prompt = counted.prompt_tokens_details or _PromptDetails()
    output = counted.completion_tokens_details or _OutputDetails()
    cached = prompt.cached_tokens or counted.prompt_cache_hit_tokens or 0
    written = prompt.cache_write_tokens or 0
    whole = counted.prompt_tokens or 0
    return Usage(
        model=endpoint.model,
        provider=endpoint.name,
        input_tokens=max(0, whole - cached - written),
        output_tokens=counted.completion_tokens or 0,
        cache_read_tokens=cached,
        cache_write_tokens=written,
        reasoning_tokens=output.reasoning_tokens or 0,
        cost=None if isinstance(counted.cost, dict) else counted.cost,
    )


def _wire(message: Message) -> JsonObject:
    if message.role == "tool":
        return {
            "role": "tool",
            "tool_call_id": message.tool_call_id or "",
            "content": message.content or "",
        }
    wire: JsonObject = {"role": message.role}
    wire["content"] = list(parts_of(message)) if message.parts else message.content
    if message.tool_calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": name_of(call), "arguments": arguments_of(call)},
            }
            for call in message.tool_calls
        ]
    # What another protocol's model thought is of no use to this one.
    details = [each for each in message.reasoning_details if each.get("type") not in _FOREIGN]
    if details:
        wire["reasoning_details"] = details
    elif message.reasoning and message.tool_calls:  # some think on where they called a tool
        wire["reasoning_content"] = message.reasoning
    return wire
