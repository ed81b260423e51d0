"""The text that a user sees if a turn ends without an answer."""

from __future__ import annotations

from hermes.messages import TurnResult
from hermes.transcript.overflow import is_overflow

OVERFLOW = (
    "This conversation no longer fits into the model's context window. "
    "Use /compact to shorten it, or /reset to start a new one."
)
FAILED = "The request failed: {error}\nUse /retry to try again, or /reset to start over."
NOT_STARTED = "This was interrupted before I started on it. Please send it again."
STOPPED = "The work stopped early: {error}\nUse /retry to start it again."
NO_TEXT = "The model finished without a reply. Ask for more, or use /retry."
NOT_PROCESSED = "Your message wasn't processed. Please send it again."

# From an agent that gave up asking for the rest of a reply: nothing a person can act on.
_UNFINISHED = "remained incomplete after"


def visible_text(result: TurnResult, history_len: int) -> str:
    """Return the text shown for a result: its own, a notice, or "" if nothing should be said.

    White space alone counts as no text, because no platform delivers it.
    """
    if result.text and result.text.strip():
        return result.text
    if result.failed:
        return _failure(result.error, history_len)
    if result.interrupted:
        return "" if result.api_calls > 0 else NOT_STARTED
    if result.api_calls > 0:
        return _without_text(result)
    return "" if result.partial else NOT_PROCESSED


def _failure(error: str | None, history_len: int) -> str:
    if is_overflow(error, history_len):
        return OVERFLOW
    return FAILED.format(error=_cut(error, 300))


def _without_text(result: TurnResult) -> str:
    if not result.partial:
        return NO_TEXT
    if _UNFINISHED in (result.error or ""):
        return ""
    return STOPPED.format(error=_cut(result.error, 200))


def _cut(error: str | None, length: int) -> str:
    return error[:length] if error and error.strip() else "unknown error"
