"""Lists of conversations, as users see them and refer to them. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import SessionSummary


def find_session(sessions: Sequence[SessionSummary], wanted: str) -> SessionSummary | str:
    """Return the session meant by a number, id, title or unique id prefix; or why there is none."""
    if is_number(wanted) and 0 < int(wanted) <= len(sessions):
        return sessions[int(wanted) - 1]
    for each in sessions:
        if wanted in {each.session.id, each.root_session_id}:
            return each
    for each in sessions:
        if (each.session.title or "").lower() == wanted.lower():
            return each
    matching = [each for each in sessions if each.session.id.startswith(wanted)]
    if len(matching) == 1:
        return matching[0]
    many = "more than one conversation" if matching else "no conversation"
    return f"You have {many} called {wanted!r}. Use /sessions to list them."


def session_line(number: int, summary: SessionSummary) -> str:
    """Return the line of a conversation in a numbered list."""
    name = summary.session.title or summary.preview or summary.session.id
    return f"{number}. {name} ({summary.session.message_count} messages)"


def is_number(text: str) -> bool:
    """Whether a text is a plain decimal number."""
    return text.isascii() and text.isdigit()
