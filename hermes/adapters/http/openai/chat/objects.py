"""Chat completions as a client sees them: one object, or chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from hermes.adapters.http.errors import ApiError
from hermes.adapters.http.openai.chat.histories import squeezed
from hermes.adapters.http.openai.tools import chat_tool_calls
from hermes.adapters.http.openai.turn_errors import code_of, message_of
from hermes.events import (
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    TextDelta,
    TurnStarted,
)
from hermes.messages import JsonObject, Reply, StoredResponse, Usage

GAP = "\n\n"
"""Between the texts of two messages of the assistant."""
DONE = b"data: [DONE]\n\n"
_ANSWERED = frozenset({"complete", "partial", "command"})
_CANCELLED = frozenset({"interrupted", "withdrawn"})
NO_RETRY = {"x-should-retry": "false"}
"""For the stock SDK: the turn was run, and would be run again."""


def completion(response: StoredResponse, reply: Reply) -> JsonObject:
    """Return a chat completion."""
    message: JsonObject = {
        "role": "assistant",
        "content": reply.text or (None if reply.calls else ""),
        "refusal": None,
    }
    if reply.calls:
        message["tool_calls"] = chat_tool_calls(reply.calls)
    if reply.files:
        message["files"] = _files(reply)
    if reply.approvals:
        message["approvals"] = _approvals(reply)
    choice = {
        "index": 0, "message": message, "finish_reason": finish_reason(reply), "logprobs": None,
    }  # fmt: skip
    head = _head(response, "chat.completion")
    return {**head, "choices": [choice], "usage": usage_of(reply.usage)}


def finish_reason(reply: Reply) -> str:
    """Return why an answer has ended."""
    if reply.calls:
        return "tool_calls"
    return "length" if reply.status == "partial" else "stop"


def error_of(reply: Reply) -> ApiError | None:
    """Return the error for a turn without an answer; None if there is one."""
    if reply.status in _ANSWERED or (reply.status == "interrupted" and reply.text):
        return None
    if reply.status in _CANCELLED:
        return ApiError(409, "The request was cancelled.", code="cancelled", headers=NO_RETRY)
    status, code = code_of(reply)
    return ApiError(status, message_of(reply), code=code, headers=NO_RETRY)


def usage_of(calls: Sequence[Usage]) -> JsonObject:
    """Return the tokens of all calls of a turn. Cached ones are part of the prompt."""
    read = sum(call.cache_read_tokens for call in calls)
    written = sum(call.cache_write_tokens for call in calls)
    taken = sum(call.input_tokens for call in calls) + read + written
    made = sum(call.output_tokens for call in calls)
    thought = sum(call.reasoning_tokens for call in calls)
    return {
        "prompt_tokens": taken,
        "completion_tokens": made,
        "total_tokens": taken + made,
        "prompt_tokens_details": {"cached_tokens": read},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def _head(response: StoredResponse, kind: str) -> JsonObject:
    return {
        "id": response.id,
        "object": kind,
        "created": int(response.created_at),
        "model": response.echo.get("model"),
    }


def _files(reply: Reply) -> list[JsonObject]:
    return [
        {"id": file.id, "name": file.name, "media_type": file.media_type} for file in reply.files
    ]


def _approvals(reply: Reply) -> list[JsonObject]:
    """Return the calls of the agent's tools that wait for a decision of the user."""
    return [
        {"id": str(each.approval_id), "name": each.tool, "arguments": each.arguments}
        for each in reply.approvals
    ]


class ChunkStream:
    """Makes the chunks of one completion from the events of its turn."""

    def __init__(self, response: StoredResponse, *, include_usage: bool) -> None:
        self._response = response
        self._include_usage = include_usage
        self._sent = ""
        """What the client has of the current text."""
        self._text = ""
        """The text as it is now; it may begin again."""
        self._last = 0
        """Where its last message begins."""
        self._gap = False

    def begin(self) -> bytes:
        """Return the first chunk."""
        return self._chunk({"role": "assistant", "content": ""})

    def feed(self, event: RuntimeEvent) -> bytes:
        """Return the chunks of an event; none for most of them."""
        match event:
            case TextDelta(text, restart):
                return self._add("" if restart else text, restart=restart)
            case ReasoningDelta(text) if text:
                return self._chunk({"reasoning_content": text})
            case AssistantMessage():
                self._gap = bool(self._text)
            case TurnStarted(attempt=attempt) if attempt > 1:
                return self._add("", restart=True)
        return b""

    def _add(self, text: str, *, restart: bool = False) -> bytes:
        """Add to the text. What a client has cannot be taken back.

        A text that begins again is sent from where it differs, after a gap.
        """
        if restart:
            self._text, self._last, self._gap = "", 0, False
        if text and self._gap:
            self._text, self._gap = f"{self._text}{GAP}", False
            self._last = len(self._text)
        self._text += text
        if self._sent.startswith(self._text):
            return b""
        new = self._text.removeprefix(self._sent)
        if not self._text.startswith(self._sent):
            new = f"{GAP}{self._text}"
        self._sent = self._text
        return self._chunk({"content": new})

    def end(self, reply: Reply) -> bytes:
        """Return the last chunks."""
        return b"".join([*self._rest(reply), DONE])

    def _rest(self, reply: Reply) -> Iterator[bytes]:
        error = error_of(reply)
        if error is not None:
            yield error_frame(error)
            return
        if reply.text and not squeezed(self._text).endswith(squeezed(reply.text)):
            begun = self._text[self._last :]
            if self._gap or not reply.text.startswith(begun):
                self._gap, begun = bool(self._text), ""
            yield self._add(reply.text.removeprefix(begun))
        if reply.calls:
            calls = chat_tool_calls(reply.calls)
            numbered = [{"index": index, **call} for index, call in enumerate(calls)]
            yield self._chunk({"tool_calls": numbered})
        if reply.files:
            yield self._chunk({"files": _files(reply)})
        if reply.approvals:
            yield self._chunk({"approvals": _approvals(reply)})
        yield self._chunk({}, finish_reason(reply))
        if self._include_usage:
            head = _head(self._response, "chat.completion.chunk")
            yield _frame({**head, "choices": [], "usage": usage_of(reply.usage)})

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        chunk = {**_head(self._response, "chat.completion.chunk"), "choices": [choice]}
        return _frame({**chunk, "usage": None} if self._include_usage else chunk)


def error_frame(error: ApiError) -> bytes:
    """Return an error as an event of a stream."""
    return _frame(msgspec.json.decode(error.response().body, type=JsonObject))


def _frame(data: JsonObject) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(data)
