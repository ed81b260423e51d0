"""Compression leases: they save paying for two summaries. What protects is `rotate`.

Expiry only says when another may try, and is measured on the machine's steady clock, which setting
the date does not move. A lease is live while 0 < expires - now <= ttl; after a reboot that clock
begins anew, so a left-over lease is void at once or at the latest after one ttl.
"""

from __future__ import annotations

from hermes.messages import RUNTIME_HOLDER, Lease
from hermes.store.transaction import Row, Transaction

DEFAULT_TTL = 30.0
# One second of slack: (now + ttl) - now may come out a little above ttl.
_LIVE = "holder IS NOT NULL AND expires - ? > 0 AND expires - ? <= ttl + 1"


def acquire_lease(
    tx: Transaction, session_id: str, holder: str, ttl_seconds: float = DEFAULT_TTL
) -> Lease | None:
    """Take or keep the lease; None while another holder's is live. A new holder, a higher token."""
    row = _row(tx, session_id)
    live = row is not None and bool(row[2])
    if live and row is not None and row[0] != holder:
        return None
    token = (0 if row is None else int(row[1])) + (0 if live else 1)
    tx.run(
        "INSERT INTO leases (session_id, holder, token, expires, ttl) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (session_id) DO UPDATE SET holder = excluded.holder, token = excluded.token, "
        "expires = excluded.expires, ttl = excluded.ttl",
        session_id,
        holder,
        token,
        tx.steady + ttl_seconds,
        ttl_seconds,
    )
    return Lease(session_id, holder, token)


def try_acquire_compression_lock(
    tx: Transaction, session_id: str, holder: str, ttl_seconds: float = DEFAULT_TTL
) -> bool:
    """Whether the lease is this holder's now."""
    return acquire_lease(tx, session_id, holder, ttl_seconds) is not None


def refresh_compression_lock(
    tx: Transaction, session_id: str, holder: str, ttl_seconds: float = DEFAULT_TTL
) -> bool:
    """Keep a live lease of this holder alive."""
    sql = "UPDATE leases SET expires = ?, ttl = ? WHERE session_id = ? AND holder = ? AND " + _LIVE
    values = (tx.steady + ttl_seconds, ttl_seconds, session_id, holder, tx.steady, tx.steady)
    return tx.run(sql, *values) == 1


def release_compression_lock(tx: Transaction, session_id: str, holder: str) -> bool:
    """Give the lease back; another holder's stays."""
    return tx.run(_RELEASE + " AND holder = ?", session_id, holder) == 1


_RELEASE = "UPDATE leases SET holder = NULL WHERE session_id = ?"


def get_compression_lock_holder(tx: Transaction, session_id: str) -> str | None:
    """Whose live lease it is."""
    row = _row(tx, session_id)
    return row[0] if row is not None and row[2] else None


def _row(tx: Transaction, session_id: str) -> Row | None:
    return tx.one(
        f"SELECT holder, token, {_LIVE} FROM leases WHERE session_id = ?",
        tx.steady,
        tx.steady,
        session_id,
    )


def taken_from(tx: Transaction, lease: Lease) -> str | None:
    """Who took the lease since, if anybody did; a missing table stops nothing."""
    if _is_missing(tx):
        return None
    row = tx.one("SELECT token, holder FROM leases WHERE session_id = ?", lease.session_id)
    if row is None or row[0] == lease.token:
        return None
    return row[1] or "a later holder"


def drop(tx: Transaction, session_id: str) -> None:
    """The session was rotated: nobody needs its lease."""
    if not _is_missing(tx):
        tx.run(_RELEASE, session_id)


def forget_runtimes(tx: Transaction) -> int:
    """A runtime begins: leases of those before it are nobody's. Returns how many there were."""
    if _is_missing(tx):
        return 0
    return tx.run("UPDATE leases SET holder = NULL WHERE holder LIKE ? || '%'", RUNTIME_HOLDER)


def _is_missing(tx: Transaction) -> bool:
    return not tx.db.table_exists("main", "leases")
