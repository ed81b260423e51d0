"""House-keeping: deleting, pruning, tidying what an older version left, checking the file."""

from __future__ import annotations

from collections.abc import Generator

from hermes.messages import Pruned
from hermes.store.conversations import codec, routes, search, sessions
from hermes.store.records import key_value, tool_records
from hermes.store.transaction import Transaction, Work

DAY = 86400.0
PRUNE_STEP = 20
_UNROUTED = "NOT EXISTS (SELECT 1 FROM routes r WHERE r.session_id = s.id)"
_ITS_ROWS = "all_messages m WHERE m.id BETWEEN s.no << 32 AND (s.no << 32) + 4294967295"
_NO_ROWS = f"NOT EXISTS (SELECT 1 FROM {_ITS_ROWS})"


def session_ids(tx: Transaction) -> list[str]:
    """Every session, the eldest first."""
    return [row[0] for row in tx.all("SELECT id FROM sessions ORDER BY no")]


def delete_session(tx: Transaction, session_id: str) -> int:
    """Delete the session and its messages for good; returns how many messages that were.

    A key that led there begins a new session; a turn still running on it is discarded.
    """
    no = sessions.number(tx, session_id)
    if no is None:
        return 0
    first, last = codec.bounds(no)
    search.forget(tx, no)
    deleted = tx.run("DELETE FROM messages WHERE id BETWEEN ? AND ?", first, last)
    deleted += tx.run("DELETE FROM arrivals WHERE id BETWEEN ? AND ?", first, last)
    for (key,) in tx.all("SELECT session_key FROM routes WHERE session_id = ?", session_id):
        routes.point(tx, key, tx.new_session_id())
    # A child whose parent is gone begins its own line.
    tx.run("UPDATE sessions SET kind = 'import' WHERE parent_no = ? AND kind = 'compression'", no)
    tx.run("DELETE FROM leases WHERE session_id = ?", session_id)
    key_value.forget(tx, session_id)
    tool_records.forget_session(tx, session_id)
    tx.run("DELETE FROM sessions WHERE no = ?", no)
    return deleted


def prunable(
    tx: Transaction, older_than_days: float = 90, source: str | None = None, limit: int = -1
) -> list[tuple[str, int]]:
    """Ids and sizes of sessions that ended so long ago and that no key leads to."""
    found = tx.all(
        f"SELECT s.id, (SELECT count(*) FROM {_ITS_ROWS}) FROM sessions s WHERE s.ended_at < ? "
        f"AND (?2 IS NULL OR s.source = ?2) AND {_UNROUTED} ORDER BY s.no LIMIT ?3",
        tx.now - older_than_days * DAY,
        source,
        limit,
    )
    return [(row[0], row[1]) for row in found]


def prune_sessions(
    older_than_days: float = 90, source: str | None = None, *, dry_run: bool = False
) -> Generator[Work[Pruned], Pruned, Pruned]:
    """Delete sessions that ended so long ago and that no key leads to, a few at a time."""

    def preview(tx: Transaction) -> Pruned:
        found = prunable(tx, older_than_days, source)
        return Pruned(tuple(i for i, _ in found), sum(n for _, n in found), dry_run=True)

    def step(tx: Transaction) -> Pruned:
        ids = tuple(i for i, _ in prunable(tx, older_than_days, source, PRUNE_STEP))
        return Pruned(ids, sum(delete_session(tx, i) for i in ids), dry_run=False)

    if dry_run:
        return (yield preview)
    total = Pruned((), 0, dry_run=False)
    while (done := (yield step)).session_ids:
        total = Pruned(
            total.session_ids + done.session_ids, total.messages + done.messages, dry_run=False
        )
    return total


def prune_empty_ghost_sessions(tx: Transaction) -> int:
    """Delete what terminals opened, ended and never wrote to: untitled, over a day old."""
    found = tx.all(
        "SELECT s.id FROM sessions s WHERE s.source = 'tui' AND s.title IS NULL "
        f"AND s.ended_at IS NOT NULL AND s.started_at < ? AND {_NO_ROWS} AND {_UNROUTED}",
        tx.now - DAY,
    )
    for (session_id,) in found:
        delete_session(tx, session_id)
    return len(found)


def finalize_orphaned_compression_sessions(tx: Transaction) -> int:
    """End continuations that nobody continued: a week old, with rows, never answered by a model."""
    return tx.run(
        "UPDATE sessions AS s SET ended_at = ?, end_reason = 'orphaned_compression' "
        "WHERE s.api_call_count = 0 AND s.ended_at IS NULL AND s.started_at < ? "
        "AND s.kind <> 'branch' AND EXISTS (SELECT 1 FROM sessions p WHERE p.no = s.parent_no "
        f"AND p.end_reason = 'compression') AND NOT ({_NO_ROWS}) AND {_UNROUTED}",
        tx.now,
        tx.now - 7 * DAY,
    )


def forget_closed(tx: Transaction, older_than_days: float = 30, limit: int = 500) -> int:
    """Drop receipts, sent replies, heard boundaries and approvals of long ago.

    A bounded number of each at a time.
    """
    before = tx.now - older_than_days * DAY
    return tool_records.forget_approvals(tx, before, limit) + sum(
        tx.run(
            f"DELETE FROM {table} WHERE id IN "
            f"(SELECT id FROM {table} WHERE closed_at < ? ORDER BY closed_at LIMIT ?)",
            before,
            limit,
        )
        for table in ("inbox", "outbox", "boundaries")
    )


def integrity_check(tx: Transaction) -> list[str]:
    """What is wrong with the file; empty where all is well."""
    problems = [str(row[0]) for row in tx.all("PRAGMA integrity_check(20)") if row[0] != "ok"]
    problems += [f"foreign key: {row}" for row in tx.all("PRAGMA foreign_key_check")]
    problems += [
        f"session {row[0]} counts {row[1]} messages and has {row[2]}"
        for row in tx.all(
            f"SELECT s.id, s.message_count, (SELECT count(*) FROM {_ITS_ROWS} AND m.live = 1) AS n "
            "FROM sessions s WHERE s.message_count <> n"
        )
    ]
    return problems
