"""Find and list conversations, one entry each however often it was compressed; and their pages."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import (
    InboxRow,
    Session,
    SessionMatch,
    SessionSummary,
    StoredMessage,
    WaitingMessage,
)
from hermes.store.conversations import codec, inbox, lineage as lineages, routes, sessions, titles
from hermes.store.transaction import ALL_ROWS, Transaction, Value

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
    include_subagents: bool = False,
    include_archived: bool = False,
    order: str = "last_active",
    limit: int = 20,
    offset: int = 0,
) -> list[SessionSummary]:
    """Return conversations, sorted by last activity or by start, the latest first.

    A compressed conversation is listed once, with its latest session. All filters must match;
    `session_key` finds all sessions that belong to the key, and `title_contains` ignores case.
    Sessions of subagents and archived conversations are left out unless they are asked for. Raises
    `ValueError` for an unknown `order`.
    """
    if order not in _ORDERS:
        raise ValueError(f"order is 'last_active' or 'started_at', not {order!r}")
    filters: dict[str, Value] = {
        "s.source = ?": source,
        lineages.BELONGS: session_key,
        "s.user_id = ?": user_id,
        "instr(lower(s.title), lower(?)) > 0": title_contains,
        "(s.ended_at IS NOT NULL) = ?": None if ended is None else int(ended),
    }
    given = {sql: value for sql, value in filters.items() if value is not None}
    found = tx.all(
        sessions.SELECT + "WHERE NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = s.no "
        "AND c.kind = 'compression') AND s.message_count >= ? "
        "AND (?2 OR s.subagent = 0) AND (?3 OR s.archived_at IS NULL)"
        + "".join(f" AND {sql}" for sql in given)
        + f" ORDER BY {_ORDERS[order]} DESC, s.no DESC LIMIT ? OFFSET ?",
        min_messages,
        int(include_subagents),
        int(include_archived),
        *given.values(),
        limit,
        offset,
    )
    return [summary(tx, sessions.from_row(row)) for row in found]


def find(tx: Transaction, target: str, *, session_key: str | None = None) -> SessionMatch | None:
    """Return the conversation with this session id, title or unique prefix of an id.

    With `session_key`, only conversations that belong to the key are found. A session that has no
    row is found by its full id only, also if its key has left it. Raises `AmbiguousTitle` if
    several sessions have the title.
    """
    session_id = titles.resolve_session(tx, target, session_key=session_key)
    ids = [target] if session_id is None else lineages.get_compression_lineage(tx, session_id)
    keys = [row[0] for row in tx.all(
        "SELECT session_key FROM routes WHERE session_id IN (SELECT value FROM json_each(?)) "
        "ORDER BY 1", codec.encode_json(ids),
    )]  # fmt: skip
    if session_id is None and not keys and (left := sessions.left_by(tx, target)) is not None:
        keys = [left]
    if session_id is None and not (keys if session_key is None else session_key in keys):
        return None
    row = tx.one("SELECT no FROM sessions WHERE id = ?", ids[-1])
    owners = [] if row is None else [key for key in titles.keys_of(tx, row[0]) if key is not None]
    return SessionMatch(sessions.get_session(tx, ids[-1]), tuple(ids), tuple(keys), tuple(owners))


def summary(tx: Transaction, session: Session) -> SessionSummary:
    """Return a session as an entry of a list."""
    root = lineages.get_conversation_root(tx, session.id)
    row = tx.one("SELECT no, started_at FROM sessions WHERE id = ?", root)
    assert row is not None
    return SessionSummary(session, root, row[1], _preview(tx, row[0]))


def _preview(tx: Transaction, no: int) -> str:
    """Return the start of the first user message, on one line."""
    text = _first_user_text(tx, "messages WHERE live = 1 AND", no)
    if text is None and tx.has_arrivals:
        text = _first_user_text(tx, "arrivals WHERE", no)
    line = " ".join((text or "").split())
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def _first_user_text(tx: Transaction, table: str, no: int) -> str | None:
    row = tx.one(
        f"SELECT substr(ltrim(content, ?), 1, 400) FROM {table} "
        "id BETWEEN ? AND ? AND role = 'user' AND content IS NOT NULL ORDER BY id LIMIT 1",
        "\t\n\r ",
        *codec.bounds(no),
    )
    return None if row is None else row[0]


# Pages of messages


def get_history(  # noqa: PLR0913 - the filters of a list
    tx: Transaction,
    session_key: str,
    *,
    limit: int | None = None,
    before: int | None = None,
    after: int | None = None,
    lineage: bool = False,
    include_rewound: bool = False,
    include_waiting: bool = False,
) -> list[StoredMessage]:
    """Return the messages of a key's current session; see `get_page` for the arguments.

    With `include_waiting`, the messages that are accepted but not answered follow those that are
    stored, and count as part of the same sequence. A page is read in one transaction, so each
    message is in it at most once. Raises `ValueError` if `after` names a message that does not wait
    any more: what follows it is not known.
    """
    _check_page(limit, before, after)
    route = routes.get_route(tx, session_key)
    tip = "" if route is None else lineages.get_compression_tip(tx, route.session_id)

    def stored(limit: int | None, before: int | None, after: int | None) -> list[StoredMessage]:
        if limit == 0 or sessions.number(tx, tip) is None:
            return []
        return get_page(
            tx, tip, limit=limit, before=before, after=after, lineage=lineage,
            include_rewound=include_rewound,
        )  # fmt: skip

    if after is None:
        waiting = _last_waiting(tx, session_key, before, limit) if include_waiting else []
        before = None if before is None or before < 0 else before
        return stored(_left(limit, waiting), before, None) + waiting
    rows = [] if after < 0 else stored(limit, None, after)
    left = _left(limit, rows)
    return rows + (_next_waiting(tx, session_key, after, left) if include_waiting else [])


def _left(limit: int | None, rows: Sequence[StoredMessage]) -> int | None:
    return None if limit is None else limit - len(rows)


def _last_waiting(
    tx: Transaction, session_key: str, before: int | None, limit: int | None
) -> list[StoredMessage]:
    if before is not None and before >= 0:
        return []
    end = ALL_ROWS if before is None else -before
    most = ALL_ROWS if limit is None else limit
    rows = inbox.waiting_page(tx, session_key, 0, end, most, forward=False)
    return [_waiting(row) for row in rows]


def _next_waiting(
    tx: Transaction, session_key: str, after: int, limit: int | None
) -> list[StoredMessage]:
    if after < 0 and not inbox.all_open(tx, [-after], session_key):
        raise ValueError(f"message {-after} does not wait any more: pass after= a stored message")
    most = ALL_ROWS if limit is None else limit
    rows = inbox.waiting_page(tx, session_key, max(0, -after), ALL_ROWS, most, forward=True)
    return [_waiting(row) for row in rows]


def get_page(  # noqa: PLR0913 - the filters of a list
    tx: Transaction,
    session_id: str,
    *,
    limit: int | None = None,
    before: int | None = None,
    after: int | None = None,
    lineage: bool = False,
    include_rewound: bool = False,
) -> list[StoredMessage]:
    """Return messages of a session in order, at most `limit` of them.

    The page ends right before the message `before`, or begins right after the message `after`;
    with neither, it has the latest messages. Ids never change, so pages stay the same while
    messages are appended. With `lineage`, the sessions that this one continues come first; a
    session after a compression begins with a summary and copies of the messages that were kept.

    Raises `UnknownSession`, and `ValueError` for a `limit` below 1 or if both `before` and `after`
    are given.
    """
    _check_page(limit, before, after)
    numbers = [sessions.require(tx, session_id)]
    if lineage:
        ids = lineages.get_compression_lineage(tx, session_id)
        numbers = [sessions.require(tx, each) for each in ids[: ids.index(session_id) + 1]]
    forward = after is not None
    rows: list[StoredMessage] = []
    # A child is younger than its parent, so the ids increase along the lineage.
    for no in numbers if forward else reversed(numbers):
        low, high = codec.bounds(no)
        low, high = max(low, (after or 0) + 1), high if before is None else min(high, before - 1)
        left = ALL_ROWS if limit is None else limit - len(rows)
        found = _rows(tx, low, high, left, forward=forward, include_rewound=include_rewound)
        rows = rows + found if forward else found + rows
        if len(rows) == limit:
            break
    return rows


def _check_page(limit: int | None, before: int | None, after: int | None) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if before is not None and after is not None:
        raise ValueError("pass only one of before= and after=")


def _rows(
    tx: Transaction, low: int, high: int, limit: int, *, forward: bool, include_rewound: bool
) -> list[StoredMessage]:
    """Return the first or the last messages of a range of ids, in order."""
    found = tx.all(
        f"SELECT {codec.COLUMNS} FROM all_messages WHERE id BETWEEN ? AND ? "
        f"AND (live = 1 OR ? = 1) ORDER BY id {'ASC' if forward else 'DESC'} LIMIT ?",
        low,
        high,
        int(include_rewound),
        limit,
    )
    return codec.to_messages(found if forward else reversed(found))


def _waiting(row: InboxRow) -> WaitingMessage:
    message = row.message
    return WaitingMessage(
        id=-row.inbox_id,
        role=message.role,
        content=message.content,
        timestamp=row.accepted_at,
        platform_message_id=message.platform_message_id,
        parts=message.parts,
        inbox_id=row.inbox_id,
    )
