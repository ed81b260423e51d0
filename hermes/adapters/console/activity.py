"""What goes on in a chat, as a terminal shows it: the status line, a spinner, cards for tools."""

from __future__ import annotations

import json
import re

import attrs

from hermes.messages import Status, ToolCall
from hermes.sanitize import shorten

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_PER_SECOND = 8
THINKING, WRITING = "thinking", "writing"
MAX_CARD = 76
ASKED = "waits for your approval"
MAX_QUEUED = 60
SHOWN_QUEUED = 3
_SPACES = re.compile(r"\s+")


@attrs.frozen(kw_only=True)
class Activity:
    """What a terminal shows around the conversation."""

    phase: str = ""
    """What the agent does; empty if no turn is running."""
    since: float = 0.0
    """When the turn began, on the monotonic clock."""
    queued: tuple[str, ...] = ()
    """Messages that wait for their turn."""
    facts: str = ""
    """The model, the use of its context window, and the cost so far."""

    def lines(self, now: float) -> list[str]:
        """Return the lines above the input: what waits, what the agent does, and the facts."""
        shown = [f"queued: {shorten(text, MAX_QUEUED)}" for text in self.queued[:SHOWN_QUEUED]]
        if more := len(self.queued) - SHOWN_QUEUED:
            shown += [f"queued: {more} more"] if more > 0 else []
        if self.phase:
            seconds = max(now - self.since, 0.0)
            frame = FRAMES[int(seconds * FRAMES_PER_SECOND) % len(FRAMES)]
            shown.append(f"{frame} {self.phase} {seconds:.0f} s")
        return [*shown, self.facts] if self.facts else shown


def facts_of(status: Status) -> str:
    """Return the status line; empty if it is not known which model answers."""
    if status.model is None:
        return ""
    parts = [status.model]
    if status.window:
        share = round(100 * status.context_tokens / status.window)
        parts.append(f"context {share}% of {_thousands(status.window)}")
    if status.cost:
        parts.append(f"cost {status.cost:.4f}")
    return " · ".join(parts)


def tool_card(call: ToolCall, content: str, *, failed: bool, asked: bool = False) -> str:
    """Return a tool call and its result as one line; `asked` if it waits for an approval."""
    if asked:
        return shorten(f"? {call.name}({_arguments(call.arguments)}) {ASKED}", MAX_CARD)
    sign = "✗" if failed else "✓"
    result = _SPACES.sub(" ", content).strip()
    shown = f"{sign} {call.name}({_arguments(call.arguments)})"
    return shorten(f"{shown} → {result}" if result else shown, MAX_CARD)


def _arguments(text: str) -> str:
    """Return the arguments of a call in a short form; other texts than objects as they are."""
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return text
    if not isinstance(given, dict):
        return text
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()
    )


def _thousands(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 else str(number)  # noqa: PLR2004 - a unit
