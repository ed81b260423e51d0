"""Inbox rows: accepted messages, each open until a turn or an answer closes it.

`accept` and `commit_turn`, the two transactions of a turn, are in `turns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from hermes.messages import Inbound, InboxReply, InboxRow, Outbound, Source
from hermes.store.conversations import outbox
from hermes.store.transaction import Transaction

decode: Final = msgspec.json.Decoder(Inbound).decode
"""Decode the body of an inbox row."""


def count_open(tx: Transaction, session_key: str) -> int:
    """Return how many messages of this key are open."""
    row = tx.one("SELECT count(*) FROM inbox WHERE session_key = ? AND state = 'open'", session_key)
    assert row is not None
    return int(row[0])


def open_inbox(
    tx: Transaction, session_key: str | None = None, *, after: int = 0, limit: int = 1000
) -> list[InboxRow]:
    """Return open messages in inbox order, of one key or of all keys.

    To read page by page, pass the last `inbox_id` of a page as `after` of the next.
    """
    only, values = ("AND session_key = ?", (session_key,)) if session_key else ("", ())
    found = tx.all(
        "SELECT id, body, attempts, accepted_at FROM inbox INDEXED BY inbox_open "
        f"WHERE state = 'open' AND id > ? {only} "
        "ORDER BY id LIMIT ?",
        after,
        *values,
        limit,
    )
    return [InboxRow(row[0], decode(row[1]), row[2], row[3]) for row in found]


def waiting_keys(tx: Transaction, after: int = 0, limit: int = 1000) -> list[tuple[str, int]]:
    """Return the keys that have open messages, each with the id of its first one, in that order.

    To read page by page, pass the last id of a page as `after` of the next.
    """
    found = tx.all(
        "SELECT session_key, min(id) AS first FROM inbox INDEXED BY inbox_open "
        "WHERE state = 'open' GROUP BY session_key HAVING first > ? ORDER BY first LIMIT ?",
        after,
        limit,
    )
    return [(row[0], row[1]) for row in found]


def all_open(tx: Transaction, inbox_ids: Sequence[int], session_key: str) -> bool:
    """Return whether each of these rows is open and belongs to this key."""
    sql = "SELECT 1 FROM inbox WHERE id = ? AND session_key = ? AND state = 'open'"
    return all(tx.one(sql, inbox_id, session_key) for inbox_id in inbox_ids)


def source_of(tx: Transaction, inbox_id: int) -> Source:
    """Return where an open message came from."""
    row = tx.one("SELECT body FROM inbox WHERE id = ? AND body IS NOT NULL", inbox_id)
    return Source() if row is None else decode(row[0]).source


def start_inbox(tx: Transaction, inbox_ids: Sequence[int]) -> None:
    """Count another attempt for each of these rows."""
    for inbox_id in inbox_ids:
        tx.run("UPDATE inbox SET attempts = attempts + 1 WHERE id = ?", inbox_id)


def has_started(tx: Transaction, session_key: str) -> bool:
    """Return whether a turn was started for an open message of this key."""
    rows = open_inbox(tx, session_key)
    return any(row.attempts > 0 and not row.inbound.command for row in rows)


def finish(tx: Transaction, inbox_ids: Sequence[int]) -> int:
    """Close rows whose turn is committed; return how many of them were open.

    The text of a closed row is dropped: it is in the transcript. The row itself stays, so that a
    repeated event is recognized.
    """
    sql = (
        "UPDATE inbox SET state = 'done', closed_at = ?, body = NULL WHERE id = ? "
        "AND state = 'open'"
    )
    return sum(tx.run(sql, tx.now, inbox_id) for inbox_id in inbox_ids)


def park_inbox(
    tx: Transaction, inbox_ids: Sequence[int], note: str, *, answer: InboxReply | None = None
) -> int:
    """Set open rows aside that cannot be finished; return how many there were.

    Parked rows keep their text. `answer` is sent to the user if any row was open.
    """
    parked = sum(
        tx.run(
            "UPDATE inbox SET state = 'parked', closed_at = ?, note = ? "
            "WHERE id = ? AND state = 'open'",
            tx.now,
            note,
            inbox_id,
        )
        for inbox_id in inbox_ids
    )
    if answer is not None and parked:
        outbox.enqueue(tx, answer.session_key, min(inbox_ids), answer.outbox)
    return parked


def close(tx: Transaction, answer: InboxReply | None, session_id: str | None = None) -> None:
    """Close the rows of an answer and enqueue its replies, as part of a larger transaction.

    Nothing is enqueued if all rows were closed before. `session_id` replaces the session that the
    replies name, if the transaction has just moved the conversation there.
    """
    if answer is None:
        return
    if finish(tx, answer.inbox_ids) or not answer.inbox_ids:
        # The last row is the one that is answered; it closes the others.
        turn_id = max(answer.inbox_ids, default=0)
        replies = answer.outbox
        if session_id is not None:
            replies = [addressed(reply, session_id) for reply in replies]
        outbox.enqueue(tx, answer.session_key, turn_id, replies)


def addressed(reply: Outbound, session_id: str) -> Outbound:
    """Return the reply with the session that the transaction has settled on."""
    if "session_id" not in reply.body:
        return reply
    return Outbound(reply.lane, {**reply.body, "session_id": session_id})
