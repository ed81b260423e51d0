"""Inbound messages, durable before anybody says "ok"."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hermes.errors import Overloaded
from hermes.messages import Accepted, ExpiryPolicy, Inbound, InboxRow, Receipt, Route, Source
from hermes.store.conversations import codec, routes, sessions
from hermes.store.transaction import Transaction

NEVER = ExpiryPolicy()
MAX_QUEUED = 100
MAX_BODY = 1_000_000
"""Characters of an inbound message as JSON; more is refused before it is acknowledged."""
_DECODE = msgspec.json.Decoder(Inbound).decode
_RECEIPT = "id, session_key, session_id, epoch, accepted_at"


def accept(
    tx: Transaction, inbound: Inbound, *, policy: ExpiryPolicy = NEVER, max_queued: int = MAX_QUEUED
) -> Accepted:
    """Make an inbound message durable: bound, route, expiry, inbox row and head together.

    The same event again gets the first receipt. `Overloaded` where too many wait for this key.
    """
    inbound, body = _checked(inbound)
    source, key = inbound.source, inbound.session_key
    row = tx.one(
        f"SELECT {_RECEIPT} FROM inbox WHERE platform = ? AND account = ? AND event_id = ?",
        source.platform,
        source.account,
        inbound.event_id,
    )
    if row is not None:
        receipt = Receipt(*row)
        return Accepted(receipt, sessions.head(tx, receipt.session_id), duplicate=True)
    waiting = routes.open_rows(tx, key)
    if waiting >= max_queued:
        raise Overloaded(f"{waiting} messages already wait for {key}; try again later")
    expired = _expire_overdue(tx, key)
    route = routes.settle(tx, key)
    routes.touch(tx, key, source, policy)
    inbox_id = _insert(tx, inbound, body, route, started=waiting == 0)
    receipt = Receipt(inbox_id, key, route.session_id, route.epoch, tx.now)
    head = sessions.head(tx, route.session_id)
    return Accepted(receipt, head, expired=expired, waiting=waiting, route=route, inbound=inbound)


def _expire_overdue(tx: Transaction, session_key: str) -> str | None:
    due = "SELECT epoch FROM routes WHERE session_key = ? AND expires_at <= ?"
    row = tx.one(due, session_key, tx.now)
    return None if row is None else routes.expire(tx, session_key, row[0])


def _insert(tx: Transaction, inbound: Inbound, body: str, route: Route, *, started: bool) -> int:
    tx.run(
        "INSERT INTO inbox (platform, account, event_id, session_key, session_id, epoch, body, "
        "accepted_at, attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        inbound.source.platform,
        inbound.source.account,
        inbound.event_id,
        inbound.session_key,
        route.session_id,
        route.epoch,
        body,
        tx.now,
        int(started),
    )
    return tx.db.last_insert_rowid()


def _checked(inbound: Inbound) -> tuple[Inbound, str]:
    """The message as it will be read again, and its JSON; ValueError where it cannot be."""
    routes.require_key(inbound.session_key)
    codec.require_shallow(inbound.parts)
    try:
        body = codec.encode_whole(inbound)
        inbound = _DECODE(body)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"the inbound message has a field of a wrong kind: {error}") from None
    if len(body) > MAX_BODY:
        raise ValueError(f"the message has {len(body)} characters; at most {MAX_BODY} are taken")
    if not inbound.event_id:
        raise ValueError("an inbound message needs an event_id: it tells a repetition from news")
    return inbound, body


def open_inbox(
    tx: Transaction, session_key: str | None = None, *, after: int = 0, limit: int = 1000
) -> list[InboxRow]:
    """Accepted messages that no turn has finished, in inbox order; of one key or of all."""
    only, values = ("AND session_key = ?", (session_key,)) if session_key else ("", ())
    found = tx.all(
        "SELECT id, body, attempts, accepted_at FROM inbox INDEXED BY inbox_open "
        f"WHERE state = 'open' AND id > ? {only} "
        "ORDER BY id LIMIT ?",
        after,
        *values,
        limit,
    )
    return [InboxRow(row[0], _DECODE(row[1]), row[2], row[3]) for row in found]


def waiting_keys(tx: Transaction, after: int = 0, limit: int = 1000) -> list[tuple[str, int]]:
    """The keys that messages wait for, by the first of these messages, which is named too."""
    found = tx.all(
        "SELECT session_key, min(id) AS first FROM inbox INDEXED BY inbox_open "
        "WHERE state = 'open' GROUP BY session_key HAVING first > ? ORDER BY first LIMIT ?",
        after,
        limit,
    )
    return [(row[0], row[1]) for row in found]


def all_open(tx: Transaction, inbox_ids: Sequence[int], session_key: str) -> bool:
    """Whether each of these rows still waits for its turn."""
    return all(
        tx.one(
            "SELECT 1 FROM inbox WHERE id = ? AND session_key = ? AND state = 'open'",
            inbox_id,
            session_key,
        )
        for inbox_id in inbox_ids
    )


def source_of(tx: Transaction, inbox_id: int) -> Source:
    """Where an open message came from."""
    row = tx.one("SELECT body FROM inbox WHERE id = ? AND body IS NOT NULL", inbox_id)
    return Source() if row is None else _DECODE(row[0]).source


def start_inbox(tx: Transaction, inbox_ids: Sequence[int]) -> None:
    """Count one more attempt for each of these rows."""
    for inbox_id in inbox_ids:
        tx.run("UPDATE inbox SET attempts = attempts + 1 WHERE id = ?", inbox_id)
