"""Replies on their way out: written with the turn, sent in order, one lane per chat."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hermes.messages import Outbound, OutboxRow, OutboxStats
from hermes.store.conversations import codec
from hermes.store.transaction import Transaction

_COLUMNS = "id, session_key, turn_id, lane, body, state, attempts, recovered, parts_sent"
DAY = 86400.0


def enqueue(tx: Transaction, session_key: str, turn_id: int, replies: Sequence[Outbound]) -> None:
    """Write the replies of a turn."""
    for reply in replies:
        body = codec.encode_whole(reply.body)
        tx.run(
            "INSERT INTO outbox (session_key, turn_id, lane, body, created_at) "
            "VALUES (?, ?, ?, ?, ?)",
            session_key,
            turn_id,
            reply.lane,
            body,
            tx.now,
        )
        outbox_id = tx.db.last_insert_rowid()
        said = msgspec.json.decode(body)  # as a later process would read it
        row = OutboxRow(
            outbox_id, session_key, turn_id, reply.lane, said, "pending", 0, recovered=False
        )
        tx.outbox.append(row)


def pending_outbox(
    tx: Transaction, lane: str | None = None, *, after: int = 0, limit: int = 1000
) -> list[OutboxRow]:
    """Replies not known to be sent, oldest first; of one lane or of all."""
    only, values = ("AND lane = ?", (lane,)) if lane else ("", ())
    found = tx.all(
        f"SELECT {_COLUMNS} FROM outbox INDEXED BY outbox_open "
        f"WHERE state IN ('pending', 'sending') AND id > ? {only} "
        "ORDER BY id LIMIT ?",
        after,
        *values,
        limit,
    )
    return [
        OutboxRow(
            id_, key, turn_id, lane_, msgspec.json.decode(body), state, tries, bool(again), part
        )
        for id_, key, turn_id, lane_, body, state, tries, again, part in found
    ]


def mark_sending(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """A send begins: from here to `mark_sent` its outcome is unknown."""
    for outbox_id in outbox_ids:
        tx.run(
            "UPDATE outbox SET state = 'sending', attempts = attempts + 1 "
            "WHERE id = ? AND state = 'pending'",
            outbox_id,
        )


def mark_part(tx: Transaction, outbox_id: int, part: int) -> None:
    """The platform took so many parts, and the next one is on its way, without a doubt."""
    tx.run(
        "UPDATE outbox SET parts_sent = ?, recovered = 0 WHERE id = ? AND state = 'sending'",
        part,
        outbox_id,
    )


def mark_sent(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """The platform took them."""
    _close(tx, outbox_ids, "sent", None)


def mark_dead(tx: Transaction, outbox_ids: Sequence[int], note: str) -> None:
    """They can never be sent: the platform does not want them."""
    _close(tx, outbox_ids, "dead", note)


def mark_lane_dead(tx: Transaction, lane: str, note: str, *, since: int = 0) -> list[int]:
    """The chat is gone: what waits for it, from one reply on, is given up. Says which."""
    found = tx.all(
        "SELECT id FROM outbox INDEXED BY outbox_open "
        "WHERE state IN ('pending', 'sending') AND lane = ? AND id >= ? ORDER BY id",
        lane,
        since,
    )
    outbox_ids = [outbox_id for (outbox_id,) in found]
    _close(tx, outbox_ids, "dead", note)
    return outbox_ids


def mark_unsent(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """The send surely failed; it will be tried again."""
    for outbox_id in outbox_ids:
        tx.run("UPDATE outbox SET state = 'pending' WHERE id = ? AND state = 'sending'", outbox_id)


def mark_unknown(tx: Transaction, outbox_ids: Sequence[int]) -> None:
    """Nobody knows whether the platform took them: they are sent again, and marked so."""
    for outbox_id in outbox_ids:
        tx.run(
            "UPDATE outbox SET state = 'pending', recovered = 1 "
            "WHERE id = ? AND state IN ('pending', 'sending')",
            outbox_id,
        )


def recover_outbox(tx: Transaction) -> int:
    """At a start: what was in flight when the last process ended is sent again, and marked so."""
    return tx.run(
        "UPDATE outbox INDEXED BY outbox_open SET state = 'pending', recovered = 1 "
        "WHERE state IN ('pending', 'sending') AND state = 'sending'"
    )


def outbox_facts(tx: Transaction) -> list[OutboxStats]:
    """What waits and what was given up, by platform."""
    waiting = tx.all(
        "SELECT coalesce(body ->> '$.platform', ''), sum(state = 'pending'), "
        "sum(state = 'sending'), sum(recovered), min(created_at) "
        "FROM outbox INDEXED BY outbox_open WHERE state IN ('pending', 'sending') GROUP BY 1"
    )
    dead: dict[str, int] = dict(
        tx.all(
            "SELECT coalesce(body ->> '$.platform', ''), count(*) "
            "FROM outbox INDEXED BY outbox_dead WHERE state = 'dead' AND closed_at > ? GROUP BY 1",
            tx.now - DAY,
        )
    )
    facts = {name: OutboxStats(platform=name, dead=number) for name, number in dead.items()}
    for name, pending, sending, recovered, oldest in waiting:
        facts[name] = OutboxStats(
            platform=name,
            pending=pending,
            sending=sending,
            recovered=recovered,
            oldest_seconds=max(0.0, tx.now - oldest),
            dead=dead.get(name, 0),
        )
    return [facts[name] for name in sorted(facts)]


def _close(tx: Transaction, outbox_ids: Sequence[int], state: str, note: str | None) -> None:
    for outbox_id in outbox_ids:
        tx.run(
            "UPDATE outbox SET state = ?, closed_at = ?, note = ? "
            "WHERE id = ? AND state IN ('pending', 'sending')",
            state,
            tx.now,
            note,
            outbox_id,
        )
