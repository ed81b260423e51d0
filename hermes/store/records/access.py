"""Who was let in, and who asks to be: codes are kept as salted digests, and are good once."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence

import msgspec

from hermes.messages import InboxReply, Outbound, Pairing, PairingRejected, Principal, Role, Source
from hermes.store.conversations import codec, inbox_end, outbox
from hermes.store.transaction import Row, Transaction

PAIRING_SECONDS = 3600.0
MAX_FRESH, FRESH_SECONDS = 3, 300.0
"""So many strangers get a code at one account of a platform in any stretch of so many seconds.

It is a rate and no queue: nobody can keep others out by waiting, and nobody loses his place. So at
most 36 wait at a time.
"""
MAX_WRONG = 5
LOCKED_SECONDS = 3600.0
SHOWN = 1000
_SOURCE = msgspec.json.Decoder(Source).decode
_PAIRING = "source, session_key, asked_at, expires_at"
_WHO = "platform = ? AND account = ? AND user_id = ?"


def find_principal(tx: Transaction, platform: str, account: str, user_id: str) -> Role | None:
    """The role of somebody an operator has let in; None for anybody else."""
    row = tx.one(f"SELECT role FROM principals WHERE {_WHO}", platform, account, user_id)
    return None if row is None else row[0]


def principals(tx: Transaction, limit: int = SHOWN) -> list[Principal]:
    """Everybody an operator has let in."""
    found = tx.all(
        "SELECT platform, account, user_id, role, name, paired_at FROM principals "
        "ORDER BY platform, account, user_id LIMIT ?",
        limit,
    )
    return [Principal(*row) for row in found]


def pairings(tx: Transaction) -> list[Pairing]:
    """The strangers who wait, the first one first."""
    found = tx.all(
        f"SELECT {_PAIRING} FROM pairings WHERE expires_at > ? ORDER BY asked_at", tx.now
    )
    return [_pairing(row) for row in found]


def request_pairing(
    tx: Transaction,
    source: Source,
    session_key: str,
    code: str,
    *,
    salt: str,
    say: Sequence[Outbound] = (),
) -> bool:
    """Let a stranger wait with a code, and tell it to him; False where he may not wait now.

    Who waits already is not told again, and at one account only some at a time get a code.
    """
    tx.run("DELETE FROM pairings WHERE expires_at <= ?", tx.now)
    platform, account, user_id = source.platform, source.account, source.user_id
    waiting: dict[str | None, float] = dict(
        tx.all(
            "SELECT user_id, asked_at FROM pairings WHERE platform = ? AND account = ?",
            platform,
            account,
        )
    )
    fresh = sum(asked_at > tx.now - FRESH_SECONDS for asked_at in waiting.values())
    if fresh >= MAX_FRESH or user_id in waiting:
        return False
    tx.run(
        "INSERT INTO pairings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        platform, account, user_id, session_key, codec.encode_whole(source),
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
    """Let the stranger in who waits with this code; answer and tell him in the same transaction.

    Who has been wrong too often is not asked for a while, whatever he tries.
    """
    found = _approve(tx, code, role, by)
    if answer is not None:
        inbox_end.close(tx, answer(found))
    if welcome is not None and isinstance(found, Pairing):
        outbox.enqueue(tx, found.session_key, 0, welcome(found))
    return found


def _approve(tx: Transaction, code: str, role: Role, by: Source) -> Pairing | PairingRejected:
    operator = (by.platform, by.account, by.user_id or "")
    wrong, seconds = _wrong(tx, operator)
    if wrong >= MAX_WRONG:
        return PairingRejected(0, seconds)
    pairing = _matching(tx, code)
    if pairing is None:
        return _note_wrong(tx, operator, wrong + 1)
    stranger = pairing.source
    who = (stranger.platform, stranger.account, stranger.user_id)
    tx.run(f"DELETE FROM pairings WHERE {_WHO}", *who)
    tx.run(f"DELETE FROM wrong_codes WHERE {_WHO}", *operator)
    tx.run(
        "INSERT INTO principals VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
        "SET role = excluded.role, name = excluded.name, paired_at = excluded.paired_at",
        *who, role, stranger.user_name, tx.now,
    )  # fmt: skip
    return pairing


def _matching(tx: Transaction, code: str) -> Pairing | None:
    found = None
    sql = f"SELECT {_PAIRING}, salt, digest FROM pairings WHERE expires_at > ?"
    for *row, salt, digest in tx.all(sql, tx.now):  # all of them: time must not tell which
        if hmac.compare_digest(_digest(salt, code), digest):
            found = _pairing(tuple(row))
    return found


def _wrong(tx: Transaction, operator: tuple[str, str, str]) -> tuple[int, float]:
    """How often he has been wrong of late, and how long that counts."""
    row = tx.one(f"SELECT number, latest FROM wrong_codes WHERE {_WHO}", *operator)
    if row is None or row[1] + LOCKED_SECONDS <= tx.now:
        return 0, 0.0
    return row[0], row[1] + LOCKED_SECONDS - tx.now


def _note_wrong(tx: Transaction, operator: tuple[str, str, str], number: int) -> PairingRejected:
    tx.run("INSERT OR REPLACE INTO wrong_codes VALUES (?, ?, ?, ?, ?)", *operator, number, tx.now)
    return PairingRejected(MAX_WRONG - number, 0.0 if number < MAX_WRONG else LOCKED_SECONDS)


def unpair(
    tx: Transaction,
    platform: str,
    user_id: str,
    *,
    answer: Callable[[int], InboxReply] | None = None,
) -> int:
    """Take back what somebody was let in by, at every account of a platform, and his request.

    Says how many rows that were.
    """
    number = sum(
        tx.run(f"DELETE FROM {table} WHERE platform = ? AND user_id = ?", platform, user_id)
        for table in ("principals", "pairings")
    )
    if answer is not None:
        inbox_end.close(tx, answer(number))
    return number


def _digest(salt: str, code: str) -> str:
    return hashlib.blake2b(code.encode(), key=bytes.fromhex(salt)).hexdigest()


def _pairing(row: Row) -> Pairing:
    return Pairing(_SOURCE(row[0]), *row[1:])
