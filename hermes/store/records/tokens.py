"""Tokens of the HTTP API and sessions of the web page. Of a secret, the store has a hash only."""

from __future__ import annotations

import hmac
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from hermes.errors import InvalidToken
from hermes.messages import TOKEN_ROLES, Token
from hermes.sanitize import scrub
from hermes.store.transaction import Transaction

_COLUMNS = "id, name, namespace, roles, keys, created_at, expires_at, revoked_at, platform, client"
_VALID = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)"
_decode = msgspec.json.Decoder(tuple[str, ...]).decode
HTTP, WEB = "http", "web"
ID_PREFIX = "tok_"
MAX_NAME = 100
"""Bytes of a name or a namespace."""
MAX_KEYS, MAX_PATTERN = 100, 1000
"""How many patterns of keys a token has, and how many bytes each of them."""


def add_token(tx: Transaction, token: Token, digest: str) -> Token:
    """Store a token with the hash of its secret. Its `created_at` is set to the current time.

    A token with the role "user" or "operator" is a principal that access control admits until the
    token expires or is revoked. One with the role "metrics" alone is none. Raises `ValueError` if
    the token is not valid, or if another valid token has its name; sessions may share one.
    """
    _check(tx, token)
    if token.platform == HTTP:
        sql = f"SELECT 1 FROM tokens WHERE name = ? AND platform = ? AND {_VALID}"
        if tx.one(sql, token.name, HTTP, tx.now):
            raise ValueError(f"there is already a token with the name {token.name!r}")
        revoke_token(tx, token.name)  # one that has expired
    tx.run(
        "INSERT INTO tokens (id, name, digest, namespace, roles, keys, created_at, expires_at, "
        "platform, client) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        token.id, token.name, digest, token.namespace, _encode(token.roles), _encode(token.keys),
        tx.now, token.expires_at, token.platform, token.client,
    )  # fmt: skip
    for role in ("operator", "user"):
        if role in token.roles:
            _add_principal(tx, token, role)
            break
    return msgspec.structs.replace(token, created_at=tx.now)


def _check(tx: Transaction, token: Token) -> None:
    """Raise `ValueError` if a token is not valid."""
    for what, text in (("name", token.name), ("namespace", token.namespace)):
        _check_text(what, text)
    for pattern in token.keys:
        _check_text("pattern of keys", pattern, MAX_PATTERN)
    if len(token.keys) > MAX_KEYS:
        raise ValueError(f"a token has at most {MAX_KEYS} patterns of keys")
    if token.name.startswith(ID_PREFIX):
        raise ValueError(f"the name of a token must not start with {ID_PREFIX!r}, as its id does")
    unknown = [role for role in token.roles if role not in TOKEN_ROLES]
    if unknown or not token.roles:
        what = f"not {unknown[0]!r}" if unknown else "at least one"
        raise ValueError(f"the roles of a token are {', '.join(TOKEN_ROLES)}, {what}")
    if token.expires_at is not None and not tx.now < token.expires_at < math.inf:
        raise ValueError("the token would have expired already")


def _check_text(what: str, text: str, limit: int = MAX_NAME) -> None:
    # A namespace is percent-encoded in session keys, which have a maximum length.
    if not text.strip() or text != scrub(text) or len(text.encode()) > limit:
        raise ValueError(f"the {what} of a token has 1 to {limit} bytes, not {text!r:.50}")


def _add_principal(tx: Transaction, token: Token, role: str) -> None:
    tx.run(
        "INSERT INTO principals (platform, account, user_id, role, name, paired_at) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        token.platform, token.id, token.id if token.platform == HTTP else token.namespace, role,
        token.name, tx.now,
    )  # fmt: skip


def find_token(tx: Transaction, digest: str) -> Token | None:
    """Return the valid token with this hash; None if it is unknown, revoked or has expired."""
    sql = f"SELECT {_COLUMNS}, digest FROM tokens WHERE digest = ? AND {_VALID}"
    *row, stored = tx.one(sql, digest, tx.now) or (None,)
    # What the time of the lookup says about a hash says nothing about the secret.
    return _token(row) if stored and hmac.compare_digest(stored, digest) else None


def require_valid(tx: Transaction, token_id: str) -> None:
    """Raise `InvalidToken` if a token was revoked or has expired."""
    sql = f"SELECT 1 FROM tokens WHERE id = ? AND NOT ({_VALID})"
    if tx.one(sql, token_id, tx.now) is not None:
        raise InvalidToken("the token was revoked or has expired")


def valid_tokens(tx: Transaction) -> list[str]:
    """Return the ids of the tokens that are neither revoked nor expired."""
    return [row[0] for row in tx.all(f"SELECT id FROM tokens WHERE {_VALID}", tx.now)]


def valid_digests(tx: Transaction) -> list[str]:
    """Return the hashes of the secrets of the tokens that are neither revoked nor expired."""
    return [row[0] for row in tx.all(f"SELECT digest FROM tokens WHERE {_VALID}", tx.now)]


def list_tokens(tx: Transaction) -> list[Token]:
    """Return all tokens, revoked ones included, oldest first."""
    return [_token(row) for row in tx.all(f"SELECT {_COLUMNS} FROM tokens ORDER BY created_at, id")]


def revoke_token(tx: Transaction, name: str) -> Token | None:
    """Revoke the token with this name or id; None if there is none that is not revoked.

    It is no principal from then on.
    """
    named = "id = ? OR (name = ? AND platform = ?)"  # the name of a session is not its own
    sql = f"SELECT {_COLUMNS} FROM tokens WHERE revoked_at IS NULL AND ({named})"
    row = tx.one(sql, name, name, HTTP)
    if row is None:
        return None
    token = _token(row)
    sql = "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
    if not tx.run(sql, tx.now, token.id):
        return None
    sql = "DELETE FROM principals WHERE platform = ? AND account = ?"
    tx.run(sql, token.platform, token.id)
    return msgspec.structs.replace(token, revoked_at=tx.now)


def _encode(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def _token(row: Sequence[Any]) -> Token:
    values = dict(zip(_COLUMNS.split(", "), row, strict=True))
    values["roles"], values["keys"] = _decode(values["roles"]), _decode(values["keys"])
    return Token(**values)
