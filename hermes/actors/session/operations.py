"""Operations on a conversation besides turns. They run in its actor's task, except for titles.

A reply to a command is passed as `answer` and written in the transaction of the change.
"""

from __future__ import annotations

import logging
from uuid import uuid4

from hermes.actors.compression.types import Compressed, CompressionFailed, result_text
from hermes.actors.session import compression
from hermes.actors.session.state import SessionState
from hermes.errors import HermesError
from hermes.events import MessagePosted, SessionMoved, TitleChanged
from hermes.messages import (
    ChangeReason,
    Head,
    InboxReply,
    Route,
    SessionChange,
    Source,
    StoredMessage,
    Title,
)
from hermes.outbound import outbox_rows
from hermes.transcript.compaction import is_question
from hermes.user_code import contained, loggable

log: logging.Logger = logging.getLogger(__name__)


async def new_session(
    state: SessionState,
    title: str | None = None,
    *,
    platform: str | None = None,
    answer: InboxReply | None = None,
) -> SessionChange:
    """End the current session and start a new one."""
    old = await _current(state)
    route = await state.context.store.new_session(
        state.key, title=title, platform=platform, answer=answer
    )
    return _moved(state, "new", old, route, Head(route.session_id))


async def switch(
    state: SessionState, target: str, *, answer: InboxReply | None = None
) -> SessionChange:
    """Continue with another session."""
    old = await _current(state)
    route = await state.context.store.switch(state.key, target, answer=answer)
    return _moved(state, "switch", old, route, await state.context.store.head(route.session_id))


async def branch(
    state: SessionState, title: str | None = None, *, answer: InboxReply | None = None
) -> SessionChange:
    """Continue in a copy of the conversation."""
    if await _current(state) is None:
        return _unchanged(state, "branch", "there is nothing to branch from")
    head = await state.locate(refresh=True)
    child = await state.context.store.branch(
        head.session_id, title=title, session_key=state.key, answer=answer
    )
    state.forget()
    await state.locate()
    state.context.bus.publish(state.key, None, SessionMoved(head.session_id, child, "branch"))
    return SessionChange(
        session_key=state.key, reason="branch", old_session_id=head.session_id, session_id=child
    )


async def branch_to(state: SessionState, other_key: str, title: str | None) -> SessionChange:
    """Point another key at a copy of the conversation; this one stays as it is."""
    if await _current(state) is None:
        return _unchanged(state, "branch", "there is nothing to branch from")
    store, head = state.context.store, await state.locate(refresh=True)
    before = await store.get_route(other_key)
    child = await store.branch(head.session_id, title=title, session_key=other_key)
    return SessionChange(
        session_key=other_key,
        reason="branch",
        old_session_id=None if before is None else before.session_id,
        session_id=child,
    )


async def close(state: SessionState, reason: str) -> SessionChange:
    """End the current session; the next message starts a new one."""
    ended = await state.context.store.close_session(state.key, reason=reason)
    state.forget()
    return SessionChange(
        session_key=state.key,
        reason="close",
        old_session_id=ended,
        session_id=await _current(state),
        changed=ended is not None,
        detail=None if ended is not None else "there is no session to end",
    )


async def undo(state: SessionState, exchanges: int) -> SessionChange:
    """Take back the last user messages and their replies."""
    if await _current(state) is None:
        return _unchanged(state, "undo", "there is nothing to take back")
    head = await state.locate(refresh=True)
    transcript = await state.context.store.load(head.session_id)
    questions = [row.id for row in transcript.messages if is_question(row)]
    removed = 0
    if questions and exchanges > 0:
        removed = await rewind(state, transcript.head, questions[-exchanges:][0])
    return SessionChange(
        session_key=state.key,
        reason="undo",
        old_session_id=head.session_id,
        session_id=head.session_id,
        changed=removed > 0,
        removed=removed,
        detail=None if removed else "there is nothing to take back",
    )


async def rewind(
    state: SessionState, head: Head, message_id: int, *, answer: InboxReply | None = None
) -> int:
    """Take back a message and all after it. Returns how many rows."""
    rows = await state.context.store.rewind(head.session_id, message_id, answer=answer)
    now = await state.context.store.head(head.session_id)
    state.cache.release(head.session_id)
    if now.revision == head.revision + 1:
        state.cache.changed(head, now)
    state.learn(state.epoch, now)
    return len(rows)


async def post(state: SessionState, text: str, source: Source | None) -> StoredMessage:
    """Append a text of the assistant to the conversation and deliver it."""
    store = state.context.store
    text = _redacted(state, text)
    source = source or await store.last_source(state.key) or Source()
    replies = outbox_rows(source, state.key, "", text, "post")
    posted = await store.post(state.key, text, source, replies)
    state.cache.appended(posted.before, posted.message, posted.head)
    state.moved(posted.epoch, posted.head)
    event = MessagePosted(posted.head.session_id, posted.message)
    state.context.bus.publish(state.key, None, event)
    if state.pending_title:
        await try_pending_title(state)
    return posted.message


def _redacted(state: SessionState, text: str) -> str:
    redact = state.context.redact
    if redact is None:
        return text
    with contained() as caught:
        text = redact(text)
    if caught.error is not None:
        raise HermesError("nothing was posted, because the redaction failed") from caught.error
    return text


async def compress(
    state: SessionState, focus: str | None, keep_exchanges: int | None, asked_at: float
) -> SessionChange:
    """Summarize the older part of the conversation and continue in a child session."""
    old = await _current(state)
    if old is None:
        return _unchanged(state, "compress", "there is nothing to compress")
    result = await compression.on_request(
        state, uuid4().hex, asked_at, focus=focus, keep_exchanges=keep_exchanges
    )
    return SessionChange(
        session_key=state.key,
        reason="compress",
        old_session_id=old,
        session_id=state.session_id,
        changed=isinstance(result, Compressed),
        failed=isinstance(result, CompressionFailed),
        tokens_before=result.before if isinstance(result, Compressed) else None,
        tokens_after=result.after if isinstance(result, Compressed) else None,
        detail=result_text(result, state.context.texts),
    )


async def _current(state: SessionState) -> str | None:
    """Return the current session; None if the key has no route yet."""
    if state.head is None:
        await state.refresh()
    return state.session_id


def _unchanged(state: SessionState, reason: ChangeReason, detail: str) -> SessionChange:
    """Return that nothing was done for a key without a session."""
    return SessionChange(
        session_key=state.key,
        reason=reason,
        old_session_id=None,
        session_id=None,
        changed=False,
        detail=detail,
    )


def _moved(
    state: SessionState, reason: ChangeReason, old: str | None, route: Route, head: Head
) -> SessionChange:
    state.learn(route.epoch, head, route)
    if old != route.session_id:
        name = "session_reset" if reason == "new" else "session_switch"
        state.context.bus.publish(state.key, None, SessionMoved(old, route.session_id, name))
    return SessionChange(
        session_key=state.key,
        reason=reason,
        old_session_id=old,
        session_id=route.session_id,
        changed=old != route.session_id,
        detail=None if old != route.session_id else "this is the current session already",
    )


# Titles do not wait for a running turn.


async def get_title(state: SessionState) -> Title:
    """Return the title. A pending one is applied first, if the session has a row by now."""
    store = state.context.store
    route = await store.get_route(state.key)
    if route is None:
        return Title(None)
    session = await store.get_session(route.session_id)
    if session is None:
        return Title(route.pending_title, pending=route.pending_title is not None)
    if route.pending_title is None:
        return Title(session.title)
    return Title(await apply_title(state) or session.title)


async def apply_title(state: SessionState) -> str | None:
    """Give the session its pending title; a title that is refused is dropped."""
    applied = await state.context.store.apply_pending_title(state.key)
    state.pending_title = False
    if applied is not None:
        changed = TitleChanged(state.session_id or "", applied)
        state.context.bus.publish(state.key, None, changed)
    return applied


async def try_pending_title(state: SessionState) -> None:
    """Give the session its pending title after a turn, which must not fail because of it."""
    try:
        await apply_title(state)
    except (HermesError, RuntimeError) as error:
        log.warning("the title of %s is still pending: %s", state.key, loggable(error))


async def set_title(state: SessionState, title: str) -> None:
    """Set the title of the current session; it is pending until the session has a row."""
    store = state.context.store
    route = await store.get_route(state.key)
    if route is None or not await store.set_session_title(route.session_id, title):
        await store.set_pending_title(state.key, title)
        state.pending_title = True
        return
    if route.pending_title is not None:
        await store.set_pending_title(state.key, None)
        state.pending_title = False
    session = await store.get_session(route.session_id)
    if session is not None and session.title is not None:
        state.context.bus.publish(state.key, None, TitleChanged(session.id, session.title))
