"""Branches of conversations that API clients name.

A client may continue a conversation from an earlier message, or with messages that Hermes has never
seen. Each such branch has a session_key of its own, so that nothing waits for the turns of another
one, and its session names the session that it was copied from.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes.errors import HistoryChanged
from hermes.messages import Message, Source
from hermes.store.conversations import codec, inbox, messages, routes, sessions, titles
from hermes.store.transaction import Transaction


def require_last(tx: Transaction, session_key: str, message_id: int) -> None:
    """Raise `HistoryChanged` unless this is the last message of a key, and none waits.

    The id 0 stands for a conversation without messages.
    """
    found = routes.current(tx, session_key)
    last = 0 if found is None else _last(tx, found[1].session_id)
    if last != message_id or inbox.count_open(tx, session_key):
        raise HistoryChanged(f"{session_key} has other messages than the client expects")


def _last(tx: Transaction, session_id: str) -> int:
    if sessions.number(tx, session_id) is None:
        return 0
    rows = messages.latest(tx, session_id, 1)
    return rows[-1].id if rows else 0


def open_branch(
    tx: Transaction,
    session_key: str,
    source: Source,
    rows: Sequence[Message] = (),
    *,
    of: str | None = None,
    upto: int = 0,
) -> int:
    """Start the session of a key with earlier messages, and return the id of the last one.

    These are the live messages up to `upto` of the session that has this message, or else none of
    the current session of the key `of`, and then `rows`. The session is a branch of that one.
    Raises `HistoryChanged` if the key has messages, and `UnknownSession` if there is no such
    session.
    """
    require_last(tx, session_key, 0)
    route = routes.ensure_route(tx, session_key)
    if sessions.number(tx, route.session_id) is not None:  # all of its messages were taken back
        routes.assign_session(tx, session_key, tx.new_session_id())
        route = routes.ensure_route(tx, session_key)
    parent = _parent(tx, of, upto)
    session_id = sessions.create_session(
        tx,
        route.session_id,
        source.platform,
        parent_session_id=parent,
        kind="new" if parent is None else "branch",
        user_id=source.user_id,
        session_key=session_key,
        chat_id=source.chat_id,
        chat_type=source.chat_type,
        thread_id=source.thread_id,
    )
    if parent is not None:
        _inherit(tx, parent, session_id, session_key, upto)
    if rows:
        messages.append_rows(tx, session_id, rows)
    return _last(tx, session_id)


def _parent(tx: Transaction, of: str | None, upto: int) -> str | None:
    if upto:
        row = tx.one("SELECT id FROM sessions WHERE no = ?", upto // codec.SPAN)
        return None if row is None else str(row[0])
    route = None if of is None else routes.get_route(tx, of)
    if route is None or sessions.number(tx, route.session_id) is None:
        return None
    return route.session_id


def _inherit(tx: Transaction, parent: str, session_id: str, session_key: str, upto: int) -> None:
    """Copy the messages up to `upto`, and the title with the next number."""
    live = messages.load(tx, parent).messages
    copied = [codec.as_message(row) for row in live if row.id <= upto]
    if copied:
        messages.append_rows(tx, session_id, copied)
    original = sessions.get_session(tx, parent)
    if original is not None and original.title is not None:
        name = titles.unused_title(tx, original.title, original.session_key, session_key)
        titles.set_session_title(tx, session_id, name)


def list_branches(tx: Transaction, prefix: str, limit: int = 30) -> list[str]:
    """Return the session keys that begin with this text, last active first."""
    rows = tx.all(
        "SELECT session_key FROM routes WHERE session_key > ?1 AND session_key < ?1 || ?2 "
        "ORDER BY last_active DESC, session_key LIMIT ?3",
        prefix,
        chr(0x10FFFF),
        limit,
    )
    return [row[0] for row in rows]
