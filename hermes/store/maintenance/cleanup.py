"""Maintenance: delete and prune sessions, clean up after older versions, check the file."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping

import msgspec

from hermes.messages import Pruned
from hermes.store.conversations import codec, leases, routes, sessions
from hermes.store.maintenance import file_checks
from hermes.store.recordings import rows as recordings
from hermes.store.records import key_value, tool_records
from hermes.store.responses import erasure, rows as responses
from hermes.store.transaction import ALL_ROWS, Transaction, Work

log: logging.Logger = logging.getLogger(__name__)

HOUR, DAY = 3600.0, 86400.0
KEPT_DAYS = 30
BELIEVED_TIME = "believed-time"
RECEIPTS_BY_DAY = "receipts-by-day"
"""The names of the values in the file."""
PRUNE_STEP = 20
_LAST_ID = 2**63 - 1
_decode_days = msgspec.json.Decoder(list[tuple[float, int]]).decode
_UNROUTED = "NOT EXISTS (SELECT 1 FROM routes r WHERE r.session_id = s.id)"
_SESSION_ROWS = "all_messages m WHERE m.id BETWEEN s.no << 32 AND (s.no << 32) + 4294967295"
_NO_ROWS = f"NOT EXISTS (SELECT 1 FROM {_SESSION_ROWS})"
# The subagents of a session that is deleted go with it, with theirs and with their continuations.
# A session that merely continues a deleted one stays.
_WITH_SUBAGENTS = """
doomed (no, below) AS (
  SELECT no, 0 FROM chosen
  UNION
  SELECT s.no, 1 FROM doomed d JOIN sessions s ON s.parent_no = d.no
  WHERE s.subagent = 1 AND (d.below = 1 OR s.kind <> 'compression')
)
"""
# The members of a lineage are pruned together: none of them if one is needed, or a subagent below
# them. ?1 is the time before which all must have ended, and subagents must have been used last, ?2
# the source or NULL, ?3 the number of lineages.
_IS_OLD = (
    "s.ended_at IS NOT NULL AND s.ended_at < ?1 AND s.source = coalesce(?2, s.source) "
    f"AND {_UNROUTED}"
)
_IS_UNUSED = f"s.last_active < ?1 AND coalesce(s.ended_at, 0) < ?1 AND {_UNROUTED}"
_CONTINUES = "s.parent_no = line.no AND s.kind = 'compression'"
_OLD_LINEAGES = f"""
roots (no) AS (
  SELECT root.no FROM (SELECT s.no, s.kind, s.parent_no FROM sessions s WHERE {_IS_OLD}) AS root
  WHERE (root.kind <> 'compression' OR root.parent_no IS NULL) AND NOT EXISTS (
    WITH RECURSIVE family (no, below) AS (
      VALUES (root.no, 0)
      UNION ALL
      SELECT s.no, CASE WHEN f.below = 1 OR s.kind <> 'compression' THEN 1 ELSE 0 END
      FROM family f JOIN sessions s ON s.parent_no = f.no
      WHERE s.subagent = 1 OR (s.kind = 'compression' AND f.below = 0)
    )
    SELECT 1 FROM family f JOIN sessions s USING (no)
    WHERE NOT CASE WHEN f.below = 1 THEN {_IS_UNUSED} ELSE {_IS_OLD} END
  )
  ORDER BY root.no LIMIT ?3
),
line (no) AS (
  SELECT no FROM roots UNION ALL SELECT s.no FROM line JOIN sessions s ON {_CONTINUES}
),
chosen (no) AS (SELECT no FROM line)
"""


def session_ids(tx: Transaction) -> list[str]:
    """Return the ids of all sessions, oldest first."""
    return [row[0] for row in tx.all("SELECT id FROM sessions ORDER BY no")]


def delete_session(tx: Transaction, session_id: str) -> int:
    """Delete a session with its messages, and the sessions of its subagents.

    A key whose current session it was gets a new session; a turn that is running in it will be
    discarded at its commit. Returns the number of deleted messages.
    """
    doomed = tx.all(
        "WITH RECURSIVE chosen (no) AS (SELECT no FROM sessions WHERE id = ?), "
        f"{_WITH_SUBAGENTS} SELECT DISTINCT s.id FROM doomed JOIN sessions s USING (no)",
        session_id,
    )
    return sum(_delete(tx, each) for (each,) in doomed)


def _delete(tx: Transaction, session_id: str) -> int:
    """Delete one session. Return the number of deleted messages."""
    no = sessions.require(tx, session_id)
    first, last = codec.bounds(no)
    tx.search.remove_session(tx, no)
    deleted = tx.run("DELETE FROM messages WHERE id BETWEEN ? AND ?", first, last)
    if tx.has_arrivals:
        deleted += tx.run("DELETE FROM arrivals WHERE id BETWEEN ? AND ?", first, last)
    for (key,) in tx.all("SELECT session_key FROM routes WHERE session_id = ?", session_id):
        routes.assign_session(tx, key, tx.new_session_id())
    # A compression child without its parent becomes the root of a lineage.
    tx.run("UPDATE sessions SET kind = 'import' WHERE parent_no = ? AND kind = 'compression'", no)
    leases.delete(tx, session_id)
    key_value.delete_session_values(tx, session_id)
    tool_records.delete_session_approvals(tx, session_id)
    responses.delete_of_session(tx, session_id)
    recordings.delete_of_session(tx, no)
    tx.run("DELETE FROM sessions WHERE no = ?", no)
    return deleted


def prunable(
    tx: Transaction, older_than_days: float = 90, source: str | None = None, limit: int = ALL_ROWS
) -> list[tuple[str, int]]:
    """Return (id, number of messages) of sessions that ended long ago and have no route.

    A session is left out if one of its lineage is, or if a subagent below it is in use. The
    `limit` is a number of lineages. Subagents follow their sessions and do not count for it.
    """
    rows = tx.all(
        f"WITH RECURSIVE {_OLD_LINEAGES}, {_WITH_SUBAGENTS} "
        f"SELECT s.id, (SELECT count(*) FROM {_SESSION_ROWS}) FROM sessions s "
        "WHERE s.no IN (SELECT no FROM doomed) ORDER BY s.no",
        tx.now - older_than_days * DAY,
        source,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


def prune_sessions(
    older_than_days: float = 90, source: str | None = None, *, dry_run: bool = False
) -> Generator[Work[Pruned], Pruned, Pruned]:
    """Delete sessions that ended more than `older_than_days` ago and have no route.

    A session and its compressed past are deleted together, if this is true of all of them.
    The sessions of their subagents are deleted with them; if one of these has a route, or was used
    since then, all are kept. Archived sessions are treated like all others. With `dry_run`, only
    report what would be deleted.
    """

    def preview(tx: Transaction) -> Pruned:
        rows = prunable(tx, older_than_days, source)
        return Pruned(tuple(i for i, _ in rows), sum(n for _, n in rows), dry_run=True)

    def step(tx: Transaction) -> Pruned:
        ids = tuple(i for i, _ in prunable(tx, older_than_days, source, PRUNE_STEP))
        return Pruned(ids, sum(_delete(tx, i) for i in ids), dry_run=False)

    if dry_run:
        return (yield preview)
    total = Pruned((), 0, dry_run=False)
    while (done := (yield step)).session_ids:
        total = Pruned(
            total.session_ids + done.session_ids, total.messages + done.messages, dry_run=False
        )
    return total


def prune_empty_ghost_sessions(tx: Transaction) -> int:
    """Delete ended terminal sessions that are empty, untitled and over a day old.

    Returns how many were deleted.
    """
    return len(prune_ghosts(tx))


def prune_ghosts(tx: Transaction) -> tuple[str, ...]:
    """Same as `prune_empty_ghost_sessions`, but returns the ids of the deleted sessions."""
    rows = tx.all(
        "SELECT s.id FROM sessions s WHERE s.source = 'tui' AND s.title IS NULL "
        f"AND s.ended_at IS NOT NULL AND s.started_at < ? AND {_NO_ROWS} AND {_UNROUTED} "
        "AND NOT EXISTS (SELECT 1 FROM sessions c WHERE c.parent_no = s.no AND c.subagent = 1)",
        tx.now - DAY,
    )
    ids = tuple(row[0] for row in rows)
    for session_id in ids:
        _delete(tx, session_id)
    return ids


def finalize_orphaned_compression_sessions(tx: Transaction) -> int:
    """End compression children that were never used. Return how many.

    They are over a week old, have messages, no route, and no call of a model was made in them.
    """
    return len(finalize_orphans(tx))


def finalize_orphans(tx: Transaction) -> tuple[str, ...]:
    """Same as `finalize_orphaned_compression_sessions`, but returns the ids of the sessions."""
    rows = tx.all(
        "UPDATE sessions AS s SET ended_at = ?, end_reason = 'orphaned_compression' "
        "WHERE s.api_call_count = 0 AND s.ended_at IS NULL AND s.started_at < ? "
        "AND s.kind <> 'branch' AND (s.subagent = 0 OR s.kind = 'compression') "
        "AND EXISTS (SELECT 1 FROM sessions p WHERE p.no = s.parent_no "
        f"AND p.end_reason = 'compression') AND NOT ({_NO_ROWS}) AND {_UNROUTED} RETURNING id",
        tx.now,
        tx.now - 7 * DAY,
    )
    return tuple(row[0] for row in rows)


def forget_closed(tx: Transaction, older_than_days: float = KEPT_DAYS, limit: int = 500) -> int:
    """Delete old closed inbox, outbox and boundary rows, and old approvals. Return how many.

    Requests that are not stored are erased an hour after they have ended.
    At most `limit` of each are deleted in one call.
    """
    erased = erasure.erase_unstored(tx, limit)
    return erased + _forget(tx, tx.now - older_than_days * DAY, _LAST_ID, limit)


def _forget(tx: Transaction, before: float, last_receipt: int, limit: int = 500) -> int:
    """Delete rows closed before this time; of the inbox, only up to the id `last_receipt`."""
    sessions.forget_left(tx, before)
    return tool_records.delete_expired_approvals(tx, before, limit) + sum(
        tx.run(
            f"DELETE FROM {table} WHERE id IN "
            f"(SELECT id FROM {table} WHERE closed_at < ? AND id <= ? ORDER BY closed_at LIMIT ?)",
            before,
            last,
            limit,
        )
        for table, last in (("inbox", last_receipt), ("outbox", _LAST_ID), ("boundaries", _LAST_ID))
    )


class SteadyCleanup:
    """`forget_closed` for a running store, which does not trust a wall clock that jumps.

    With a clock that is a month ahead, all receipts would look old, and repeated events would be
    answered again. The file therefore has the time that was last believed. A clock more than a day
    away from it is believed once it has run for a day without a jump, in one process. Until then
    the believed time advances with the steady clock.

    Receipts written while the clock was far behind look old once it is right again. So the file
    also has the last receipt of each day, by the believed time: no later one is deleted.
    """

    def __init__(self, wall: float, steady: float) -> None:
        """Begin with the times that a transaction would have now."""
        self._started = wall
        self._seen = self._steady_since = steady
        self._offset = self._started - self._seen
        self._believed: float | None = None
        self._written = -math.inf
        self._doubts = False

    def __call__(self, tx: Transaction) -> int:
        """Delete rows that are old by the believed time. Return how many."""
        offset = tx.now - tx.steady
        if abs(offset - self._offset) > DAY:
            self._offset, self._steady_since = offset, tx.steady
        recalled = self._recall(tx) if self._believed is None else self._believed
        expected = recalled + tx.steady - self._seen
        is_steady = tx.steady - self._steady_since >= DAY
        believed = tx.now if abs(tx.now - expected) <= DAY or is_steady else expected
        self._believed, self._seen = believed, tx.steady
        if abs(believed - self._written) >= HOUR:  # not in every sweep: this is a write
            key_value.set_meta(tx, BELIEVED_TIME, f"{believed:.0f}")
            self._written = believed
        self._report((tx.now - believed) / DAY)
        before = believed - KEPT_DAYS * DAY
        erased = erasure.erase_unstored(tx)
        return erased + _forget(tx, before, self._last_receipt(tx, believed, before))

    def _last_receipt(self, tx: Transaction, believed: float, before: float) -> int:
        """Return the last inbox id that was in use before this time, 0 if it is not known."""
        stored = key_value.get_meta(tx, RECEIPTS_BY_DAY)
        days = [] if stored is None else [day for day in _decode_days(stored) if day[0] <= believed]
        if not days or believed - days[-1][0] >= DAY:
            row = tx.one("SELECT coalesce(max(id), 0) FROM inbox")
            assert row is not None
            old = [day for day in days if day[0] <= before]
            days = [*old[-1:], *days[len(old) :], (believed, row[0])]
            key_value.set_meta(tx, RECEIPTS_BY_DAY, msgspec.json.encode(days).decode())
        return max((last for day, last in days if day <= before), default=0)

    def _recall(self, tx: Transaction) -> float:
        """Return the time that an earlier process believed, or that of its latest message."""
        stored = key_value.get_meta(tx, BELIEVED_TIME)
        if stored is not None:
            return float(stored)
        row = tx.one("SELECT max(accepted_at) FROM inbox WHERE accepted_at <= ?", self._started)
        return self._started if row is None or row[0] is None else float(row[0])

    def _report(self, days: float) -> None:
        """Log that the clock is not believed, once."""
        if days and not self._doubts:
            text = "the clock is %.1f days %s the last activity; it is believed in a day"
            log.warning(text, abs(days), "ahead of" if days > 0 else "behind")
        self._doubts = bool(days)


def integrity_check(tx: Transaction, *, full: bool = False) -> list[str]:
    """Return the problems found in the file; empty if there are none.

    With `full`, the content of all attached files is read.
    """
    problems = [problem for check in CHECKS.values() for problem in check(tx)]
    content = file_checks.damaged(tx.db.blobs, file_checks.blobs(tx)) if full else []
    return problems + content


def _check_counters(tx: Transaction) -> list[str]:
    return [
        f"the message counter of session {row[0]} is {row[1]} instead of {row[2]}"
        for row in tx.all(
            "SELECT id, message_count, n FROM (SELECT s.id, s.message_count, "
            f"(SELECT count(*) FROM {_SESSION_ROWS} AND m.live = 1) AS n "
            "FROM sessions s) AS counted WHERE message_count <> n"
        )
    ]


CHECKS: Mapping[str, Work[list[str]]] = {
    "pages and indexes": lambda tx: tx.damaged_pages(),
    "foreign keys": lambda tx: tx.broken_references(),
    "message counters": _check_counters,
    file_checks.SUBJECT: file_checks.check,
}
"""The parts of `integrity_check`, by what they check; each returns problems."""
