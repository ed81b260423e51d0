"""`open_model`: a model provider on a loopback socket, with scripted answers and faults."""

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
    Dialect,
    Prompt,
    Refusal,
    SeenFile,
    StreamedAnswer,
    TokenCounts,
    last_user_text,
)
from hermes.testing.loopback import Request, Response, serve_http
from hermes.testing.openai_dialect import OpenAIDialect
from hermes.testing.prefix_cache import PrefixCache, count_tokens
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
    malformed_events,
)
from hermes.testing.seen_files import Base64Filter

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": OpenAIDialect(),
    "/v1/messages": AnthropicDialect(),
}
MODELS_PATH = "/v1/models"
_JSON = "application/json"
_INCOMPLETE = HangUp | Disconnect | CutOff | OnlyGarbage | ErrorEvent


@attrs.frozen(kw_only=True)
class ModelRequest(Request):
    """A request that the model has received, with its token counts."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    files: Sequence[SeenFile] = ()
    """The files that it has. In `body` and `json`, long ones are replaced by their hash."""
    _messages: msgspec.Raw = attrs.field(default=msgspec.Raw(b"[]"), repr=False)

    @property
    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)

    @property
    def text(self) -> str:
        """The text of the last user message."""
        return last_user_text(self._messages)


Answer: TypeAlias = str | ModelAnswer
Script: TypeAlias = Sequence[Answer] | Callable[[ModelRequest], Answer]


class LoopbackModel:
    """A model provider on this machine, opened by `open_model`.

    It speaks OpenAI's and Anthropic's protocol at `openai_url` and `anthropic_url`.
    """

    def __init__(
        self,
        script: Script = (),
        faults: Sequence[Fault | None] = (),
        *,
        window: int | None = None,
        cache: PrefixCache | None = None,
        keep: int | None = None,
        models: Sequence[str] = (),
    ) -> None:
        self.url = ""
        self.requests: deque[ModelRequest] = deque(maxlen=keep)
        """The requests that were received; the last `keep`, if that is given."""
        self.answered: int = 0
        """How many requests got a complete answer."""
        self._script = script
        self._faults = deque(faults)
        self._window = window
        self._cache = cache
        self._models = models
        self._position = 0

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's protocol."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for Anthropic's protocol."""
        return self.url

    def fail(self, *faults: Fault | None) -> None:
        """Schedule faults for the next requests, one for each; None: the request succeeds."""
        self._faults += faults

    def _respond(self, request: ModelRequest) -> Response:
        dialect = DIALECTS.get(request.path)
        if request.path == MODELS_PATH and self._models:
            listed = msgspec.json.encode({"data": [{"id": name} for name in self._models]})
            return Response(headers=[("content-type", _JSON)], chunks=[listed])
        if dialect is None:
            return Response(status=404, chunks=[b'{"error":{"message":"no such path"}}'])
        fault = self._faults.popleft() if self._faults else None
        try:
            if isinstance(fault, Refuse):
                raise dialect.refusal(fault.reason, request.headers)
            prompt = dialect.read(request.body, request.headers)
            request, counts = self._count(request, prompt, dialect)
        except Refusal as refusal:
            self.requests.append(request)
            return _refused(dialect.error(refusal), refusal.status, fault)
        self.requests.append(request)
        if isinstance(fault, HangUp):
            return Response(complete=False)
        answer = self._answer(request, complete=not isinstance(fault, _INCOMPLETE))
        counts = attrs.evolve(counts, **_output_tokens(answer))
        if prompt.stream:
            content_type, streamed = "text/event-stream", dialect.stream(prompt, answer, counts)
        else:
            whole = dialect.whole(prompt, answer, counts)
            content_type, streamed = _JSON, StreamedAnswer(b"", [whole], b"")
        return _with_fault(fault, streamed, [("content-type", content_type)], dialect)

    def _count(
        self, request: ModelRequest, prompt: Prompt, dialect: Dialect
    ) -> tuple[ModelRequest, TokenCounts]:
        tokens = count_tokens(prompt.text)
        request = attrs.evolve(
            request, prompt_tokens=tokens, messages=prompt.messages, files=prompt.files
        )
        if self._window is not None and tokens > self._window:
            raise dialect.too_long(tokens, self._window)
        if self._cache is None:
            return request, TokenCounts(tokens)
        cached = self._cache.lookup(prompt.cache_key, prompt.cacheable, request.at)
        request = attrs.evolve(request, cached_tokens=cached.read)
        return request, TokenCounts(tokens, cached.read, cached.written)

    def _answer(self, request: ModelRequest, *, complete: bool) -> ModelAnswer:
        script = self._script
        if callable(script):
            answer = script(request)
        elif self._position < len(script):
            answer = script[self._position]
        else:
            seen = (f"[{file.media_type or file.url} {file.size}]" for file in request.files)
            answer = " ".join([f"echo: {request.text}", *seen])
        if complete:
            self._position += 1
            self.answered += 1
        return ModelAnswer(answer) if isinstance(answer, str) else answer

    async def respond(self, request: Request) -> Response:
        """Answer a request."""
        await trio.lowlevel.checkpoint()
        return self._respond(ModelRequest(**attrs.asdict(request, recurse=False)))


def _refused(body: bytes, status: int, fault: Fault | None) -> Response:
    headers = [("content-type", _JSON)]
    if isinstance(fault, Refuse) and fault.retry_after is not None:
        headers.append(("retry-after", f"{fault.retry_after:g}"))
    return Response(status=status, headers=headers, chunks=[body])


def _output_tokens(answer: ModelAnswer) -> dict[str, int]:
    reasoning = count_tokens(answer.reasoning.encode())
    texts = [answer.text, *(call.name + call.arguments for call in answer.calls)]
    return {"reasoning": reasoning, "output": reasoning + count_tokens("".join(texts).encode())}


def _with_fault(
    fault: Fault | None,
    answer: StreamedAnswer,
    headers: Sequence[tuple[str, str]],
    dialect: Dialect,
) -> Response:
    """Return the response for an answer, changed as the fault says."""
    chunks = [answer.head, *answer.chunks, answer.tail]
    pause = 0.0
    match fault:
        case Drip(seconds):
            pause = seconds
        case Disconnect(after) | CutOff(after):
            chunks = chunks[: after + 1]
        case ErrorEvent(after, reason):
            chunks = [*chunks[: after + 1], dialect.error_event(dialect.refusal(reason, {}))]
        case Garbage(events):
            chunks = list(_interleaved(chunks, malformed_events(events)))
        case OnlyGarbage(events):
            chunks = list(malformed_events(events))
    complete = not isinstance(fault, Disconnect)
    return Response(headers=headers, chunks=chunks, pause=pause, complete=complete)


def _interleaved(chunks: Sequence[bytes], others: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk + next(others, b"")


@asynccontextmanager
async def open_model(
    script: Script = (),
    faults: Sequence[Fault | None] = (),
    *,
    window: int | None = None,
    cache: bool | PrefixCache = True,
    keep: int | None = None,
    models: Sequence[str] = (),
) -> AsyncIterator[LoopbackModel]:
    """Serve a model on a loopback port until the end of the block.

    Args:
        script: The answers, one for each request, or a function that returns the answer to a
            request. After the last answer the model echoes the user, and names the files.
        faults: What goes wrong with the first requests, one for each; None: nothing.
        window: The size of the context window in tokens; a longer prompt is refused.
        cache: Whether to count cached tokens as real providers do, or the cache to use.
        keep: How many requests are kept in `LoopbackModel.requests`; by default all.
        models: The names that the list of models contains; by default there is no such list.
    """
    prefix_cache = (PrefixCache() if cache else None) if isinstance(cache, bool) else cache
    model = LoopbackModel(
        script, faults, window=window, cache=prefix_cache, keep=keep, models=models
    )
    async with serve_http(model.respond, new_filter=Base64Filter) as port:
        model.url = f"http://127.0.0.1:{port}"
        yield model
