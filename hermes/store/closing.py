"""The end of inbox rows: their turn is in the transcript, or they were answered without one."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import Answer
from hermes.store import outbox
from hermes.store.tx import Tx


def finish(tx: Tx, inbox_ids: Sequence[int]) -> None:
    """The rows had their turn. Their text is in the transcript now, so only the receipt stays."""
    for inbox_id in inbox_ids:
        tx.run(
            "UPDATE inbox SET state = 'done', closed_at = ?, body = NULL "
            "WHERE id = ? AND state = 'open'",
            tx.now,
            inbox_id,
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
    close(tx, answer)
    return parked


def close(tx: Tx, answer: Answer | None) -> None:
    """End the rows of an answer and write what is said to them, with whatever else is done."""
    if answer is not None:
        finish(tx, answer.inbox_ids)
        outbox.enqueue(tx, answer.session_key, min(answer.inbox_ids), answer.outbox)
