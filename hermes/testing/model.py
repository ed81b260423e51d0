"""A model behind a real socket: two protocols, a prefix cache, a script, and faults on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import msgspec
import trio

from hermes.testing.anthropic_dialect import AnthropicDialect
from hermes.testing.dialects import (
    Counted,
    Dialect,
    Prompt,
    Refusal,
    Streamed,
    last_user_text,
)
from hermes.testing.loopback import Request, Response, listening
from hermes.testing.openai_dialect import OpenAIDialect
from hermes.testing.prefix_cache import PrefixCache, count
from hermes.testing.script import (
    CutOff,
    Disconnect,
    Drip,
    ErrorEvent,
    Fault,
    Garbage,
    HangUp,
    ModelAnswer,
    OnlyGarbage,
    Refuse,
    nonsense,
)

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": OpenAIDialect(),
    "/v1/messages": AnthropicDialect(),
}
_JSON = "application/json"
_UNFINISHED = HangUp | Disconnect | CutOff | OnlyGarbage | ErrorEvent


@attrs.frozen(kw_only=True)
class ModelRequest(Request):
    """A request as it came, and what the model made of it."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    _messages: msgspec.Raw = attrs.field(default=msgspec.Raw(b"[]"), repr=False)

    @property
    def json(self) -> Any:
        """The body, decoded anew each time."""
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        """What a user said last."""
        return last_user_text(self._messages)


Said: TypeAlias = str | ModelAnswer
Script: TypeAlias = Sequence[Said] | Callable[[ModelRequest], Said]


class LoopbackModel:
    """A model's provider on this machine; `open_model` opens one."""

    def __init__(
        self,
        script: Script = (),
        faults: Sequence[Fault | None] = (),
        *,
        window: int | None = None,
        cache: PrefixCache | None = None,
        keep: int | None = None,
    ) -> None:
        self.url = ""
        self.requests: deque[ModelRequest] = deque(maxlen=keep)
        self.answered = 0
        self._script = script
        self._faults = deque(faults)
        self._window = window
        self._cache = cache
        self._place = 0

    @property
    def openai_url(self) -> str:
        """The address of an endpoint that speaks OpenAI's protocol."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The address of an endpoint that speaks Anthropic's protocol."""
        return self.url

    def fail(self, *faults: Fault | None) -> None:
        """Let the next requests go wrong, one each; None is one that goes well."""
        self._faults += faults

    # Decisions: nothing here waits

    def _respond(self, request: ModelRequest) -> Response:
        """What a request is answered with."""
        dialect = DIALECTS.get(request.path)
        if dialect is None:
            return Response(status=404, pieces=[b'{"error":{"message":"no such path"}}'])
        fault = self._faults.popleft() if self._faults else None
        try:
            if isinstance(fault, Refuse):
                raise dialect.refusal(fault.why, request.headers)
            prompt = dialect.read(request.body, request.headers)
            request, counted = self._count(request, prompt, dialect)
        except Refusal as refusal:
            self.requests.append(request)
            return _refused(dialect.error(refusal), refusal.status, fault)
        self.requests.append(request)
        if isinstance(fault, HangUp):
            return Response(whole=False)
        answer = self._answer(request, unfinished=isinstance(fault, _UNFINISHED))
        counted = attrs.evolve(counted, **_output(answer))
        if prompt.stream:
            kind, told = "text/event-stream", dialect.stream(prompt, answer, counted)
        else:
            kind, told = _JSON, Streamed(b"", [dialect.whole(prompt, answer, counted)], b"")
        return _faulty(fault, told, [("content-type", kind)], dialect)

    def _count(
        self, request: ModelRequest, prompt: Prompt, dialect: Dialect
    ) -> tuple[ModelRequest, Counted]:
        tokens = count(prompt.text)
        request = attrs.evolve(request, prompt_tokens=tokens, messages=prompt.messages)
        if self._window is not None and tokens > self._window:
            raise dialect.too_long(tokens, self._window)
        if self._cache is None:
            return request, Counted(tokens)
        seen = self._cache.see(prompt.key, prompt.cacheable, request.at)
        request = attrs.evolve(request, cached_tokens=seen.read)
        return request, Counted(tokens, seen.read, seen.written)

    def _answer(self, request: ModelRequest, *, unfinished: bool) -> ModelAnswer:
        script = self._script
        if callable(script):
            said = script(request)
        elif self._place < len(script):
            said = script[self._place]
        else:
            said = f"echo: {request.text}"
        if not unfinished:
            self._place += 1
            self.answered += 1
        return ModelAnswer(said) if isinstance(said, str) else said

    async def respond(self, request: Request) -> Response:
        """Answer a request."""
        await trio.lowlevel.checkpoint()
        asked = {field.name: getattr(request, field.name) for field in attrs.fields(Request)}
        return self._respond(ModelRequest(**asked))


def _refused(body: bytes, status: int, fault: Fault | None) -> Response:
    headers = [("content-type", _JSON)]
    if isinstance(fault, Refuse) and fault.retry_after is not None:
        headers.append(("retry-after", f"{fault.retry_after:g}"))
    return Response(status=status, headers=headers, pieces=[body])


def _output(answer: ModelAnswer) -> dict[str, int]:
    reasoning = count(answer.reasoning.encode())
    said = [answer.text, *(call.name + call.arguments for call in answer.calls)]
    return {"reasoning": reasoning, "output": reasoning + count("".join(said).encode())}


def _faulty(
    fault: Fault | None, told: Streamed, headers: Sequence[tuple[str, str]], dialect: Dialect
) -> Response:
    """An answer with what goes wrong in it."""
    pieces = [told.head, *told.pieces, told.tail]
    pause = 0.0
    match fault:
        case Drip(seconds):
            pause = seconds
        case Disconnect(after) | CutOff(after):
            pieces = pieces[: after + 1]
        case ErrorEvent(after, why):
            pieces = [*pieces[: after + 1], dialect.error_event(dialect.refusal(why, {}))]
        case Garbage(events):
            pieces = list(_mixed(pieces, nonsense(events)))
        case OnlyGarbage(events):
            pieces = list(nonsense(events))
    whole = not isinstance(fault, Disconnect)
    return Response(headers=headers, pieces=pieces, pause=pause, whole=whole)


def _mixed(pieces: Sequence[bytes], others: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece + next(others, b"")


@asynccontextmanager
async def open_model(
    script: Script = (),
    faults: Sequence[Fault | None] = (),
    *,
    window: int | None = None,
    cache: bool | PrefixCache = True,
    keep: int | None = None,
) -> AsyncIterator[LoopbackModel]:
    """Serve a model on this machine for as long as the block lasts; `keep` bounds its memory."""
    kept = (PrefixCache() if cache else None) if isinstance(cache, bool) else cache
    model = LoopbackModel(script, faults, window=window, cache=kept, keep=keep)
    async with listening(model.respond) as port:
        model.url = f"http://127.0.0.1:{port}"
        yield model
