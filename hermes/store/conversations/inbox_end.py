"""The end of inbox rows: their turn is in the transcript, or they were answered without one."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import InboxReply, Outbound
from hermes.store.conversations import outbox
from hermes.store.transaction import Transaction


def finish(tx: Transaction, inbox_ids: Sequence[int]) -> int:
    """The rows had their turn, and only the receipt of each stays; says how many were open.

    Their text is in the transcript now.
    """
    return sum(
        tx.run(
            "UPDATE inbox SET state = 'done', closed_at = ?, body = NULL "
            "WHERE id = ? AND state = 'open'",
            tx.now,
            inbox_id,
        )
        for inbox_id in inbox_ids
    )


def park_inbox(
    tx: Transaction, inbox_ids: Sequence[int], note: str, *, answer: InboxReply | None = None
) -> int:
    """Set open rows aside that cannot be finished; they keep their text. Returns how many."""
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
    """End the rows of an answer and write what is said to them, with whatever else is done.

    `session_id` is where the conversation goes on, if that is elsewhere. Nothing is said to rows
    that were answered before.
    """
    if answer is None:
        return
    if finish(tx, answer.inbox_ids) or not answer.inbox_ids:
        turn_id = max(answer.inbox_ids, default=0)  # the last is answered; it ended the others
        said = answer.outbox
        if session_id is not None:
            said = [addressed(reply, session_id) for reply in said]
        outbox.enqueue(tx, answer.session_key, turn_id, said)


def addressed(reply: Outbound, session_id: str) -> Outbound:
    """The reply with the session it belongs to, which only the transaction knows for certain."""
    if "session_id" not in reply.body:
        return reply
    return Outbound(reply.lane, {**reply.body, "session_id": session_id})
