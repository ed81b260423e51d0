"""Lists of conversations, as users see them and refer to them."""

from __future__ import annotations

from hermes.actors.session.state import SessionState
from hermes.messages import Session, SessionSummary

MAX_SEARCHED = 200


async def own_sessions(state: SessionState) -> list[SessionSummary]:
    """Return the latest sessions of the key."""
    return await state.context.store.list_sessions(session_key=state.key, limit=MAX_SEARCHED)


async def find_session(state: SessionState, wanted: str) -> Session | None:
    """Return the session of the key with this number in its list, id, title or unique id prefix.

    If there is none, a title may match without regard to case.
    """
    own = await own_sessions(state)
    if is_number(wanted) and 0 < int(wanted) <= len(own):
        return own[int(wanted) - 1].session
    if (match := await state.context.store.find(wanted, session_key=state.key)) is not None:
        return match.session
    title = wanted.lower()
    return next((s.session for s in own if (s.session.title or "").lower() == title), None)


def session_line(number: int, summary: SessionSummary) -> str:
    """Return the line of a conversation in a numbered list."""
    name = summary.session.title or summary.preview or summary.session.id
    return f"{number}. {name} ({summary.session.message_count} messages)"


def is_number(text: str) -> bool:
    """Whether a text is a plain decimal number."""
    return text.isascii() and text.isdigit()
