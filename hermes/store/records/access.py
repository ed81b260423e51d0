"""Access: paired users (principals) and pairing requests.

A pairing code is stored as a salted digest only, and can be used once.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

import msgspec

from hermes.messages import InboxReply, Outbound, Pairing, PairingRejected, Principal, Role, Source
from hermes.store.conversations import codec, inbox, outbox
from hermes.store.transaction import Row, Transaction

PAIRING_SECONDS = 3600.0
MAX_NEW_REQUESTS, NEW_REQUEST_SECONDS = 3, 300.0
"""How many pairing codes one account of a platform gives out within how many seconds.

This is a rate limit, not a queue, so nobody can block others by waiting. It also bounds the number
of pending requests (36).
"""
MAX_WRONG_CODES = 5
LOCKOUT_SECONDS = 3600.0
MAX_LISTED = 1000
_SOURCE = msgspec.json.Decoder(Source).decode
_PAIRING_COLUMNS = "source, session_key, asked_at, expires_at"
_IS_USER = "platform = ? AND account = ? AND user_id = ?"
_IS_OPEN = "abs(asked_at - ?) < expires_at - asked_at"
"""One that is dated further ahead than it lasts was written with a clock that was wrong."""
_COUNTS = "NOT EXISTS (SELECT 1 FROM tokens WHERE id = account AND expires_at <= ?)"
"""A token of the HTTP API or a session of the web page is a principal until it expires."""


def find_principal(tx: Transaction, platform: str, account: str, user_id: str) -> Role | None:
    """Return the role of a paired user or a token, or None."""
    sql = f"SELECT role FROM principals WHERE {_IS_USER} AND {_COUNTS}"
    row = tx.one(sql, platform, account, user_id, tx.now)
    return None if row is None else row[0]


def principals(tx: Transaction, limit: int = MAX_LISTED) -> list[Principal]:
    """Return the paired users, and the tokens of the HTTP API that are valid."""
    rows = tx.all(
        "SELECT platform, account, user_id, role, name, paired_at FROM principals "
        f"WHERE {_COUNTS} ORDER BY platform, account, user_id LIMIT ?",
        tx.now,
        limit,
    )
    return [Principal(*row) for row in rows]


def pairings(tx: Transaction) -> list[Pairing]:
    """Return the pending pairing requests, oldest first."""
    rows = tx.all(
        f"SELECT {_PAIRING_COLUMNS} FROM pairings WHERE {_IS_OPEN} ORDER BY asked_at", tx.now
    )
    return [_pairing(row) for row in rows]


def request_pairing(
    tx: Transaction,
    source: Source,
    session_key: str,
    code: str,
    *,
    salt: str,
    say: Sequence[Outbound] = (),
) -> bool:
    """Record a pairing request with its code, and enqueue the messages `say` to the user.

    Returns False, and does nothing, if the user has a pending request already or if the account
    has given out too many codes recently.
    """
    tx.run(f"DELETE FROM pairings WHERE NOT {_IS_OPEN}", tx.now)
    platform, account, user_id = source.platform, source.account, source.user_id
    tx.lock_key(f"pairing {platform} {account}")  # one request after the other is counted
    pending: dict[str | None, float] = dict(
        tx.all(
            "SELECT user_id, asked_at FROM pairings WHERE platform = ? AND account = ?",
            platform,
            account,
        )
    )
    recent = sum(abs(asked_at - tx.now) < NEW_REQUEST_SECONDS for asked_at in pending.values())
    if recent >= MAX_NEW_REQUESTS or user_id in pending:
        return False
    tx.run(
        "INSERT INTO pairings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        platform, account, user_id, session_key, codec.encode_json(source),
        salt, _digest(salt, code), tx.now, tx.now + PAIRING_SECONDS,
    )  # fmt: skip
    outbox.enqueue(tx, session_key, 0, say)
    return True


def approve_pairing(
    tx: Transaction,
    code: str,
    role: Role,
    by: Source,
    *,
    answer: Callable[[Pairing | PairingRejected], InboxReply] | None = None,
    welcome: Callable[[Pairing], Sequence[Outbound]] | None = None,
) -> Pairing | PairingRejected:
    """Pair the user who has this code, with the given role.

    `by` is the operator; after `MAX_WRONG_CODES` wrong codes all its attempts are rejected for
    `LOCKOUT_SECONDS`. `answer` gives the reply to the operator's command, `welcome` the messages to
    the new user; both are written in the same transaction.
    """
    result = _approve(tx, code, role, by)
    if answer is not None:
        inbox.close(tx, answer(result))
    if welcome is not None and isinstance(result, Pairing):
        outbox.enqueue(tx, result.session_key, 0, welcome(result))
    return result


def _approve(tx: Transaction, code: str, role: Role, by: Source) -> Pairing | PairingRejected:
    operator = (by.platform, by.account, by.user_id or "")
    attempt = _count_attempt(tx, operator)
    if attempt is None:
        return PairingRejected(0, _lockout(tx, operator))
    pairing = _find_pairing(tx, code)
    if pairing is None or not _use_pairing(tx, pairing):
        seconds = 0.0 if attempt < MAX_WRONG_CODES else LOCKOUT_SECONDS
        return PairingRejected(MAX_WRONG_CODES - attempt, seconds)
    user = pairing.source
    identity = (user.platform, user.account, user.user_id)
    tx.run(f"DELETE FROM wrong_codes WHERE {_IS_USER}", *operator)
    tx.run(
        "INSERT INTO principals (platform, account, user_id, role, name, paired_at) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (platform, account, user_id) DO UPDATE "
        "SET role = excluded.role, name = excluded.name, paired_at = excluded.paired_at",
        *identity, role, user.user_name, tx.now,
    )  # fmt: skip
    return pairing


def _find_pairing(tx: Transaction, code: str) -> Pairing | None:
    match = None
    sql = f"SELECT {_PAIRING_COLUMNS}, salt, digest FROM pairings WHERE {_IS_OPEN}"
    for *row, salt, digest in tx.all(sql, tx.now):  # no early exit: timing must not reveal a match
        if hmac.compare_digest(_digest(salt, code), digest):
            match = _pairing(tuple(row))
    return match


def _use_pairing(tx: Transaction, pairing: Pairing) -> bool:
    """Delete the request, and return whether it was still there."""
    user = pairing.source
    sql = f"DELETE FROM pairings WHERE {_IS_USER} AND asked_at = ?"
    return tx.run(sql, user.platform, user.account, user.user_id, pairing.asked_at) == 1


# One that is dated later than a lockout lasts was written with a clock that was wrong.
_OUTDATED = "abs(wrong_codes.latest - excluded.latest) >= ?"


def _count_attempt(tx: Transaction, operator: tuple[str, str, str]) -> int | None:
    """Count an attempt as wrong, before its code is known to be right.

    Returns the number of wrong codes so far, or None if there were too many: one statement, so that
    no attempt is lost.
    """
    rows = tx.all(
        "INSERT INTO wrong_codes (platform, account, user_id, number, latest) "
        "VALUES (?, ?, ?, 1, ?) "
        "ON CONFLICT (platform, account, user_id) DO UPDATE SET latest = excluded.latest, "
        f"number = CASE WHEN {_OUTDATED} THEN 1 ELSE wrong_codes.number + 1 END "
        f"WHERE {_OUTDATED} OR wrong_codes.number < ? RETURNING number",
        *operator,
        tx.now,
        *[LOCKOUT_SECONDS] * 2,
        MAX_WRONG_CODES,
    )
    return rows[0][0] if rows else None


def _lockout(tx: Transaction, operator: tuple[str, str, str]) -> float:
    """Return for how many seconds the wrong codes of an operator count."""
    row = tx.one(f"SELECT latest FROM wrong_codes WHERE {_IS_USER}", *operator)
    return 0.0 if row is None else max(0.0, row[0] + LOCKOUT_SECONDS - tx.now)


def unpair(
    tx: Transaction,
    platform: str,
    user_id: str,
    *,
    answer: Callable[[int], InboxReply] | None = None,
) -> int:
    """Remove a user's pairing and pending request, at every account of a platform.

    The user's tokens, or sessions of the web page, are revoked. Returns the number of removed rows.
    """
    tx.run(
        "UPDATE tokens SET revoked_at = ? WHERE revoked_at IS NULL AND platform = ? AND id IN "
        "(SELECT account FROM principals WHERE platform = ? AND user_id = ?)",
        tx.now, platform, platform, user_id,
    )  # fmt: skip
    number = sum(
        tx.run(f"DELETE FROM {table} WHERE platform = ? AND user_id = ?", platform, user_id)
        for table in ("principals", "pairings")
    )
    if answer is not None:
        inbox.close(tx, answer(number))
    return number


def _digest(salt: str, code: str) -> str:
    return hashlib.blake2b(code.encode(), key=bytes.fromhex(salt)).hexdigest()


def _pairing(row: Row) -> Pairing:
    return Pairing(_SOURCE(row[0]), *row[1:])
