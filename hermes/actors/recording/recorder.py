"""What a running turn records of itself, for its commit."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio
from msgspec.structs import replace

from hermes.events import (
    AgentEvent,
    ApprovalAsked,
    ReasoningDelta,
    Retrying,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import (
    CallReport,
    Content,
    Message,
    RecordedCall,
    Repeats,
    Reply,
    StoredMessage,
    ToolCall,
    TurnEvent,
    TurnEventKind,
    TurnRecord,
)
from hermes.redaction import Redactor
from hermes.sanitize import scrub

DELTAS = (TextDelta, ReasoningDelta)
"""Events that are not recorded."""
MAX_CALLS = 1000
MAX_EVENTS = 1000
"""A turn with more than this has a recording of the first ones."""
MAX_NAME = 100
MAX_ERROR = 300
_SPAN = 1 << 32
_KEPT = 200


@attrs.define(eq=False)
class KnownTexts:
    """Texts without secrets, and with their hashes: most calls have the same ones."""

    _redact: Redactor | None = None
    _known: dict[str, Content] = attrs.Factory(dict)

    def content(self, text: str) -> Content:
        """Return a text as it is stored."""
        known = self._known.get(text)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.pop(next(iter(self._known)))
            known = self._known[text] = Content.of(scrub(self.redact(text)))
        return known

    def redact(self, text: str) -> str:
        """Return a text without secrets."""
        return text if self._redact is None else self._redact(text)


@attrs.define(eq=False)
class TurnRecorder:
    """Collects the calls and the events of a turn, with their times."""

    started_at: float
    _texts: KnownTexts
    _began: float = attrs.Factory(trio.current_time)
    _calls: list[RecordedCall] = attrs.Factory(list)
    _events: list[TurnEvent] = attrs.Factory(list)
    _tools: dict[str, int] = attrs.Factory(dict)
    """The positions of the running tools among the events."""
    _history: tuple[Sequence[Message | StoredMessage], tuple[int, ...]] = ((), ())
    """The history whose ranges were asked for last, and the ranges."""

    def note(self, event: AgentEvent | Steered) -> None:
        """Record an event of the turn."""
        match event:
            case ToolStarted(ToolCall() as call):  # an agent may emit anything
                self._tools[call.id] = len(self._events)
                self._add("tool", call.name, scrub(f"{call.id}"))
            case ToolFinished(call_id) if call_id in self._tools:
                self._finish(self._tools.pop(call_id), failed=event.failed)
            case Retrying(_, text):
                self._add("retry", text)
            case Steered():
                self._add("steered", "")
            case ApprovalAsked(approval):
                self._add("approval", approval.tool)

    def _add(self, kind: TurnEventKind, name: str, call_id: str = "") -> None:
        if len(self._events) < MAX_EVENTS:
            name = scrub(self._texts.redact(f"{name}"))[:MAX_NAME]
            known = call_id if 0 < len(call_id) <= MAX_NAME else None
            started = self._milliseconds(trio.current_time())
            self._events.append(TurnEvent(kind, name, started, call_id=known))

    def _finish(self, index: int, *, failed: bool) -> None:
        if index < len(self._events):
            started = self._events[index]
            ended = self._milliseconds(trio.current_time())
            self._events[index] = replace(
                started, duration=max(0, ended - started.started), failed=bool(failed)
            )

    def _milliseconds(self, time: float) -> int:
        return max(0, round((time - self._began) * 1000))

    def call(
        self, call: CallReport, session_id: str, history: Sequence[Message | StoredMessage]
    ) -> None:
        """Record a call of a model in a session with this history."""
        if len(self._calls) >= MAX_CALLS:
            return
        texts = call.settings, call.tools, call.system, call.injected
        contents = [None if each is None else self._texts.content(each) for each in texts]
        settings, tools, system, injected = contents
        assert settings is not None
        pairs = zip(texts, contents, strict=True)
        changed = any(content is not None and content.text != text for text, content in pairs)
        self._calls.append(
            RecordedCall(
                settings=settings,
                tools=tools,
                system=system,
                injected=injected,
                session_id=session_id,
                history=self._ranges(history),
                rows=call.rows,
                digest=call.digest,
                redacted=call.redacted or changed,
                hidden_files=call.hidden_files,
                started=self._milliseconds(call.started),
                first=None if call.first is None else self._milliseconds(call.first),
                duration=max(0, round((call.ended - call.started) * 1000)),
                usage=call.usage,
                error=call.error,
            )
        )

    def restart(self) -> None:
        """Forget the events of an attempt whose rows are not kept. Its calls were made."""
        self._events, self._tools = [], {}

    def _ranges(self, history: Sequence[Message | StoredMessage]) -> tuple[int, ...]:
        if self._history[0] is not history:
            self._history = history, ranges_of(history)
        return self._history[1]

    def finish(self, reply: Reply, agent: str | None, repeats: Repeats | None) -> TurnRecord:
        """Return the record of a turn with this outcome."""
        error = reply.error and scrub(self._texts.redact(reply.error))[:MAX_ERROR]
        return TurnRecord(
            started_at=self.started_at,
            status=reply.status,
            agent=agent,
            error=error,
            calls=self._calls,
            events=self._events,
            repeats=None if repeats is None else (repeats.session_key, repeats.turn_id),
        )


def ranges_of(history: Sequence[Message | StoredMessage]) -> tuple[int, ...]:
    """Return the first and last number of each range of rows, within their session."""
    ends = [row.id for row in (*history[:1], *history[-1:]) if isinstance(row, StoredMessage)]
    if ends[1:] and ends[1] - ends[0] == len(history) - 1:  # the usual case, without a loop
        return ends[0] % _SPAN, ends[1] % _SPAN
    ranges: list[int] = []
    for row in history:
        if isinstance(row, StoredMessage):
            number = row.id % _SPAN
            if ranges and ranges[-1] == number - 1:
                ranges[-1] = number
            else:
                ranges += [number, number]
    return tuple(ranges)
