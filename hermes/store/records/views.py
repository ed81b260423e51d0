"""Conversations as the clients of an API see them: lists, states and usage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hermes.messages import (
    ConversationSettings,
    ConversationSummary,
    ConversationView,
    Head,
    InboxRow,
    KnownRows,
    LaneInfo,
    OpenMessage,
    StoredMessage,
    TurnUsage,
)
from hermes.store.conversations import codec, inbox, lineage, listing, routes, sessions, titles
from hermes.store.records import tool_records
from hermes.store.transaction import Row, Transaction, Value

PAGE = 100
"""Messages in a view."""
_OPEN = "(SELECT count(*) FROM inbox i WHERE i.session_key = r.session_key AND i.state = 'open')"
_TITLE = "coalesce(r.pending_title, s.title)"
_LIST = (
    f"SELECT r.session_key, r.session_id, {_TITLE}, r.platform, r.last_active, {_OPEN} "
    "FROM routes r LEFT JOIN sessions s ON s.id = r.session_id "
    f"WHERE (s.no IS NOT NULL OR r.pending_title IS NOT NULL OR r.settings IS NOT NULL "
    f"OR {_OPEN} > 0)"
)


_USAGE_OF = (
    "FROM usage u JOIN sessions s ON s.no = u.session_no "
    "WHERE s.id IN (SELECT value FROM json_each(?))"
)


def list_conversations(  # noqa: PLR0913 - the filters of a list
    tx: Transaction,
    *,
    prefixes: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title_contains: str | None = None,
    archived: bool | None = False,
    before: tuple[float, str] | None = None,
    limit: int = 50,
) -> list[ConversationSummary]:
    """Return the conversations whose keys begin with a prefix, latest activity first.

    A conversation without messages is listed if it has a title or settings. `archived` None lists
    all. `before` is the activity and the key of the last entry of the page before.
    """
    sql, values = [_LIST], list[Value]()
    if prefixes is not None:
        ranges = "r.session_key >= ? AND r.session_key < ?"
        sql.append("(" + " OR ".join([f"({ranges})" for _ in prefixes] or ["1 = 0"]) + ")")
        values += [end for prefix in prefixes for end in (prefix, prefix + tool_records.LAST)]
    if keys is not None:
        sql.append("r.session_key IN (SELECT value FROM json_each(?))")
        values.append(codec.encode_json(list(keys)))
    if title_contains is not None:
        sql.append(f"instr(lower({_TITLE}), lower(?)) > 0")
        values.append(title_contains)
    if archived is not None:
        sql.append(f"s.archived_at IS {'NOT NULL' if archived else 'NULL'}")
    if before is not None:
        sql.append("(r.last_active < ? OR (r.last_active = ? AND r.session_key < ?))")
        values += [before[0], *before]
    query = " AND ".join(sql) + " ORDER BY r.last_active DESC, r.session_key DESC LIMIT ?"
    return [_summary(tx, row) for row in tx.all(query, *values, limit)]


def _summary(tx: Transaction, row: Row) -> ConversationSummary:
    key, session_id, title, platform, last_active, waiting = row
    session = sessions.get_session(tx, session_id)
    found = None if session is None else listing.summary(tx, session)
    return ConversationSummary(
        session_key=key,
        session_id=session_id,
        title=title,
        preview="" if found is None else found.preview,
        platform=platform,
        started_at=None if found is None else found.started_at,
        last_active=last_active,
        message_count=0 if session is None else session.message_count,
        waiting=waiting,
        archived=session is not None and session.archived_at is not None,
        model=None if session is None else session.model,
        cost=0.0 if session is None else session.cost,
    )


def get_view(
    tx: Transaction, session_key: str, *, known: KnownRows | None = None, limit: int = PAGE
) -> ConversationView:
    """Return the state of a conversation, with its latest messages.

    If the reader has `known` rows, and the transcript has only grown since, the view has the new
    rows only.
    """
    found = routes.route_head(tx, session_key)
    route, head = (None, None) if found is None else found
    session = None if head is None else sessions.get_session(tx, head.session_id)
    rows, appended, earlier = _rows(tx, None if session is None else head, known, limit)
    return ConversationView(
        session_key=session_key,
        head=head,
        rows=tuple(rows),
        appended=appended,
        earlier=earlier,
        title=titles.get_title(tx, session_key).text,
        settings=ConversationSettings.from_json(None if route is None else route.settings),
        archived=session is not None and session.archived_at is not None,
        waiting=tuple([_open_message(row) for row in inbox.open_inbox(tx, session_key)]),
        approvals=tuple(tool_records.pending_approvals(tx, session_key)),
        stamp=conversation_stamps(tx, [session_key]).get(session_key),
    )


def _rows(
    tx: Transaction, head: Head | None, known: KnownRows | None, limit: int
) -> tuple[list[StoredMessage], bool, bool]:
    """Return the rows of a view, whether they are the new ones, and whether it has earlier ones."""
    if head is None:
        return [], False, False
    same = known is not None and (head.session_id, head.rewrites) == (
        known.session_id,
        known.rewrites,
    )
    if known is not None and same:
        return listing.get_page(tx, head.session_id, after=known.last), True, True
    rows = listing.get_page(tx, head.session_id, limit=limit + 1)
    return rows[-limit:], False, len(rows) > limit


def _open_message(row: InboxRow) -> OpenMessage:
    inbound = row.inbound
    return OpenMessage(
        inbox_id=row.inbox_id,
        text="" if inbound.decided_call is not None else inbound.text,
        platform=inbound.source.platform,
        accepted_at=row.accepted_at,
        parts=inbound.parts or (),
    )


def conversation_stamps(tx: Transaction, session_keys: Sequence[str]) -> Mapping[str, str]:
    """Return a text for each of these keys that changes whenever its state does."""
    keys = codec.encode_json(list(session_keys))
    approvals: dict[str, list[int]] = {}
    for key, number in tx.all(
        "SELECT asked_of, id FROM approvals WHERE state = 'pending' AND expires_at > ? "
        "AND asked_of IN (SELECT value FROM json_each(?)) ORDER BY id",
        tx.now,
        keys,
    ):
        approvals.setdefault(key, []).append(number)
    rows = tx.all(
        "SELECT r.session_key, r.session_id, r.epoch, r.pending_title, r.settings, "
        f"s.revision, s.rewrites, s.title, s.archived_at, {_OPEN}, "
        "(SELECT max(i.id) FROM inbox i WHERE i.session_key = r.session_key AND i.state = 'open') "
        "FROM routes r LEFT JOIN sessions s ON s.id = r.session_id "
        "WHERE r.session_key IN (SELECT value FROM json_each(?))",
        keys,
    )
    return {row[0]: codec.encode_json([*row[1:], approvals.get(row[0], [])]) for row in rows}


def usage_by_turn(tx: Transaction, session_key: str, *, limit: int = 100) -> list[TurnUsage]:
    """Return what the turns of a key's current conversation have used, the latest first."""
    route = routes.get_route(tx, session_key)
    if route is None:
        return []
    ids = lineage.get_compression_lineage(tx, route.session_id)
    encoded = codec.encode_json(list(ids))
    rows = tx.all(
        "SELECT u.turn_id, count(*), "
        "sum(u.input_tokens), sum(u.output_tokens), sum(u.cache_read_tokens), "
        "sum(u.cache_write_tokens), sum(u.reasoning_tokens), coalesce(sum(u.cost), 0.0), "
        "count(*) FILTER (WHERE u.cost IS NULL), max(u.created_at), min(u.id) "
        f"{_USAGE_OF} GROUP BY u.turn_id ORDER BY max(u.id) DESC LIMIT ?",
        encoded,
        limit,
    )
    purposes: dict[int | None, set[str]] = {}
    models: dict[int | None, set[str]] = {}
    for turn_id, purpose, model in tx.all(
        f"SELECT DISTINCT u.turn_id, u.purpose, u.model {_USAGE_OF} AND u.id >= ?",
        encoded,
        min((row[-1] for row in rows), default=0),
    ):
        purposes.setdefault(turn_id, set()).add(purpose)
        models.setdefault(turn_id, set()).update([] if model is None else [model])
    return [_turn_usage(row[:-1], purposes[row[0]], models[row[0]]) for row in rows]


def _turn_usage(row: Row, purposes: Iterable[str], models: Iterable[str]) -> TurnUsage:
    turn_id, calls, *tokens, cost, unpriced, last_at = row
    return TurnUsage(
        turn_id=turn_id,
        purposes=tuple(sorted(purposes)),
        models=tuple(sorted(models)),
        calls=calls,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        cache_read_tokens=tokens[2],
        cache_write_tokens=tokens[3],
        reasoning_tokens=tokens[4],
        cost=cost,
        unpriced=unpriced,
        last_at=last_at,
    )


def outbox_lanes(tx: Transaction, limit: int = 200) -> list[LaneInfo]:
    """Return the chats that have undelivered replies, those that wait longest first."""
    rows = tx.all(
        "SELECT lane, min(session_key), count(*) FILTER (WHERE state = 'pending'), "
        "count(*) FILTER (WHERE state = 'sending'), max(attempts), sum(recovered) "
        "FROM outbox INDEXED BY outbox_open "
        "WHERE state IN ('pending', 'sending') GROUP BY lane ORDER BY min(id) LIMIT ?",
        limit,
    )
    names = ("lane", "session_key", "pending", "sending", "attempts", "recovered")
    return [LaneInfo(**dict(zip(names, row, strict=True))) for row in rows]
