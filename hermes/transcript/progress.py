"""What a running turn has published so far, from its events."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.events import (
    ReasoningDelta,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnStarted,
)
from hermes.messages import TurnProgress
from hermes.transcript.rows import tools_of


def text_so_far(events: Sequence[RuntimeEvent]) -> str:
    """Return the whole text of the answer, also what a restart has discarded."""
    return _joined(_deltas(events))


def deltas_so_far(events: Sequence[RuntimeEvent]) -> list[TextDelta]:
    """Return the text in at most two pieces: what a restart has discarded, and the rest."""
    deltas = _deltas(events)
    kept = max([n for n, delta in enumerate(deltas, 1) if delta.restart], default=0)
    discarded = [TextDelta(_joined(deltas[:kept]), restart=True)] if kept else []
    text = _joined(deltas[kept:])
    return [*discarded, TextDelta(text)] if text else discarded


def said_so_far(started: TurnStarted, events: Sequence[RuntimeEvent]) -> list[RuntimeEvent]:
    """Return what a new listener has to know: the start, the input, the text, the running tools."""
    steered = [event for event in events if isinstance(event, Steered)]
    return [started, *steered, *deltas_so_far(events), *_running_tools(events)]


def progress_of(
    started: TurnStarted,
    started_at: float,
    inbox_ids: tuple[int, ...],
    events: Sequence[RuntimeEvent],
) -> TurnProgress:
    """Return what a turn that answers these messages has published since its start."""
    kept = [delta.text for delta in deltas_so_far(events) if not delta.restart]
    reasoning = [event for event in events if isinstance(event, ReasoningDelta)]
    return TurnProgress(
        turn_id=started.turn_id,
        session_id=started.session_id,
        inbox_ids=inbox_ids,
        attempt=started.attempt,
        started_at=started_at,
        text="".join(kept),
        reasoning="".join(f"{event.text}" for event in reasoning),
        tools=tools_of(events),
    )


def _running_tools(events: Sequence[RuntimeEvent]) -> list[ToolStarted]:
    """Return the starts of tools that have not finished."""
    running: list[ToolStarted] = []
    for event in events:
        match event:
            case ToolStarted():
                running.append(event)
            case ToolFinished(call_id):
                running = [started for started in running if started.call.id != call_id]
    return running


def _deltas(events: Sequence[RuntimeEvent]) -> list[TextDelta]:
    return [event for event in events if isinstance(event, TextDelta)]


def _joined(deltas: Sequence[TextDelta]) -> str:
    return "".join(f"{delta.text}" for delta in deltas)
