"""Find and list conversations; each is one entry, however often it was compressed."""

from __future__ import annotations

from hermes.messages import Session, SessionMatch, SessionSummary
from hermes.store.conversations import codec, lineage, sessions, titles
from hermes.store.transaction import Transaction, Value

PREVIEW = 60
# A conversation started when the first session of its lineage did.
_BEGINNING = """(
  WITH RECURSIVE line (parent_no, kind, started_at, depth) AS (
    SELECT s.parent_no, s.kind, s.started_at, 0
    UNION ALL
    SELECT p.parent_no, p.kind, p.started_at, depth + 1 FROM line JOIN sessions p
    ON p.no = line.parent_no WHERE line.kind = 'compression'
  ) SELECT started_at FROM line ORDER BY depth DESC LIMIT 1)"""
_ORDERS = {"last_active": "s.last_active", "started_at": _BEGINNING}


def list_sessions(  # noqa: PLR0913 - the filters of a list
    tx: Transaction,
    *,
    source: str | None = None,
    session_key: str | None = None,
    user_id: str | None = None,
    title_contains: str | None = None,
    ended: bool | None = None,
    min_messages: int = 0,
    order: str = "last_active",
    limit: int = 20,
    offset: int = 0,
) -> list[SessionSummary]:
    """Return conversations, sorted by last activity or by start, the latest first.

    A compressed conversation is listed once, with its latest session. All filters must match;
    `session_key` finds all sessions that belong to the key, and `title_contains` ignores case.
    Raises `ValueError` for an unknown `order`.
    """
    if order not in _ORDERS:
        raise ValueError(f"order is 'last_active' or 'started_at', not {order!r}")
    filters: dict[str, Value] = {
        "s.source = ?": source,
        lineage.BELONGS: session_key,
        "s.user_id = ?": user_id,
        "instr(lower(s.title), lower(?)) > 0": title_contains,
        "(s.ended_at IS NOT NULL) = ?": None if ended is None else int(ended),
    }
    given = {sql: value for sql, value in filters.items() if value is not None}
    found = tx.all(
        sessions.SELECT + "WHERE NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = s.no "
        "AND c.kind = 'compression') AND s.message_count >= ?"
        + "".join(f" AND {sql}" for sql in given)
        + f" ORDER BY {_ORDERS[order]} DESC, s.no DESC LIMIT ? OFFSET ?",
        min_messages,
        *given.values(),
        limit,
        offset,
    )
    return [_summary(tx, sessions.from_row(row)) for row in found]


def find(tx: Transaction, target: str, *, session_key: str | None = None) -> SessionMatch | None:
    """Return the conversation with this session id, title or unique prefix of an id.

    With `session_key`, only conversations that belong to the key are found. A session that has no
    row yet is found by its full id only. Raises `AmbiguousTitle` if several sessions have the
    title.
    """
    session_id = titles.resolve_session(tx, target, session_key=session_key)
    ids = [target] if session_id is None else lineage.get_compression_lineage(tx, session_id)
    keys = [row[0] for row in tx.all(
        "SELECT session_key FROM routes WHERE session_id IN (SELECT value FROM json_each(?)) "
        "ORDER BY 1", codec.encode_json(ids),
    )]  # fmt: skip
    if session_id is None and not (keys if session_key is None else session_key in keys):
        return None
    return SessionMatch(sessions.get_session(tx, ids[-1]), tuple(ids), tuple(keys))


def _summary(tx: Transaction, session: Session) -> SessionSummary:
    root = lineage.get_conversation_root(tx, session.id)
    row = tx.one("SELECT no, started_at FROM sessions WHERE id = ?", root)
    assert row is not None
    return SessionSummary(session, root, row[1], _preview(tx, row[0]))


def _preview(tx: Transaction, no: int) -> str:
    """Return the start of the first user message, on one line."""
    text = _first_user_text(tx, "messages WHERE live = 1 AND", no)
    if text is None:
        text = _first_user_text(tx, "arrivals WHERE", no)
    line = " ".join((text or "").split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def _first_user_text(tx: Transaction, table: str, no: int) -> str | None:
    row = tx.one(
        f"SELECT substr(ltrim(content, char(9, 10, 13, 32)), 1, 400) FROM {table} "
        "id BETWEEN ? AND ? AND role = 'user' AND content IS NOT NULL ORDER BY id LIMIT 1",
        *codec.bounds(no),
    )
    return None if row is None else row[0]
