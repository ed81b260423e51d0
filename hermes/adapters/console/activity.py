"""What goes on in a chat, as a terminal shows it: the status line, a spinner, cards for tools."""

from __future__ import annotations

import unicodedata

import attrs

from hermes.messages import Approval, Status, ToolCall
from hermes.sanitize import shorten
from hermes.transcript.calls import parsed, shown_arguments, shown_call

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
FRAMES_PER_SECOND = 8
THINKING, WRITING = "thinking", "writing"
ASKED = ") waits for your approval"
MAX_LINE = 76
MIN_ARGUMENTS = 5
"""Characters for the arguments of a call, without which its line shows only the name."""
SHOWN_QUEUED = 3


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

    def lines(self, now: float, columns: int) -> list[str]:
        """Return the lines above the input: what waits, what the agent does, and the facts.

        Each of them fits into one line of the screen.
        """
        return [fit(line, min(columns - 1, MAX_LINE)) for line in self._lines(now)]

    def _lines(self, now: float) -> list[str]:
        shown = [f"queued: {text}" for text in self.queued[:SHOWN_QUEUED]]
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


def approval_card(approval: Approval, columns: int) -> str:
    """Return a tool call that waits for an approval, as one line of a screen."""
    room, name = min(columns - 1, MAX_LINE), f"? {approval.tool}"
    if room - len(ASKED) < len(name) + MIN_ARGUMENTS:  # the name matters most
        return fit(name, room)
    call = f"{name}({shown_arguments(approval.arguments)}"
    return f"{fit(call, room - len(ASKED))}{ASKED}"


def is_call(approval: Approval, call: ToolCall) -> bool:
    """Return whether an approval was asked for this call."""
    same = parsed(approval.arguments) == parsed(call.arguments)
    return same and approval.tool == call.name


def tool_card(call: ToolCall, content: str, columns: int, *, failed: bool) -> str:
    """Return a tool call and its result, as one line of a screen."""
    sign = "✗" if failed else "✓"
    shown = f"{sign} {shown_call(call.name, call.arguments)}"
    return fit(f"{shown} → {content}" if content.strip() else shown, min(columns - 1, MAX_LINE))


def fit(text: str, cells: int) -> str:
    """Shorten a text to one line of at most this many terminal cells; wide characters take two."""
    line = shorten(text, max(cells, 1))
    if line.isascii() or _cells(line) <= cells:
        return line
    while line and _cells(line) >= cells:
        line = line[:-1]
    return f"{line}…"


def _cells(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def _thousands(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 else str(number)  # noqa: PLR2004 - a unit
