"""Compression leases: they avoid paying for two summaries of the same session.

A lease only says who may try; `rotate` is what prevents a double compression. Expiry is measured
on the monotonic clock, which is not affected by changes of the system time. A lease is live while
0 < expires - now <= ttl. The monotonic clock restarts at a reboot, so a lease from before a reboot
is void at once, or after one ttl at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes.errors import StoreError
from hermes.messages import RUNTIME_HOLDER, Lease
from hermes.store.transaction import Row, Transaction

DEFAULT_TTL = 30.0
# One second of slack, because (now + ttl) - now may be slightly more than ttl.
_LIVE = (
    "leases.holder IS NOT NULL AND leases.expires - ? > 0 AND leases.expires - ? <= leases.ttl + 1"
)
_HELD = _LIVE.replace("?", "?5")
# One statement: what it decides on cannot change before it writes.
_ACQUIRE = f"""
INSERT INTO leases (session_id, holder, token, expires, ttl) VALUES (?1, ?2, 1, ?3, ?4)
ON CONFLICT (session_id) DO UPDATE SET
  token = leases.token + CASE WHEN {_HELD} THEN 0 ELSE 1 END,
  holder = excluded.holder, expires = excluded.expires, ttl = excluded.ttl
WHERE leases.holder = excluded.holder OR NOT ({_HELD})
RETURNING token
"""


def acquire_lease(
    tx: Transaction, session_id: str, holder: str, ttl_seconds: float = DEFAULT_TTL
) -> Lease | None:
    """Acquire or renew the lease, or return None if another holder has a live one.

    The token grows with every new holder. Raises `StoreError` if `leases` is not a table: a view
    may show a holder who never releases the lease.
    """
    if not tx.has_leases():
        raise StoreError("no such table: leases")
    wanted = (session_id, holder, tx.steady + ttl_seconds, ttl_seconds)
    rows = tx.all(_ACQUIRE, *wanted, tx.steady)
    if not rows and get_compression_lock_holder(tx, session_id) is not None:
        return None
    # A trigger of another program may ignore the row: leases are optional.
    return Lease(session_id, holder, rows[0][0] if rows else 1)


def try_acquire_compression_lock(
    tx: Transaction, session_id: str, holder: str, ttl_seconds: float = DEFAULT_TTL
) -> bool:
    """Acquire or renew the lease, and return whether this holder has it now."""
    return acquire_lease(tx, session_id, holder, ttl_seconds) is not None


def refresh_compression_lock(
    tx: Transaction, session_id: str, holder: str, ttl_seconds: float = DEFAULT_TTL
) -> bool:
    """Extend a live lease of this holder. Return False if it has none."""
    sql = "UPDATE leases SET expires = ?, ttl = ? WHERE session_id = ? AND holder = ? AND " + _LIVE
    values = (tx.steady + ttl_seconds, ttl_seconds, session_id, holder, tx.steady, tx.steady)
    return tx.run(sql, *values) == 1


def release_compression_lock(tx: Transaction, session_id: str, holder: str) -> bool:
    """Release the lease if this holder has it, and return whether it had."""
    return tx.run(_RELEASE + " AND holder = ?", session_id, holder) == 1


_RELEASE = "UPDATE leases SET holder = NULL WHERE session_id = ?"


def get_compression_lock_holder(tx: Transaction, session_id: str) -> str | None:
    """Return the holder of the live lease, or None."""
    row = _row(tx, session_id)
    return row[0] if row is not None and row[2] else None


def _row(tx: Transaction, session_id: str) -> Row | None:
    return tx.one(
        f"SELECT holder, token, {_LIVE} FROM leases WHERE session_id = ?",
        tx.steady,
        tx.steady,
        session_id,
    )


def new_holder(tx: Transaction, lease: Lease) -> str | None:
    """Return who has acquired the lease since it was granted, or None if nobody has.

    Returns None if the table is missing or has another shape: leases are optional, `rotate` is
    still safe.
    """
    if not tx.has_leases():
        return None
    sql = "SELECT token, holder FROM leases WHERE session_id = ?"
    for token, holder in tx.optional(sql, lease.session_id):
        if isinstance(token, int) and token > lease.token:
            return str(holder or "a later holder")
    return None


def release(tx: Transaction, session_id: str) -> None:
    """Release the lease of a session that has been rotated, whoever holds it."""
    tx.optional(_RELEASE, session_id)


def delete(tx: Transaction, session_id: str) -> None:
    """Delete the lease of a session that is being deleted."""
    tx.optional("DELETE FROM leases WHERE session_id = ?", session_id)


def forget_runtimes(tx: Transaction, living: Sequence[int] = ()) -> int:
    """Release the leases of earlier runtimes, at the start of one. Return how many there were.

    Those of the nodes in `living` are kept.
    """
    if not tx.has_leases():
        return 0
    kept = [f"{RUNTIME_HOLDER}{node}:" for node in living]
    sql = "UPDATE leases SET holder = NULL WHERE holder LIKE ? || '%'"
    return tx.run(sql + " AND holder NOT LIKE ? || '%'" * len(kept), RUNTIME_HOLDER, *kept)
