"""The text that a user sees if a turn ends without an answer."""

from __future__ import annotations

from hermes.messages import TurnResult
from hermes.sanitize import scrub
from hermes.texts import Texts
from hermes.transcript.overflow import is_overflow

MAX_ERROR = 300
"""Characters of an agent's error that users are shown."""

# From an agent that gave up asking for the rest of a reply: nothing a person can act on.
_UNFINISHED = "remained incomplete after"


def visible_text(result: TurnResult, history_len: int, texts: Texts) -> str:
    """Return the text shown for a result: its own, a notice, or "" if nothing should be said.

    White space alone counts as no text, because no platform delivers it.
    """
    if result.text and result.text.strip():
        return scrub(result.text)
    return _notice(result, history_len, texts)


def _notice(result: TurnResult, history_len: int, texts: Texts) -> str:
    has_error = bool(result.error and result.error.strip())
    if result.failed:
        return _failure(result.error, history_len, texts)
    if result.interrupted:
        return "" if result.api_calls > 0 else texts.not_started
    if result.partial:
        return _stopped_early(result, texts) if has_error or _did_work(result) else ""
    if has_error:
        return _failure(result.error, history_len, texts)
    if result.data is not None or result.files or result.calls:
        return ""
    return texts.no_text if result.api_calls > 0 else texts.not_processed


def _did_work(result: TurnResult) -> bool:
    return result.api_calls > 0 or result.data is not None


def _failure(error: str | None, history_len: int, texts: Texts) -> str:
    if is_overflow(error, history_len):
        return texts.overflow
    return texts.failed.format(error=_cut(error, texts))


def _stopped_early(result: TurnResult, texts: Texts) -> str:
    if _UNFINISHED in (result.error or ""):
        return ""
    return texts.stopped_early.format(error=_cut(result.error, texts))


def _cut(error: str | None, texts: Texts) -> str:
    return error[:MAX_ERROR] if error and error.strip() else texts.unknown_error
