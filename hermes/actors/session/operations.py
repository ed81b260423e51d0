"""Operations on a conversation besides turns. They run in its actor's task, except for titles.

A reply to a command is passed as `answer` and written in the transaction of the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from msgspec.structs import replace

from hermes.actors.compression.types import Compressed, CompressionFailed, result_text
from hermes.actors.session import compression
from hermes.actors.session.state import SessionState
from hermes.errors import HermesError, UnknownSession
from hermes.events import MessagePosted, SessionMoved, TitleChanged
from hermes.messages import (
    ChangeReason,
    Head,
    InboxReply,
    JsonObject,
    Message,
    Route,
    SessionChange,
    Source,
    StoredMessage,
    Title,
)
from hermes.outbound import outbox_rows
from hermes.redaction.slices import redact_text
from hermes.transcript.compaction import is_question
from hermes.user_code import contained


async def new_session(
    state: SessionState,
    title: str | None = None,
    *,
    platform: str | None = None,
    answer: InboxReply | None = None,
) -> SessionChange:
    """End the current session and start a new one."""
    old = await _current(state)
    route = await state.store.new_session(state.key, title=title, platform=platform, answer=answer)
    return _moved(state, "new", old, route, Head(route.session_id))


async def switch(
    state: SessionState,
    target: str,
    *,
    any_key: bool = False,
    answer: InboxReply | None = None,
) -> SessionChange:
    """Continue with another session; with `any_key`, it may belong to another key."""
    old = await _current(state)
    store = state.store
    route = await store.switch(state.key, target, any_key=any_key, answer=answer)
    return _moved(state, "switch", old, route, await state.store.head(route.session_id))


async def branch(
    state: SessionState,
    title: str | None = None,
    *,
    before: int | None = None,
    answer: InboxReply | None = None,
) -> SessionChange:
    """Continue in a copy of the conversation, or of what precedes the message `before`."""
    if await _current(state) is None:
        return _nothing_to_branch(state, before)
    head = await state.locate()
    child = await state.store.branch(
        head.session_id, title=title, session_key=state.key, before=before, answer=answer
    )
    state.forget()
    await state.locate()
    state.context.bus.publish(state.key, None, SessionMoved(head.session_id, child, "branch"))
    return SessionChange(
        session_key=state.key, reason="branch", old_session_id=head.session_id, session_id=child
    )


def _nothing_to_branch(state: SessionState, before: int | None) -> SessionChange:
    if before is not None:
        raise ValueError(f"the current session has no message {before}")
    return _unchanged(state, "branch", state.context.texts.nothing_to_branch)


async def branch_to(
    state: SessionState, other_key: str, title: str | None, *, before: int | None = None
) -> SessionChange:
    """Point another key at a copy of the conversation; this one stays as it is."""
    if await _current(state) is None:
        return _nothing_to_branch(state, before)
    store, head = state.store, await state.locate()
    old = await store.route_head(other_key)
    child = await store.branch(head.session_id, title=title, session_key=other_key, before=before)
    return SessionChange(
        session_key=other_key,
        reason="branch",
        old_session_id=None if old is None else old[1].session_id,
        session_id=child,
    )


async def close(state: SessionState, reason: str) -> SessionChange:
    """End the current session; the next message starts a new one."""
    await state.refresh()
    ended = await state.store.close_session(state.key, reason=reason)
    state.forget()
    new = await _current(state)
    if ended is not None and new is not None:
        state.context.bus.publish(state.key, None, SessionMoved(ended, new, "session_close"))
    return SessionChange(
        session_key=state.key,
        reason="close",
        old_session_id=ended,
        session_id=new,
        changed=ended is not None,
        detail=None if ended is not None else state.context.texts.nothing_to_close,
    )


async def delete(state: SessionState, session_id: str) -> int:
    """Delete a conversation of the key with all its compressed sessions.

    Returns how many messages were deleted. The key starts a new session if it was the current one.
    """
    store = state.store
    found = await store.find(session_id, session_key=state.key)
    if found is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    # The newest session last: if this is cut short, the rest can still be found and deleted.
    deleted = sum([await store.delete_session(each) for each in found.lineage])
    state.forget()
    return deleted


async def undo(state: SessionState, exchanges: int) -> SessionChange:
    """Take back the last user messages and their replies."""
    if await _current(state) is None:
        return _unchanged(state, "undo", state.context.texts.nothing_to_undo)
    head = await state.locate()
    transcript = await state.store.load(head.session_id)
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
        detail=None if removed else state.context.texts.nothing_to_undo,
    )


async def rewind(
    state: SessionState, head: Head, message_id: int, *, answer: InboxReply | None = None
) -> int:
    """Take back a message and all after it. Returns how many rows."""
    rows = await state.store.rewind(head.session_id, message_id, answer=answer)
    now = await state.store.head(head.session_id)
    state.cache.release(head.session_id)
    if now.revision == head.revision + 1:
        state.cache.changed(head, now)
    state.learn(state.epoch, now)
    return len(rows)


async def post(
    state: SessionState, text: str, source: Source | None, parts: Sequence[JsonObject] = ()
) -> StoredMessage:
    """Append a message of the assistant to the conversation and deliver it."""
    store = state.store
    text = await _redacted(state, text)
    source = source or await store.last_source(state.key) or Source()
    replies = outbox_rows(source, state.key, "", text, "post")
    if parts:
        replies = [replace(row, body={**row.body, "files": parts}) for row in replies]
    posted = await store.post(state.key, text, source, replies, parts)
    state.cache.appended(posted.before, posted.message, posted.head)
    state.moved(posted.epoch, posted.head)
    event = MessagePosted(posted.head.session_id, posted.message)
    state.context.bus.publish(state.key, None, event)
    if posted.title is not None:
        publish_title(state, posted.head.session_id, posted.title)
    return posted.message


async def add_messages(
    state: SessionState, rows: Sequence[Message], source: Source
) -> list[StoredMessage]:
    """Append messages of a history to the conversation; no turn answers them."""
    added = await state.store.add_messages(state.key, rows, source)
    state.forget()
    return added


async def _redacted(state: SessionState, text: str) -> str:
    redact = state.context.redact
    if redact is None:
        return text
    with contained() as caught:
        text = await redact_text(text, redact)
    if caught.error is not None:
        raise HermesError("nothing was posted, because the redaction failed") from caught.error
    return text


async def compress(
    state: SessionState, focus: str | None, keep_exchanges: int | None, attempts: int
) -> SessionChange:
    """Summarize the older part of the conversation and continue in a child session.

    `attempts` is how many attempts the runtime had made when this was asked for.
    """
    old = await _current(state)
    if old is None:
        texts = state.context.texts
        reason = texts.not_compressed.format(reason=texts.nothing_to_compress)
        return _unchanged(state, "compress", reason)
    result = await compression.on_request(
        state,
        uuid4().hex,
        lambda past: attempts < past.number,
        focus=focus,
        keep_exchanges=keep_exchanges,
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
    """Return the current session from the store; None if the key has no route yet."""
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
        detail=None if old != route.session_id else state.context.texts.already_there,
    )


# Titles do not wait for a running turn.


async def set_title(state: SessionState, title: str) -> Title:
    """Set the title; it is pending until the session has a row. Returns it as it is stored."""
    session_id, stored = await state.store.set_title(state.key, title)
    if stored.text is not None and not stored.pending:
        publish_title(state, session_id, stored.text)
    return stored


def publish_title(state: SessionState, session_id: str, title: str) -> None:
    """Tell subscribers that a session has a new title."""
    state.context.bus.publish(state.key, None, TitleChanged(session_id, title))
