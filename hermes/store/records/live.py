"""What the live view shows of the tables: queues, lanes, leases and costs."""

from __future__ import annotations

from hermes.messages import (
    CostlySession,
    CostsToday,
    LaneRow,
    LiveCounts,
    LiveLane,
    LiveLease,
    Payer,
)
from hermes.store.conversations import outbox, usage
from hermes.store.transaction import Row, Transaction, Value

LANES = 500
LEASES = 100
COSTLY = 10
PREVIEW = 200
_OPEN = "state IN ('pending', 'sending')"
_TRIED = "attempts > CASE WHEN state = 'sending' THEN 1 ELSE 0 END"
_LANES = (
    "SELECT lane, min(session_key), count(*) FILTER (WHERE state = 'pending'), "
    "count(*) FILTER (WHERE state = 'sending'), "
    f"count(*) FILTER (WHERE {_TRIED}), count(*) FILTER (WHERE recovered = 1), "
    "max(attempts), min(created_at) "
    f"FROM outbox INDEXED BY outbox_open WHERE {_OPEN} GROUP BY lane ORDER BY min(id) LIMIT ?"
)
_LANE = ("lane", "session_key", "pending", "sending", "retried", "unknown", "attempts", "oldest_at")
# `expires` is on the steady clock; see leases.py.
_LEASES = (
    "SELECT l.session_id, s.session_key, l.holder, l.expires - ? FROM leases l "
    "LEFT JOIN sessions s ON s.id = l.session_id WHERE l.holder IS NOT NULL "
    "AND l.expires - ? > 0 AND l.expires - ? <= l.ttl + 1 ORDER BY l.expires LIMIT ?"
)
_ROW = (
    "SELECT id, lane, session_key, turn_id, state, attempts, parts_sent, recovered, created_at, "
    "closed_at, note, substr(coalesce(body ->> '$.text', ''), 1, ?) FROM outbox "
)


def live_counts(tx: Transaction) -> LiveCounts:
    """Return queue sizes, lanes and leases. It reads only what is open."""
    inbox_open, oldest = tx.all(
        "SELECT count(*), min(accepted_at) FROM inbox INDEXED BY inbox_open WHERE state = 'open'"
    )[0]
    hooks, dead = tx.all(
        "SELECT (SELECT count(*) FROM boundaries INDEXED BY boundaries_open "
        "WHERE closed_at IS NULL), "
        "(SELECT count(*) FROM outbox INDEXED BY outbox_dead "
        "WHERE state = 'dead' AND closed_at > ?)",
        tx.now - outbox.DAY,
    )[0]
    lanes = [LiveLane(**dict(zip(_LANE, row, strict=True))) for row in tx.all(_LANES, LANES)]
    return LiveCounts(
        inbox_open=inbox_open,
        inbox_oldest_at=oldest,
        unindexed=tx.search.count_unindexed(tx),
        hooks_open=hooks,
        dead=dead,
        lanes=tuple(lanes),
        leases=tuple(_leases(tx)),
    )


def _leases(tx: Transaction) -> list[LiveLease]:
    rows = tx.all(_LEASES, tx.steady, tx.steady, tx.steady, LEASES)
    return [
        LiveLease(
            session_id=session_id,
            session_key=key,
            holder=holder,
            expires_at=round(tx.now + left, 1),  # the same at each look
        )
        for session_id, key, holder, left in rows
    ]


def costs_today(tx: Transaction) -> CostsToday:
    """Return what was spent since midnight, and by whom."""
    start, end = usage.today(tx.now)
    payers = tx.all(
        "SELECT payer, sum(cost) FROM usage WHERE created_at >= ? AND created_at < ? "
        "AND payer IS NOT NULL GROUP BY payer HAVING sum(cost) > 0 ORDER BY 2 DESC LIMIT ?",
        start, end, COSTLY,
    )  # fmt: skip
    sessions = tx.all(
        "SELECT s.id, s.session_key, s.cost FROM sessions s WHERE s.no IN "
        "(SELECT session_no FROM usage WHERE created_at >= ? AND created_at < ? AND cost > 0) "
        "ORDER BY s.cost DESC LIMIT ?",
        start, end, COSTLY,
    )  # fmt: skip
    return CostsToday(
        total=usage.spent_today(tx),
        payers=tuple([Payer(*row) for row in payers]),
        sessions=tuple([CostlySession(*row) for row in sessions]),
    )


def lane_rows(
    tx: Transaction, lane: str | None = None, *, after: int = 0, limit: int = 100
) -> list[LaneRow]:
    """Return replies that are not delivered, or were given up within the last day, in order.

    They are those of one lane, or of all.
    """
    only, values = list[str](), list[Value]()
    if lane is not None:
        only, values = ["lane = ?"], [lane]
    rows = [
        *_page(tx, "INDEXED BY outbox_open", [_OPEN, *only], values, after, limit),
        *_page(
            tx,
            "INDEXED BY outbox_dead",
            ["state = 'dead'", "closed_at > ?", *only],
            [tx.now - outbox.DAY, *values],
            after,
            limit,
        ),
    ]
    return sorted(map(_row, rows), key=lambda row: row.outbox_id)[:limit]


def _page(
    tx: Transaction, index: str, where: list[str], values: list[Value], after: int, limit: int
) -> list[Row]:
    sql = f"{_ROW} {index} WHERE {' AND '.join([*where, 'id > ?'])} ORDER BY id LIMIT ?"
    return tx.all(sql, PREVIEW, *values, after, limit)


def _row(row: Row) -> LaneRow:
    return LaneRow(
        outbox_id=row[0],
        lane=row[1],
        session_key=row[2],
        turn_id=row[3],
        state=row[4],
        attempts=row[5],
        parts_sent=row[6],
        unknown=bool(row[7]),
        created_at=row[8],
        closed_at=row[9],
        note=row[10],
        preview=row[11],
    )
