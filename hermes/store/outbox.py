"""Replies on their way out: written with the turn, sent in order, one lane per chat."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hermes.messages import Outbound, OutboxRow
from hermes.store import rows
from hermes.store.tx import Tx

_COLUMNS = "id, session_key, turn_id, lane, body, state, attempts, recovered"


def enqueue(tx: Tx, session_key: str, turn_id: int, replies: Sequence[Outbound]) -> None:
    """Write the replies of a turn."""
    for reply in replies:
        body = rows.encode_whole(reply.body)
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
    tx: Tx, lane: str | None = None, *, after: int = 0, limit: int = 1000
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
        OutboxRow(id_, key, turn_id, lane_, msgspec.json.decode(body), state, tries, bool(again))
        for id_, key, turn_id, lane_, body, state, tries, again in found
    ]


def mark_sending(tx: Tx, outbox_ids: Sequence[int]) -> None:
    """A send begins: from here to `mark_sent` its outcome is unknown."""
    for outbox_id in outbox_ids:
        tx.run(
            "UPDATE outbox SET state = 'sending', attempts = attempts + 1 "
            "WHERE id = ? AND state = 'pending'",
            outbox_id,
        )


def mark_sent(tx: Tx, outbox_ids: Sequence[int]) -> None:
    """The platform took them."""
    _close(tx, outbox_ids, "sent", None)


def mark_dead(tx: Tx, outbox_ids: Sequence[int], note: str) -> None:
    """They can never be sent: the chat is gone."""
    _close(tx, outbox_ids, "dead", note)


def mark_unsent(tx: Tx, outbox_ids: Sequence[int]) -> None:
    """The send surely failed; it will be tried again."""
    for outbox_id in outbox_ids:
        tx.run("UPDATE outbox SET state = 'pending' WHERE id = ? AND state = 'sending'", outbox_id)


def recover_outbox(tx: Tx) -> int:
    """At a start: what was in flight when the last process ended is sent again, and marked so."""
    return tx.run(
        "UPDATE outbox INDEXED BY outbox_open SET state = 'pending', recovered = 1 "
        "WHERE state IN ('pending', 'sending') AND state = 'sending'"
    )


def _close(tx: Tx, outbox_ids: Sequence[int], state: str, note: str | None) -> None:
    for outbox_id in outbox_ids:
        tx.run(
            "UPDATE outbox SET state = ?, closed_at = ?, note = ? "
            "WHERE id = ? AND state IN ('pending', 'sending')",
            state,
            tx.now,
            note,
            outbox_id,
        )
