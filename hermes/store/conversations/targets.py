"""Find a session by what users call it: its id, a unique prefix of its id, or its title."""

from __future__ import annotations

from hermes.messages import SessionMatch
from hermes.store.conversations import codec, lineage, ownership, sessions, titles
from hermes.store.transaction import Transaction


def find(tx: Transaction, target: str, *, session_key: str | None = None) -> SessionMatch | None:
    """Return the conversation with this session id, title or unique prefix of an id.

    With `session_key`, only conversations that belong to the key are found. A session that has no
    row yet is found by its full id only. Raises `AmbiguousTitle` if several sessions have the
    title.
    """
    session_id = resolve_session(tx, target, session_key=session_key)
    ids = [target] if session_id is None else lineage.get_compression_lineage(tx, session_id)
    keys = [row[0] for row in tx.all(
        "SELECT session_key FROM routes WHERE session_id IN (SELECT value FROM json_each(?)) "
        "ORDER BY 1", codec.encode_json(ids),
    )]  # fmt: skip
    if session_id is None and not (keys if session_key is None else session_key in keys):
        return None
    return SessionMatch(sessions.get_session(tx, ids[-1]), tuple(ids), tuple(keys))


def resolve_session(tx: Transaction, target: str, *, session_key: str | None = None) -> str | None:
    """Return the session with this id, else the tip of a title, else by a unique prefix of its id.

    With `session_key`, only sessions that belong to the key are found. Raises `AmbiguousTitle` if
    several sessions have the title.
    """
    return (
        _with_id(tx, target, session_key)
        or titles.resolve_session_by_title(tx, target, session_key=session_key)
        or _with_prefix(tx, target, session_key)
    )


def resolve_session_id(
    tx: Transaction, prefix: str, *, session_key: str | None = None
) -> str | None:
    """Return the session with this id, or the only one whose id begins with `prefix`.

    With `session_key`, only sessions that belong to the key are found.
    """
    return _with_id(tx, prefix, session_key) or _with_prefix(tx, prefix, session_key)


def _with_id(tx: Transaction, session_id: str, session_key: str | None) -> str | None:
    belongs, values = ownership.only(session_key)
    row = tx.one(f"SELECT s.id FROM sessions s WHERE s.id = ?{belongs}", session_id, *values)
    return None if row is None else str(row[0])


def _with_prefix(tx: Transaction, prefix: str, session_key: str | None) -> str | None:
    if not prefix:
        return None
    belongs, values = ownership.only(session_key)
    # Ids are sorted by code point, so the ids with this prefix form one range.
    rows = tx.all(
        f"SELECT s.id FROM sessions s WHERE s.id > ? AND s.id < ?{belongs} ORDER BY s.id LIMIT 2",
        prefix,
        prefix + chr(0x10FFFF),
        *values,
    )
    return str(rows[0][0]) if len(rows) == 1 else None
