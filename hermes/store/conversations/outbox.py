"""The outbox: replies, written in the transaction of the turn and sent in order per lane."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hermes.messages import Outbound, OutboxRow, OutboxStats
from hermes.store.attachments import rows as attachments
from hermes.store.conversations import codec
from hermes.store.transaction import Transaction

_COLUMNS = "id, session_key, turn_id, lane, body, state, attempts, recovered, parts_sent"
_INSERT = "INSERT INTO outbox (session_key, turn_id, lane, body, created_at) VALUES (?, ?, ?, ?, ?)"
_MARK_SENDING = (
    "UPDATE outbox SET state = 'sending', attempts = attempts + 1 "
    "WHERE id = ? AND state = 'pending'"
)
_CLOSE = (
    "UPDATE outbox SET state = ?, closed_at = ?, note = ? "
    "WHERE id = ? AND state IN ('pending', 'sending')"
)
_LANES = (
    "SELECT o.lane, o.body ->> '$.platform', o.body ->> '$.account' FROM outbox o JOIN "
    "(SELECT min(id) AS id FROM outbox INDEXED BY outbox_open "
    "WHERE state IN ('pending', 'sending') GROUP BY lane) AS oldest ON oldest.id = o.id "
    "ORDER BY o.id"
)
DAY = 86400.0


def enqueue(tx: Transaction, session_key: str, turn_id: int, replies: Sequence[Outbound]) -> None:
    """Write the replies of a turn, and add them to `tx.outbox` for sending after the commit."""
    for reply in replies:
        body = codec.encode_json(reply.body)
        outbox_id = tx.insert(_INSERT, session_key, turn_id, reply.lane, body, tx.now)
        decoded = msgspec.json.decode(body)  # the same value that a later process would read
        fields = (outbox_id, session_key, turn_id, reply.lane, decoded)
        tx.outbox.append(OutboxRow(*fields, "pending", 0, recovered=False))
        if "files" in decoded:
            attachments.use_in_outbox(tx, session_key, fields[0], decoded["files"])


def pending_outbox(
    tx: Transaction, lane: str | None = None, *, after: int = 0, limit: int = 1000
) -> list[OutboxRow]:
    """Return replies that are not known to be sent, oldest first, of one lane or of all."""
    only, values = ("AND lane = ?", (lane,)) if lane else ("", ())
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM outbox INDEXED BY outbox_open "
        f"WHERE state IN ('pending', 'sending') AND id > ? {only} "
        "ORDER BY id LIMIT ?",
        after,
        *values,
        limit,
    )
    return [
        OutboxRow(
            id_, key, turn_id, lane_, msgspec.json.decode(body), state, tries, bool(resend), part
        )
        for id_, key, turn_id, lane_, body, state, tries, resend, part in rows
    ]


def open_lanes(tx: Transaction) -> list[tuple[str, str, str]]:
    """Return the lanes that have replies which are not known to be sent; the oldest reply first.

    Each has its platform and its account.
    """
    return [(lane, platform or "", account or "") for lane, platform, account in tx.all(_LANES)]


def mark_sending(tx: Transaction, outbox_ids: Sequence[int]) -> list[int]:
    """Record that a send begins; its outcome is unknown until `mark_sent` or `mark_unsent`.

    Return the ids of those that are in flight now: the others were sent or given up meanwhile.
    """
    return [outbox_id for outbox_id in outbox_ids if _mark_sending(tx, outbox_id)]


def _mark_sending(tx: Transaction, outbox_id: int) -> bool:
    in_flight = "SELECT 1 FROM outbox WHERE id = ? AND state = 'sending'"
    return tx.run(_MARK_SENDING, outbox_id) == 1 or tx.one(in_flight, outbox_id) is not None


def mark_part(tx: Transaction, outbox_id: int, part: int) -> None:
    """Record that the platform accepted `part` parts, before the next one is sent."""
    tx.run(
        "UPDATE outbox SET parts_sent = ?, recovered = 0 WHERE id = ? AND state = 'sending'",
        part,
        outbox_id,
    )


def mark_sent(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """Record that the platform accepted the replies."""
    _close(tx, outbox_ids, "sent", None)


def mark_dead(tx: Transaction, outbox_ids: Sequence[int], note: str) -> None:
    """Give up on replies that the platform rejects; `note` says why."""
    _close(tx, outbox_ids, "dead", note)


def mark_lane_dead(tx: Transaction, lane: str, note: str, *, since: int = 0) -> list[int]:
    """Give up on all replies of a lane from the id `since` on, and return their ids."""
    rows = tx.all(
        "SELECT id FROM outbox INDEXED BY outbox_open "
        "WHERE state IN ('pending', 'sending') AND lane = ? AND id >= ? ORDER BY id",
        lane,
        since,
    )
    outbox_ids = [outbox_id for (outbox_id,) in rows]
    _close(tx, outbox_ids, "dead", note)
    return outbox_ids


def mark_unsent(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """Record that a send certainly failed, so that it is tried again."""
    for outbox_id in outbox_ids:
        tx.run("UPDATE outbox SET state = 'pending' WHERE id = ? AND state = 'sending'", outbox_id)


def mark_unknown(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """Record that the outcome of a send is unknown: send again, marked as recovered."""
    for outbox_id in outbox_ids:
        tx.run(
            "UPDATE outbox SET state = 'pending', recovered = 1 "
            "WHERE id = ? AND state IN ('pending', 'sending')",
            outbox_id,
        )


def recover_outbox(tx: Transaction, lanes: Sequence[str] | None = None) -> int:
    """Mark the replies that an earlier process had in flight as recovered, of all lanes or of some.

    Return how many there were.
    """
    only, values = "", list[str]()
    if lanes is not None:
        only = "AND lane IN (SELECT value FROM json_each(?))"
        values = [codec.encode_json(list(lanes))]
    return tx.run(
        "UPDATE outbox INDEXED BY outbox_open SET state = 'pending', recovered = 1 "
        f"WHERE state IN ('pending', 'sending') AND state = 'sending' {only}",
        *values,
    )


def outbox_facts(tx: Transaction) -> list[OutboxStats]:
    """Return counts of waiting and abandoned replies, by platform."""
    open_rows = tx.all(
        "SELECT coalesce(body ->> '$.platform', ''), "
        "count(*) FILTER (WHERE state = 'pending'), "
        "count(*) FILTER (WHERE state = 'sending'), sum(recovered), min(created_at) "
        "FROM outbox INDEXED BY outbox_open WHERE state IN ('pending', 'sending') GROUP BY 1"
    )
    dead: dict[str, int] = dict(
        tx.all(
            "SELECT coalesce(body ->> '$.platform', ''), count(*) "
            "FROM outbox INDEXED BY outbox_dead WHERE state = 'dead' AND closed_at > ? GROUP BY 1",
            tx.now - DAY,
        )
    )
    stats = {name: OutboxStats(platform=name, dead=number) for name, number in dead.items()}
    for name, pending, sending, recovered, oldest in open_rows:
        stats[name] = OutboxStats(
            platform=name,
            pending=pending,
            sending=sending,
            recovered=recovered,
            oldest_seconds=max(0.0, tx.now - oldest),
            dead=dead.get(name, 0),
        )
    return [stats[name] for name in sorted(stats)]


def _close(tx: Transaction, outbox_ids: Sequence[int], state: str, note: str | None) -> None:
    tx.run_each(_CLOSE, [(state, tx.now, note, outbox_id) for outbox_id in outbox_ids])
