"""The end of inbox rows: their turn is in the transcript, or they were answered without one."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import Answer
from hermes.store import outbox
from hermes.store.tx import Tx


def finish(tx: Tx, inbox_ids: Sequence[int]) -> int:
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


def park_inbox(tx: Tx, inbox_ids: Sequence[int], note: str, *, answer: Answer | None = None) -> int:
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


def close(tx: Tx, answer: Answer | None) -> None:
    """End the rows of an answer and write what is said to them, with whatever else is done.

    Nothing is said to rows that were answered before.
    """
    if answer is None:
        return
    if finish(tx, answer.inbox_ids) or not answer.inbox_ids:
        turn_id = min(answer.inbox_ids, default=0)
        outbox.enqueue(tx, answer.session_key, turn_id, answer.outbox)
