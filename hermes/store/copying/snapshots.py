"""What a snapshot does not take over, so that it and its source never do the same work twice.

It has all conversations, and no secret with which the source lets anybody in. What the source is
about to do is closed in the snapshot: messages without an answer, replies that were not sent,
hooks that were not called, and questions to users.
"""

from __future__ import annotations

from typing import Final

from hermes.store.transaction import Transaction

NOTE: Final = "closed in a snapshot"
SECRETS: Final = ("tokens", "sign_ins", "pairings", "wrong_codes")
"""Tables with hashes of secrets."""
PROCESSES: Final = ("leases", "api_processes")
"""Tables about processes that use the source."""


def detach(tx: Transaction) -> None:
    """Remove secrets from a snapshot, and close what its source is about to do."""
    for table in (*SECRETS, *PROCESSES):
        tx.run(f"DELETE FROM {table}")
    tx.run("DELETE FROM once_calls")
    tx.run(
        "UPDATE inbox SET state = 'done', closed_at = ?, body = NULL, note = ? "
        "WHERE state = 'open'",
        tx.now, NOTE,
    )  # fmt: skip
    tx.run(
        "UPDATE outbox SET state = 'dead', closed_at = ?, note = ? "
        "WHERE state IN ('pending', 'sending')",
        tx.now, NOTE,
    )  # fmt: skip
    tx.run("UPDATE boundaries SET closed_at = ?, error = ? WHERE closed_at IS NULL", tx.now, NOTE)
    tx.run("UPDATE approvals SET state = 'denied' WHERE state IN ('pending', 'approved')")
    tx.run("DELETE FROM meta WHERE key LIKE 'adapter:%'")
