"""Signing in to the web page: one-time tokens, and people who were let in with a code."""

from __future__ import annotations

from msgspec.structs import replace

from hermes.messages import Person, Token
from hermes.store.records import tokens
from hermes.store.records.access import PAIRING_SECONDS
from hermes.store.transaction import Transaction

SECONDS = 60.0
"""How long a one-time token is valid."""
MAX_WAITING = 100
"""One-time tokens at the same time."""
MAX_SESSIONS = 50
"""Sessions of one person; a new one revokes the oldest."""
KEPT_SECONDS = 30 * 86_400.0
"""How long a session is kept that was revoked or has expired."""
_IS_OPEN = "abs(created_at - ?) < ?"
"""One that is dated further ahead than it lasts was written with a clock that was wrong."""


def add_sign_in(tx: Transaction, digest: str, person: Person) -> None:
    """Store a one-time token with which a person can sign in."""
    tx.run(f"DELETE FROM sign_ins WHERE NOT {_IS_OPEN}", tx.now, SECONDS)
    tx.run(
        "DELETE FROM sign_ins WHERE digest NOT IN "
        "(SELECT digest FROM sign_ins ORDER BY created_at DESC, digest LIMIT ?)",
        MAX_WAITING - 1,
    )
    tx.run(
        "INSERT INTO sign_ins (digest, namespace, name, role, created_at) VALUES (?, ?, ?, ?, ?)",
        digest, person.namespace, person.name, person.role, tx.now,
    )  # fmt: skip


def find_sign_in(tx: Transaction, digest: str) -> Person | None:
    """Return who can sign in with a one-time token; None if it is not valid or was used."""
    sql = f"SELECT namespace, name, role FROM sign_ins WHERE digest = ? AND {_IS_OPEN}"
    row = tx.one(sql, digest, tx.now, SECONDS)
    return None if row is None else Person(namespace=row[0], name=row[1], role=row[2])


def sign_in(tx: Transaction, digest: str, session: Token, session_digest: str) -> Token | None:
    """Use a one-time token: store a session of its person, with the hash of its secret.

    Returns None if the token is not valid or was used.
    """
    person = find_sign_in(tx, digest)
    if person is None or not tx.run("DELETE FROM sign_ins WHERE digest = ?", digest):
        return None
    return _open_session(tx, person, session, session_digest)


def sign_in_paired(
    tx: Transaction, user_id: str, session: Token, session_digest: str
) -> Token | None:
    """Store the first session of a person whom an operator has let in with a code.

    Returns None if nobody did within the last hour, or if the person has signed in already.
    """
    row = tx.one(
        "SELECT name, role FROM principals WHERE platform = ? AND account = '' AND user_id = ? "
        "AND abs(paired_at - ?) < ?",
        tokens.WEB, user_id, tx.now, PAIRING_SECONDS,
    )  # fmt: skip
    sql = "DELETE FROM principals WHERE platform = ? AND account = '' AND user_id = ?"
    if row is None or not tx.run(sql, tokens.WEB, user_id):
        return None
    person = Person(namespace=user_id, name=row[0] or user_id, role=row[1])
    return _open_session(tx, person, session, session_digest)


def clear_sign_ins(tx: Transaction) -> None:
    """Delete all one-time tokens: none outlives the process that serves the page."""
    tx.run("DELETE FROM sign_ins")


def _open_session(tx: Transaction, person: Person, session: Token, digest: str) -> Token:
    ended = "coalesce(revoked_at, expires_at) < ?"
    tx.run(f"DELETE FROM tokens WHERE platform = ? AND {ended}", tokens.WEB, tx.now - KEPT_SECONDS)
    sessions = tx.all(
        "SELECT id FROM tokens WHERE platform = ? AND namespace = ? AND revoked_at IS NULL "
        "ORDER BY created_at DESC, id",
        tokens.WEB, person.namespace,
    )  # fmt: skip
    for (session_id,) in sessions[MAX_SESSIONS - 1 :]:
        tokens.revoke_token(tx, session_id)
    session = replace(
        session, platform=tokens.WEB, namespace=person.namespace, name=person.name,
        roles=(person.role,), keys=(),
    )  # fmt: skip
    return tokens.add_token(tx, session, digest)
