"""Continue a conversation in a new session: by compression (`rotate`) or as a copy (`branch`)."""

from __future__ import annotations

from typing import TypedDict

from hermes.errors import StoreError
from hermes.messages import InboxReply, JsonObject, Rotated, Rotation, Session, Skipped
from hermes.store.conversations import (
    codec,
    inbox,
    leases,
    lineage,
    messages,
    routes,
    sessions,
    titles,
)
from hermes.store.transaction import Transaction


def rotate(tx: Transaction, rotation: Rotation) -> Rotated | Skipped:
    """End the session by compression and continue it in one child session.

    Rows appended after `upto` are copied to the child. Returns `Skipped` if the session has
    changed otherwise, or if somebody else has compressed it or moved the route. A retry with the
    same `rotation_id` returns the existing child with `repeated` set.
    """
    titles.lock_titles(tx, rotation.session_id)
    tx.lock_session(rotation.session_id)  # nothing is appended until the continuation is there
    row = tx.one("SELECT no, end_reason, rewrites FROM sessions WHERE id = ?", rotation.session_id)
    if row is None:
        return Skipped("unknown session")
    no, end_reason, rewrites = row
    if (child := lineage.compression_child(tx, no)) is not None:
        return _already_rotated(tx, rotation, child[1], child[2])
    if (conflict := _conflict(tx, rotation, end_reason, rewrites)) is not None:
        return conflict
    if rotation.upto and rotation.upto // codec.SPAN != no:
        raise StoreError(f"message {rotation.upto} does not belong to {rotation.session_id}")
    carried = [codec.as_message(m) for m in messages.messages_after(tx, no, rotation.upto)]
    child_id = continue_in(tx, rotation.session_id, rotation.child_session_id)
    tx.run("UPDATE sessions SET rotation_id = ? WHERE id = ?", rotation.rotation_id, child_id)
    if rotation.system_prompt is not None:
        sessions.set_system_prompt(tx, child_id, rotation.system_prompt)
    head, _ = messages.append_rows(tx, child_id, [*rotation.messages, *carried])
    key = rotation.session_key
    epoch = None if key is None else routes.assign_session(tx, key, child_id).epoch
    leases.release(tx, rotation.session_id)
    inbox.close(tx, rotation.answer, child_id)
    return Rotated(child_id, head, epoch, carried=len(carried))


def _already_rotated(
    tx: Transaction, rotation: Rotation, child_id: str, rotation_id: str | None
) -> Rotated | Skipped:
    """Return the result for a session that has a compression child already."""
    if rotation_id != rotation.rotation_id:
        winner = lineage.get_compression_tip(tx, child_id)
        return Skipped("already compressed", winner=winner, compressed=True)
    route = None if rotation.session_key is None else routes.get_route(tx, rotation.session_key)
    epoch = None if route is None else route.epoch
    return Rotated(child_id, sessions.head(tx, child_id), epoch, repeated=True)


def _conflict(
    tx: Transaction, rotation: Rotation, end_reason: str | None, rewrites: int
) -> Skipped | None:
    """Return why the rotation is out of date, or None if it may be applied."""
    if end_reason is not None:
        return Skipped(f"the session has ended ({end_reason})")
    if rewrites != rotation.rewrites:
        return Skipped("the transcript was rewritten meanwhile")
    holder = None if rotation.lease is None else leases.new_holder(tx, rotation.lease)
    if holder is not None:
        return Skipped("the lease was lost", holder=holder)
    if rotation.session_key is None:
        return None
    route = routes.get_route(tx, rotation.session_key)
    moved = route is None or (route.session_id, route.epoch) != (
        rotation.session_id,
        rotation.epoch,
    )
    winner = route.session_id if route is not None else None
    return Skipped("the route has moved", winner=winner) if moved else None


def continue_in(tx: Transaction, session_id: str, child_id: str | None = None) -> str:
    """End the session by compression, create its child, and return the id of the child.

    The child inherits model, system prompt, chat and title (numbered).
    """
    parent = sessions.get_session(tx, session_id)
    assert parent is not None
    if child_id is not None and sessions.number(tx, child_id) is not None:
        raise StoreError(f"session {child_id} already exists; a continuation needs a new id")
    sessions.end_session(tx, session_id, "compression")
    child_id = sessions.create_session(
        tx,
        child_id,
        parent.source,
        parent_session_id=session_id,
        kind="compression",
        **_inherited(parent),
    )
    titles.continue_title(tx, sessions.require(tx, session_id), sessions.require(tx, child_id))
    return child_id


class _Inherited(TypedDict):
    """Fields that a child session takes over from its parent."""

    model: str | None
    model_config: JsonObject | None
    system_prompt: str | None
    user_id: str | None
    session_key: str | None
    chat_id: str | None
    chat_type: str | None
    thread_id: str | None
    cwd: str | None
    profile: str | None


def _inherited(parent: Session) -> _Inherited:
    return {
        "model": parent.model,
        "model_config": parent.model_config,
        "system_prompt": parent.system_prompt,
        "user_id": parent.user_id,
        "session_key": parent.session_key,
        "chat_id": parent.chat_id,
        "chat_type": parent.chat_type,
        "thread_id": parent.thread_id,
        "cwd": parent.cwd,
        "profile": parent.profile,
    }


def branch(
    tx: Transaction,
    session_id: str,
    *,
    title: str | None = None,
    session_key: str | None = None,
    before: int | None = None,
    answer: InboxReply | None = None,
) -> str:
    """Copy the live transcript into a new session, and return its id.

    With `before`, the id of a message, only what precedes it is copied. With `session_key`, the
    copy belongs to that key, and its route moves there. Without a title, the copy gets the title of
    the original with the next number. `answer` closes the inbox rows of the command in the same
    transaction. Raises `ValueError` if the title is too long, if another session of the key has it,
    or if the session has no message `before`.
    """
    parent_no = sessions.require(tx, session_id)
    parent = sessions.get_session(tx, session_id)
    assert parent is not None
    name, key = titles.sanitize_title(title), session_key or parent.session_key
    fields = _inherited(parent)
    fields["session_key"] = key
    child_id = sessions.create_session(
        tx, None, parent.source, parent_session_id=session_id, kind="branch", **fields
    )
    messages.copy_messages(tx, parent_no, child_id, before=before)
    if name is None and parent.title is not None:
        name = titles.unused_title(tx, parent.title, parent.session_key, key)
    titles.set_session_title(tx, child_id, name)
    if session_key is not None:
        routes.switch(tx, session_key, child_id, answer=answer)
    else:
        inbox.close(tx, answer, child_id)
    return child_id
