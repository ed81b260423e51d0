"""Nodes: the lives of processes, each with a lease on the database's clock.

A node that was declared dead stays dead, and its id is never used again; so what was taken from it
was taken rightly. These are single statements: a heartbeat must leave no row locked if its process
is stopped halfway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from hermes.messages import NodeInfo
from hermes.store.transaction import Row, Value

KEPT_SECONDS: Final = 86400
"""For how long dead nodes stay in their table."""
_NOW: Final = "extract(epoch FROM clock_timestamp())"
_REGISTER: Final = (
    "INSERT INTO nodes (name, lease_until, facts) "
    f"VALUES (?, {_NOW} + CAST(? AS double precision), '{{}}') RETURNING id"
)
_RENEW: Final = (
    f"UPDATE nodes SET lease_until = {_NOW} + CAST(?2 AS double precision), owned = ?3, "
    "facts = ?4, draining = greatest(draining, CAST(?5 AS bigint)) "
    "WHERE id = ?1 AND dead = 0 RETURNING id"
)
_DECLARE_DEAD: Final = (
    "UPDATE nodes SET dead = 1 WHERE id IN (SELECT id FROM nodes WHERE dead = 0 "
    f"AND lease_until < {_NOW} FOR NO KEY UPDATE SKIP LOCKED) RETURNING id"
)
_FORGET_DEAD: Final = (
    "WITH gone AS (SELECT id FROM nodes WHERE dead = 1), "
    "unheard AS (DELETE FROM listeners WHERE node IN (SELECT id FROM gone)) "
    f"DELETE FROM nodes WHERE dead = 1 AND lease_until < {_NOW} - {KEPT_SECONDS} RETURNING id"
)
_LIVE: Final = (
    "SELECT id, name, draining, owned, facts, lease_until FROM nodes WHERE dead = 0 ORDER BY id"
)
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class Statements(Protocol):
    """What runs statements: a transaction, or a connection on which each is committed alone."""

    def all(self, sql: str, *values: Value) -> list[Row]: ...


def register(db: Statements, name: str, seconds: float) -> int:
    """Add a node whose lease ends after this many seconds. Returns its id."""
    [(node,)] = db.all(_REGISTER, name, seconds)
    return int(node)


def renew(
    db: Statements,
    node: int,
    seconds: float,
    *,
    owned: int = 0,
    facts: Mapping[str, Any] | None = None,
    draining: bool = False,
) -> bool:
    """Prolong the lease of a node, and say what it does. Returns False if it was declared dead.

    A lease that has run out can be prolonged too, if nobody has noticed.
    """
    told = _encode(facts or {}).decode()
    return bool(db.all(_RENEW, node, seconds, owned, told, draining))


def declare_dead(db: Statements) -> list[int]:
    """Declare nodes dead whose lease has run out. Returns their ids.

    Only for a node whose own lease had not run out before its last heartbeat: after an outage of
    the database, each node gets one heartbeat to come back.
    """
    return [row[0] for row in db.all(_DECLARE_DEAD)]


def forget_dead(db: Statements) -> None:
    """Delete what dead nodes leave: entries in `listeners`, and after a day their own rows."""
    db.all(_FORGET_DEAD)


def leave(db: Statements, node: int) -> None:
    """Declare a node dead because it has ended: what it serves is free at once."""
    db.all("UPDATE nodes SET dead = 1 WHERE id = ? RETURNING id", node)


def drain(db: Statements, node: int) -> None:
    """Note that a node takes nothing new."""
    db.all("UPDATE nodes SET draining = 1 WHERE id = ? RETURNING id", node)


def live(db: Statements) -> dict[int, NodeInfo]:
    """Return the nodes that are not dead, by id."""
    return {
        row[0]: NodeInfo(
            node=row[0],
            name=row[1],
            draining=bool(row[2]),
            owned=row[3],
            facts=_decode(row[4]),
            lease_until=row[5],
        )
        for row in db.all(_LIVE)
    }
