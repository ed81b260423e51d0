"""Answers of commands: lists of conversations, their state and costs."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.actors.session.state import SessionState
from hermes.errors import AmbiguousTitle
from hermes.messages import Session, SessionSummary, Status, Usage
from hermes.texts import Texts

MAX_SEARCHED = 200
MAX_LISTED = 10
MAX_DIGITS = 10


async def own_sessions(state: SessionState) -> list[SessionSummary]:
    """Return the latest sessions of the key."""
    return await state.context.store.list_sessions(session_key=state.key, limit=MAX_SEARCHED)


async def find_session(state: SessionState, wanted: str) -> Session | str:
    """Return the session of the key with this number in its list, id, title or unique id prefix.

    If there is none, a title may match without regard to case. If nothing matches, or more than
    one session, returns a text for the user that says so and lists the matches.
    """
    own, texts = await own_sessions(state), state.context.texts
    if is_number(wanted) and len(wanted) < MAX_DIGITS and 0 < int(wanted) <= len(own):
        return own[int(wanted) - 1].session
    try:
        match = await state.context.store.find(wanted, session_key=state.key)
    except AmbiguousTitle as error:
        return _ambiguous(wanted, error.session_ids, own, texts)
    if match is not None and match.session is not None:
        return match.session
    named = [each.session for each in own if (each.session.title or "").lower() == wanted.lower()]
    if len(named) == 1:
        return named[0]
    matching = named or [each.session for each in own if each.session.id.startswith(wanted)]
    if matching:
        return _ambiguous(wanted, [each.id for each in matching], own, texts)
    return texts.no_such_session.format(wanted=repr(wanted))


def _ambiguous(wanted: str, ids: Sequence[str], own: Sequence[SessionSummary], texts: Texts) -> str:
    """Return that several sessions match, with their numbers in the list of the key."""
    lines = {each.session.id: session_line(n, each, texts) for n, each in enumerate(own, 1)}
    listed = [lines.get(session_id, session_id) for session_id in ids[:MAX_LISTED]]
    if len(ids) > MAX_LISTED:
        listed.append(texts.more_sessions.format(number=len(ids) - MAX_LISTED))
    return "\n".join([texts.ambiguous_session.format(wanted=repr(wanted)), *listed])


def session_line(number: int, summary: SessionSummary, texts: Texts) -> str:
    """Return the line of a conversation in a numbered list."""
    name = summary.session.title or summary.preview or summary.session.id
    messages = summary.session.message_count
    return texts.session_line.format(number=number, name=name, messages=messages)


def status_text(status: Status, texts: Texts) -> str:
    """Return the answer to /status."""
    note, builds = status.compression_note, status.builds
    session = texts.status_titled_session if status.title else texts.status_session
    activity = texts.status_running if status.busy else texts.status_idle
    context = texts.status_context_note if note else texts.status_context
    lines = [
        session.format(session_id=status.session_id, title=status.title),
        activity.format(messages=status.message_count, waiting=status.waiting),
        context.format(
            tokens=status.context_tokens, window=status.window, compress_at=status.compress_at,
            note=note,
        ),
        (texts.status_builds if builds else texts.status_no_builds).format(
            builds=", ".join(f"{reason} {number}" for reason, number in builds.items())
        ),
    ]  # fmt: skip
    return "\n".join(lines)


def usage_text(calls: Sequence[Usage], texts: Texts) -> str:
    """Return the answer to /usage."""
    cost = sum(each.cost or 0.0 for each in calls)
    text = (texts.usage_cost if cost else texts.usage_tokens).format(
        calls=len(calls),
        input=sum(each.input_tokens for each in calls),
        cached=sum(each.cache_read_tokens for each in calls),
        output=sum(each.output_tokens for each in calls),
        cost=f"{cost:.4f}",
    )
    if unpriced := [each for each in calls if each.cost is None]:
        models = ", ".join(sorted({each.model or "?" for each in unpriced}))
        text += " " + texts.usage_unpriced.format(calls=len(unpriced), models=models)
    return text


def is_number(text: str) -> bool:
    """Whether a text is a plain decimal number."""
    return text.isascii() and text.isdigit()
