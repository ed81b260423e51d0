"""The times of turns, from the events of a runtime."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

import attrs
import trio

from hermes.events import (
    AssistantMessage,
    Envelope,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)

MAX_TURNS = 10_000
"""Turns that are recorded at the same time; the end of a turn may have been lost."""
MAX_STEPS = 200
"""Model calls and tool calls of one turn that are recorded, each."""


@attrs.define
class Step:
    """A call of the model: from the start of the turn or the end of a tool to what it says.

    Retries of a call are part of it.
    """

    started: float
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    retries: int = 0


@attrs.define
class ToolRun:
    """A call of a tool."""

    call_id: str
    name: str
    started: float
    arguments: str
    ended: float | None = None
    failed: bool = False
    result: str | None = None


@attrs.define
class TurnRecord:
    """A turn while it runs; all times are those of the recorder's clock."""

    session_key: str
    event: TurnStarted
    started: float
    steps: list[Step]
    tools: list[ToolRun] = attrs.Factory(list)
    ended: float = 0.0
    commit: tuple[float, float] | None = None
    """When its commit began and ended, if that is known."""

    @property
    def times(self) -> tuple[float, float]:
        """When it started and ended."""
        return self.started, self.ended

    def receive(self, envelope: Envelope, now: float) -> None:
        """Take an event of the turn."""
        step = self.steps[-1]
        match envelope.event:
            case TextDelta() | ReasoningDelta():
                step.last_token = now
                if step.first_token is None:
                    step.first_token = now
            case Retrying():
                step.retries += 1
            case AssistantMessage():
                step.ended = now
            case ToolStarted(call) if len(self.tools) < MAX_STEPS:
                self.tools.append(ToolRun(call.id, call.name, now, call.arguments))
            case ToolFinished():
                self._finish_tool(envelope.event, now)

    def _finish_tool(self, event: ToolFinished, now: float) -> None:
        for run in reversed(self.tools):
            if run.call_id == event.call_id and run.ended is None:
                run.ended, run.failed, run.result = now, event.failed, event.content
                break
        last = self.steps[-1]
        if last.ended is not None and len(self.steps) < MAX_STEPS:
            self.steps.append(Step(now))
        elif last.ended is None:
            last.started = now  # another tool of the same message has ended


OnEnd: TypeAlias = Callable[[TurnRecord, TurnEnded], None]


class TurnRecorder:
    """Records the turns of a runtime: pass `receive` to `Runtime.subscribe`.

    `on_end` gets each turn that has ended. Turns that were refused have not begun, and are left
    out. At most `limit` turns are recorded at the same time, with the times of `clock`.
    """

    def __init__(
        self,
        on_end: OnEnd,
        *,
        limit: int = MAX_TURNS,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._on_end = on_end
        self._clock = clock
        self._limit = limit
        self._turns: OrderedDict[tuple[str, int | None], TurnRecord] = OrderedDict()

    def receive(self, envelope: Envelope) -> None:
        """Take an event of any turn."""
        key, event = (envelope.session_key, envelope.turn_id), envelope.event
        if isinstance(event, TurnStarted):
            now = self._clock()
            # A turn that is started again, after a compression, keeps its first start.
            self._turns.setdefault(key, TurnRecord(key[0], event, now, [Step(now)]))
            if len(self._turns) > self._limit:
                self._turns.popitem(last=False)
        elif isinstance(event, TurnEnded):
            record = self._turns.pop((key[0], event.reply.turn_id), None)
            if record is not None:
                self._end(record, event)
        elif (record := self._turns.get(key)) is not None:
            record.receive(envelope, self._clock())

    def _end(self, record: TurnRecord, event: TurnEnded) -> None:
        record.ended = self._clock()
        last = record.steps[-1]
        if last.ended is None:
            last.ended = last.last_token or record.ended
        for run in record.tools:
            run.ended = record.ended if run.ended is None else run.ended
        self._on_end(record, event)
