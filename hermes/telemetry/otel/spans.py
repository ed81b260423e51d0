"""A turn as spans, made after its end: no span is open while other code runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping

import attrs
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from hermes.events import TurnEnded
from hermes.messages import JsonObject, Usage
from hermes.settings.otel import OtelConfig
from hermes.telemetry.otel import names as n
from hermes.telemetry.turn_records import Step, ToolRun, TurnRecord

TRACEPARENT = "traceparent"
"""The key in the metadata of a message."""
MAX_CONTENT = 20_000
_TOOL_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY_PARTS = 5
"""Parts of the key of a direct conversation, at least."""
Attributes = Mapping[str, AttributeValue | None]


def read_traceparent(value: object) -> SpanContext | None:
    """Return the context in a W3C `traceparent`; None if it is not valid."""
    found = _PARENT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found.groups()[:3])
    context = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


@attrs.frozen
class TurnSpans:
    """Makes the spans of turns. Times of records are in seconds since the epoch."""

    tracer: Tracer
    config: OtelConfig
    redact: Callable[[str], str]

    def add(self, record: TurnRecord, event: TurnEnded, said: str | None = None) -> None:
        """Make the spans of a turn that has ended; `said` is its message, if it is to be sent."""
        context = self._turn(record, event, said)
        shared = {n.SESSION: event.reply.session_id, n.USER: self._user(record.session_key)}
        agent = self._span(
            f"{n.INVOKE_AGENT} {self.config.service_name}", context, record.times,
            shared | {
                n.KIND: "AGENT",
                n.OPERATION: n.INVOKE_AGENT,
                n.AGENT: self.config.service_name,
                n.CONVERSATION: event.reply.session_id,
                n.ERROR: event.reply.error_kind,
            },
        )  # fmt: skip
        inside = set_span_in_context(agent)
        calls = [call for call in event.reply.usage if call.purpose == "turn"]
        for step, call in zip(record.steps, calls, strict=False):
            self._chat(step, call, inside, shared, record)
        for run in record.tools:
            self._tool(run, inside, shared, record)
        if record.commit is not None:
            self._span(n.COMMIT, context, record.commit, shared | {n.KIND: "CHAIN"})

    def _turn(self, record: TurnRecord, event: TurnEnded, said: str | None) -> Context:
        reply, started = event.reply, record.event
        remote = read_traceparent(started.metadata.get(TRACEPARENT))
        failed = reply.status in {"failed", "refused"}
        span = self._span(
            n.TURN, Context(), record.times,
            {
                n.SESSION: reply.session_id,
                n.USER: self._user(record.session_key),
                n.SESSION_KEY: self._id(record.session_key),
                n.KIND: "CHAIN",
                n.TURN_ID: reply.turn_id,
                n.PLATFORM: event.platform,
                n.STATUS: reply.status,
                n.ATTEMPT: started.attempt,
                n.BUILD_REASON: reply.build_reason,
                n.QUEUED: started.waited,
                n.ERROR: (reply.error_kind or reply.status) if failed else None,
                n.INPUT_MESSAGES: self._messages("user", said),
                n.OUTPUT_MESSAGES: self._messages("assistant", reply.text),
            },
            links=() if remote is None else (Link(remote),),
        )  # fmt: skip
        return set_span_in_context(span, Context())

    def _chat(
        self, step: Step, call: Usage, context: Context, shared: Attributes, record: TurnRecord
    ) -> None:
        prompt = call.input_tokens + call.cache_read_tokens + call.cache_write_tokens
        first = None if step.first_token is None else step.first_token - step.started
        self._span(
            f"{n.CHAT} {call.model or 'unknown'}", context,
            (step.started, step.ended or record.ended),
            {
                **shared,
                n.KIND: "LLM",
                n.OPERATION: n.CHAT,
                n.PROVIDER: call.provider,
                n.REQUEST_MODEL: call.model,
                n.STREAM: True if first is not None else None,
                n.FIRST_CHUNK: first,
                n.RETRIES: step.retries or None,
                n.INPUT_TOKENS: prompt,
                n.OUTPUT_TOKENS: call.output_tokens,
                n.CACHE_READ: call.cache_read_tokens,
                n.CACHE_WRITE[self.config.names]: call.cache_write_tokens,
                n.PROMPT_TOKENS: prompt,
                n.COMPLETION_TOKENS: call.output_tokens,
                n.PROMPT_CACHE_READ: call.cache_read_tokens,
                n.PROMPT_CACHE_WRITE: call.cache_write_tokens,
                n.COST: call.cost,
            },
            kind=SpanKind.CLIENT,
        )  # fmt: skip

    def _tool(self, run: ToolRun, context: Context, shared: Attributes, record: TurnRecord) -> None:
        name = run.name if _TOOL_NAME.fullmatch(run.name) else "unknown"
        self._span(
            f"{n.EXECUTE_TOOL} {name}", context,
            (run.started, run.ended or record.ended),
            {
                **shared,
                n.KIND: "TOOL",
                n.OPERATION: n.EXECUTE_TOOL,
                n.TOOL: name,
                n.TOOL_CALL: run.call_id,
                n.ERROR: "tool_error" if run.failed else None,
                n.TOOL_ARGUMENTS: self._content(run.arguments),
                n.TOOL_RESULT: self._content(run.result),
            },
        )  # fmt: skip

    def _span(
        self,
        name: str,
        context: Context,
        times: tuple[float, float],
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: tuple[Link, ...] = (),
    ) -> Span:
        known = {key: value for key, value in attributes.items() if value is not None}
        span = self.tracer.start_span(
            name, context, kind, known, links, start_time=round(times[0] * 1e9)
        )
        if n.ERROR in known:
            span.set_status(Status(StatusCode.ERROR))
        span.end(round(max(times) * 1e9))
        return span

    def _content(self, text: str | None) -> str | None:
        """Return a text without secrets, if content is to be sent."""
        if not self.config.content or text is None:
            return None
        return self.redact(text)[:MAX_CONTENT]

    def _messages(self, role: str, text: str | None) -> str | None:
        content = self._content(text)
        if content is None:
            return None
        message: JsonObject = {"role": role, "parts": [{"type": "text", "content": content}]}
        return json.dumps([message], ensure_ascii=False)

    def _id(self, text: str) -> str:
        if self.config.ids == "plain":
            return text
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _user(self, session_key: str) -> str | None:
        """Return the user of a direct conversation, or of a participant of a group."""
        parts = session_key.split(":")
        if len(parts) < _KEY_PARTS or parts[0] != "agent":
            return None
        user = parts[4] if parts[3] == "dm" else parts[-1] if len(parts) > _KEY_PARTS else ""
        return self._id(f"{parts[2]}:{user}") if user else None
