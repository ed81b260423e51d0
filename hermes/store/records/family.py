"""How the sessions of a conversation came about, and what their model calls used."""

from __future__ import annotations

from hermes.errors import UnknownSession
from hermes.messages import (
    CachedConversation,
    LineageSession,
    ModelCall,
    Replacement,
    StoredMessage,
)
from hermes.store.conversations import codec, lineage, listing, routes, sessions
from hermes.store.transaction import ALL_ROWS, Row, Transaction
from hermes.transcript.compaction import is_summary

MAX_SESSIONS = 500
FIRST_ROWS = 40
"""A summary is among so many first rows of its session: only a few messages are kept before it."""
LATEST = 20
"""How many sessions of a key the search begins with, beside the current one."""
# UNION drops what was found before, so that the search ends; parents and children are followed.
_FAMILY = f"""
WITH RECURSIVE latest (no) AS (
  SELECT s.no FROM sessions s WHERE {lineage.BELONGS} ORDER BY s.no DESC LIMIT {LATEST}
), family (no) AS (
  SELECT no FROM (SELECT no FROM sessions WHERE id = ? UNION SELECT no FROM latest) AS first
  UNION
  SELECT r.no FROM family f JOIN sessions s ON s.no = f.no
  JOIN sessions r ON r.parent_no = s.no OR r.no = s.parent_no
)
SELECT s.no, s.id, p.id, s.kind, s.subagent, s.title, s.session_key, s.started_at, s.last_active,
  s.ended_at, s.end_reason, s.message_count, s.cost
FROM sessions s LEFT JOIN sessions p ON p.no = s.parent_no
WHERE s.no IN (SELECT no FROM family LIMIT ?) ORDER BY s.no
"""
_CALLS = (
    "SELECT u.id, s.id, u.turn_id, u.purpose, u.model, u.input_tokens, u.cache_read_tokens, "
    "u.cache_write_tokens, u.output_tokens, u.cost, u.created_at, i.reply ->> '$.build_reason' "
    "FROM usage u JOIN sessions s ON s.no = u.session_no LEFT JOIN inbox i ON i.id = u.turn_id "
    "WHERE s.id IN (SELECT value FROM json_each(?)) AND u.id < ? ORDER BY u.id DESC LIMIT ?"
)
_CACHES = (
    "SELECT r.session_key, s.id, s.title, s.api_call_count, s.input_tokens, s.cache_read_tokens, "
    "s.cache_write_tokens, r.last_active FROM routes r JOIN sessions s ON s.id = r.session_id "
    "WHERE s.api_call_count > 0 ORDER BY r.last_active DESC LIMIT ?"
)


def session_family(tx: Transaction, session_key: str) -> list[LineageSession]:
    """Return the sessions of a key, those they came from, and those made from them; oldest first.

    At most `MAX_SESSIONS` are returned.
    """
    route = routes.get_route(tx, session_key)
    current = None if route is None else lineage.get_compression_tip(tx, route.session_id)
    rows = tx.all(_FAMILY, session_key, current, MAX_SESSIONS)
    return [_session(tx, row, current) for row in rows]


def _session(tx: Transaction, row: Row, current: str | None) -> LineageSession:
    no, session_id, parent, kind, subagent, title, key, started, active, ended, reason, *rest = row
    messages, cost = rest
    keys = tx.all("SELECT session_key FROM routes WHERE session_id = ? ORDER BY 1", session_id)
    return LineageSession(
        session_id=session_id,
        parent=parent,
        kind="subagent" if subagent else kind,
        title=title,
        session_key=key,
        started_at=started,
        last_active=active,
        ended_at=ended,
        end_reason=reason,
        messages=messages,
        cost=cost,
        current=session_id == current,
        keys=tuple(key for (key,) in keys),
        summary=_replacement(tx, no, parent) if kind == "compression" and parent else None,
    )


def _replacement(tx: Transaction, no: int, parent: str) -> Replacement | None:
    """Return what the summary of a session replaced; None if it has none.

    The rows before the summary and after it are copies of rows of the parent.
    """
    low, high = codec.bounds(no)
    rows = codec.to_messages(
        tx.all(
            f"SELECT {codec.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? "
            "ORDER BY id LIMIT ?",
            low, high, FIRST_ROWS,
        )
    )  # fmt: skip
    at = next((number for number, row in enumerate(rows) if is_summary(row)), None)
    if at is None:
        return None
    first, last, count = _replaced(tx, parent, at, rows[at + 1 : at + 2])
    return Replacement(message=rows[at].id, session_id=parent, first=first, last=last, count=count)


def _replaced(
    tx: Transaction, parent: str, kept: int, following: list[StoredMessage]
) -> tuple[int | None, int | None, int]:
    """Return the first and the last row of the parent that were replaced, and how many there are.

    `kept` rows at the beginning stayed, and those from the one that equals `following` on.
    """
    low, high = codec.bounds(sessions.require(tx, parent))
    end = high + 1
    for row in following:
        found = tx.one(
            "SELECT max(id) FROM all_messages WHERE id BETWEEN ? AND ? AND live = 1 AND role = ? "
            "AND created_at = ? AND coalesce(content, '') = ?",
            low, high, row.role, row.timestamp, row.content or "",
        )  # fmt: skip
        end = end if found is None or found[0] is None else found[0]
    first, last, count = tx.all(
        "SELECT min(id), max(id), count(*) FROM (SELECT id FROM all_messages "
        f"WHERE id BETWEEN ? AND ? AND live = 1 ORDER BY id LIMIT {ALL_ROWS} OFFSET ?) AS rest",
        low, end - 1, kept,
    )[0]  # fmt: skip
    return first, last, count


def summary_rows(
    tx: Transaction, session_id: str, *, limit: int = 200
) -> tuple[Replacement, StoredMessage, list[StoredMessage]] | None:
    """Return what the summary of a session replaced, the summary, and the replaced rows.

    None if the session has no summary; `limit` bounds the rows. Raises `UnknownSession`.
    """
    row = tx.one(
        "SELECT s.no, p.id FROM sessions s LEFT JOIN sessions p ON p.no = s.parent_no "
        "WHERE s.id = ?",
        session_id,
    )
    if row is None:
        raise UnknownSession(f"there is no session {session_id!r}")
    no, parent = row
    found = None if parent is None else _replacement(tx, no, parent)
    if found is None:
        return None
    summary = codec.to_messages(
        tx.all(f"SELECT {codec.COLUMNS} FROM all_messages WHERE id = ?", found.message)
    )[0]
    if found.first is None or found.last is None:
        return found, summary, []
    page = listing.get_page(tx, found.session_id, after=found.first - 1, limit=limit)
    return found, summary, [each for each in page if each.id <= found.last]


def model_calls(
    tx: Transaction, session_key: str, *, before: int | None = None, limit: int = 100
) -> list[ModelCall]:
    """Return the model calls of a key's current conversation, the latest first.

    `before` is the id of the last one of the page before.
    """
    route = routes.get_route(tx, session_key)
    if route is None:
        return []
    ids = lineage.get_compression_lineage(tx, route.session_id)
    rows = tx.all(_CALLS, codec.encode_json(ids), 1 << 62 if before is None else before, limit)
    names = ModelCall.__struct_fields__
    return [ModelCall(**dict(zip(names, row, strict=True))) for row in rows]


def cached_conversations(tx: Transaction, limit: int = 100) -> list[CachedConversation]:
    """Return the conversations that called a model, and what came from caches; latest first."""
    names = CachedConversation.__struct_fields__
    rows = tx.all(_CACHES, limit)
    return [CachedConversation(**dict(zip(names, row, strict=True))) for row in rows]
