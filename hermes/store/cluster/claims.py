"""Which node serves a conversation: `owner` and `fence` of its route.

Each change of the owner takes a higher fence, from a sequence: a claim with an older one is void
for good, also if the route was deleted meanwhile. A conversation is taken from nobody or from a
dead node only. Each function first locks the rows that it decides on, and reads the nodes in a
later statement, which sees all that was committed before the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import attrs
import msgspec

from hermes.errors import NotOwner
from hermes.messages import Claim
from hermes.store.transaction import KeyedWork, Transaction

R = TypeVar("R")

_NO_OWNER: Final = "NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = r.owner AND n.dead = 0)"
_ALIVE: Final = "EXISTS (SELECT 1 FROM nodes n WHERE n.id = ?1 AND n.dead = 0 AND n.draining = 0)"
_LEASED: Final = (
    "EXISTS (SELECT 1 FROM nodes n WHERE n.id = ?1 AND n.dead = 0 "
    "AND n.lease_until > extract(epoch FROM clock_timestamp()))"
)
_KEYS: Final = "r.session_key IN (SELECT json_array_elements_text(CAST(?2 AS json)))"
_TAKE: Final = f"UPDATE routes r SET owner = ?1, fence = nextval('fences') WHERE {_NO_OWNER}"
_PLACE: Final = f"{_TAKE} AND r.session_key = ?2 AND {_ALIVE} RETURNING owner, fence"
_CLAIM: Final = f"{_TAKE} AND {_KEYS} AND {_LEASED} RETURNING session_key, fence"
_GIVE: Final = (
    "UPDATE routes r SET owner = NULL, fence = nextval('fences') "
    f"WHERE r.owner = ?1 AND {_KEYS} RETURNING session_key"
)
_HAS_OPEN: Final = (
    "EXISTS (SELECT 1 FROM inbox i WHERE i.session_key = r.session_key AND i.state = 'open')"
)
_OWNER: Final = (
    "SELECT r.owner, r.fence FROM routes r JOIN nodes n ON n.id = r.owner "
    "WHERE r.session_key = ? AND n.dead = 0"
)
_FREE: Final = (
    "SELECT r.session_key, min(i.accepted_at) FROM inbox i "
    "JOIN routes r ON r.session_key = i.session_key "
    f"WHERE i.state = 'open' AND {_NO_OWNER} GROUP BY r.session_key ORDER BY 2 LIMIT ?"
)
_WAITING: Final = (
    "SELECT i.session_key, i.id, r.fence FROM inbox i "
    "JOIN routes r ON r.session_key = i.session_key "
    "WHERE i.state = 'open' AND r.owner = ?1 AND i.id > ?2{} ORDER BY i.id LIMIT ?3"
)
_OF_KEYS: Final = " AND i.session_key IN (SELECT json_array_elements_text(CAST(?4 AS json)))"
_SKIP_LOCKED: Final = (
    "SELECT session_key FROM routes r "
    "WHERE r.session_key IN (SELECT json_array_elements_text(CAST(? AS json))) "
    "FOR NO KEY UPDATE SKIP LOCKED"
)


def require_owner(tx: Transaction, claim: Claim) -> None:
    """Lock a conversation; raise `NotOwner` if it was taken since it was claimed."""
    tx.lock_key(claim.session_key)
    held = "SELECT 1 FROM routes WHERE session_key = ? AND owner = ? AND fence = ?"
    if tx.one(held, claim.session_key, claim.node, claim.fence) is None:
        raise NotOwner(f"{claim.session_key} is served by another node now")


def owner_of(tx: Transaction, session_key: str) -> Claim | None:
    """Return which living node serves a conversation; None if none does."""
    row = tx.one(_OWNER, session_key)
    return None if row is None else Claim(session_key, *row)


def accept(tx: Transaction, session_key: str, place: Callable[[], int | None]) -> Claim | None:
    """Return who serves a conversation, whose key is locked.

    If nobody does, the node that `place` returns does from now on, unless it is dead.
    """
    if (found := owner_of(tx, session_key)) is not None or (node := place()) is None:
        return found
    row = tx.one(_PLACE, node, session_key)
    return None if row is None else Claim(session_key, *row)


def claim(tx: Transaction, node: int, session_keys: Iterable[str]) -> list[Claim]:
    """Take conversations that nobody serves, for a node whose lease has not run out.

    Returns those that it has got. What another transaction has locked is left out.
    """
    locked = _lock_free(tx, session_keys)
    return [Claim(key, node, fence) for key, fence in tx.all(_CLAIM, node, locked)]


def free_keys(tx: Transaction, limit: int) -> list[tuple[str, float]]:
    """Return conversations with open messages that nobody serves, and since when they wait."""
    return [(row[0], row[1]) for row in tx.all(_FREE, limit)]


def waiting(
    tx: Transaction, node: int, after: int, limit: int, keys: Sequence[str] | None = None
) -> list[tuple[str, int, Claim | None]]:
    """Return the open messages with an id above `after` that a node is to answer, by id.

    With `keys`, only those of these conversations.
    """
    if keys is None:
        found = tx.all(_WAITING.format(""), node, after, limit)
    else:
        found = tx.all(_WAITING.format(_OF_KEYS), node, after, limit, _json(list(keys)))
    return [(key, inbox_id, Claim(key, node, fence)) for key, inbox_id, fence in found]


def release_idle(tx: Transaction, released: Sequence[Claim]) -> None:
    """Give up conversations; one that has received a message meanwhile is kept."""
    fences = {claim.session_key: claim.fence for claim in released}
    locked = _lock_free(tx, fences)
    for node in sorted({claim.node for claim in released}):
        sql = (
            "SELECT r.session_key, r.fence FROM routes r "
            f"WHERE r.owner = ?1 AND {_KEYS} AND NOT {_HAS_OPEN}"
        )
        idle = [key for key, fence in tx.all(sql, node, locked) if fence == fences[key]]
        tx.all(_GIVE, node, _json(idle))


def hand_over(tx: Transaction, node: int, session_keys: Iterable[str]) -> None:
    """Give up conversations of a node, also with open messages."""
    keys = list(session_keys)
    tx.lock_keys(keys)
    tx.all(_GIVE, node, _json(keys))


def _lock_free(tx: Transaction, session_keys: Iterable[str]) -> str:
    """Lock the routes of those keys that no other transaction has locked; returns them as JSON."""
    return _json([row[0] for row in tx.all(_SKIP_LOCKED, _json(list(session_keys)))])


def _json(texts: list[str]) -> str:
    return msgspec.json.encode(texts).decode()


@attrs.frozen
class Fenced(KeyedWork[R]):
    """Work of the actor of a conversation: it changes nothing if its claim is void."""

    claim: Claim = attrs.field(kw_only=True)

    def __call__(self, tx: Transaction, /) -> R:
        require_owner(tx, self.claim)
        return self.work(tx)
