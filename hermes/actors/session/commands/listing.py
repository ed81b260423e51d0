"""Answers of commands: lists of conversations, their state and costs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from hermes.actors.session.commands.agents import agent_facts
from hermes.actors.session.compression import used_tokens
from hermes.actors.session.following import count_waiting
from hermes.actors.session.inbox import SessionInbox
from hermes.actors.session.state import SessionState
from hermes.errors import AmbiguousTitle
from hermes.messages import Session, SessionSummary, Status, Usage
from hermes.texts import Texts

MAX_SEARCHED = 200
MAX_LISTED = 10
MAX_DIGITS = 10


async def own_sessions(state: SessionState) -> list[SessionSummary]:
    """Return the latest sessions of the key."""
    return await state.store.list_sessions(session_key=state.key, limit=MAX_SEARCHED)


async def find_session(state: SessionState, wanted: str) -> Session | str:
    """Return the session of the key with this number in its list, id, title or unique id prefix.

    If there is none, a title may match without regard to case. If nothing matches, or more than
    one session, returns a text for the user that says so and lists the matches.
    """
    own, texts = await own_sessions(state), state.context.texts
    if is_number(wanted) and len(wanted) < MAX_DIGITS and 0 < int(wanted) <= len(own):
        return own[int(wanted) - 1].session
    try:
        match = await state.store.find(wanted, session_key=state.key)
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


def session_line(
    number: int, summary: SessionSummary, texts: Texts, *, current: bool = False
) -> str:
    """Return the line of a conversation in a numbered list."""
    session = summary.session
    return (texts.current_session_line if current else texts.session_line).format(
        number=number,
        name=session.title or summary.preview or session.id,
        messages=session.message_count,
        date=day(session.last_active),
    )


def day(timestamp: float) -> str:
    """Return a time as a local date with hours and minutes."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))


def status_text(status: Status, texts: Texts) -> str:
    """Return the answer to /status."""
    note = status.compression_note
    session = texts.status_titled_session if status.title else texts.status_session
    activity = texts.status_running if status.busy else texts.status_idle
    context = texts.status_context_note if note else texts.status_context
    lines = [
        session.format(session_id=status.session_id, title=status.title),
        *([texts.status_model.format(model=status.model)] if status.model else []),
        *([texts.status_cost.format(cost=f"{status.cost:.4f}")] if status.cost else []),
        activity.format(messages=status.message_count, waiting=status.waiting),
        context.format(
            tokens=status.context_tokens, window=status.window, compress_at=status.compress_at,
            note=note,
        ),
    ]  # fmt: skip
    return "\n".join(lines)


def usage_text(calls: Sequence[Usage], texts: Texts) -> str:
    """Return the answer to /usage."""
    cost = sum(each.cost or 0.0 for each in calls)
    many = texts.usage_cost if cost else texts.usage_tokens
    one = texts.usage_cost_one if cost else texts.usage_tokens_one
    text = (one if len(calls) == 1 else many).format(
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


async def read_status(state: SessionState, inbox: SessionInbox) -> Status:
    """Return the status, without `busy`."""
    compressor = state.context.compressor
    status = Status(
        session_key=state.key, session_id=None, title=None, message_count=0, busy=False,
        waiting=0, context_tokens=0, compress_at=compressor.limits.compress_at,
        window=compressor.limits.window, builds=state.cache.builds,
    )  # fmt: skip
    found = await state.store.route_head(state.key)
    if found is None:
        return status
    _, head = found
    transcript = await state.cache.transcript(head, keep=False)  # the actor may have ended
    history = await compressor.state_of(head.session_id)
    return replace(
        status,
        session_id=head.session_id,
        title=(await state.store.get_title(state.key)).text,
        message_count=head.message_count,
        waiting=await count_waiting(state.store, state.key, inbox),
        context_tokens=used_tokens(state, transcript),
        compression_note=compressor.suspended(history),
        **await agent_facts(state, head.session_id),
    )
