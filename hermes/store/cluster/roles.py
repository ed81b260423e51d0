"""Roles: what must exist once in a cluster, each with the node that has it and a fence."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

import attrs

from hermes.errors import NotOwner
from hermes.messages import RoleClaim
from hermes.store.cluster.nodes import Statements
from hermes.store.transaction import Transaction, Work

R = TypeVar("R")

_ADD: Final = (
    "INSERT INTO roles (name, owner, fence) VALUES (?, NULL, 0) ON CONFLICT (name) DO NOTHING"
)
_CLAIM: Final = (
    "UPDATE roles r SET owner = ?2, fence = nextval('fences') WHERE r.name = ?1 "
    "AND NOT EXISTS (SELECT 1 FROM nodes n WHERE n.id = r.owner AND n.dead = 0) "
    "AND EXISTS (SELECT 1 FROM nodes n WHERE n.id = ?2 AND n.dead = 0 AND n.draining = 0 "
    "AND n.lease_until > extract(epoch FROM clock_timestamp())) RETURNING fence"
)
_HOLDERS: Final = (
    "SELECT r.name, r.owner, r.fence FROM roles r JOIN nodes n ON n.id = r.owner "
    "WHERE n.dead = 0 ORDER BY r.name"
)


def claim_role(tx: Transaction, name: str, node: int) -> RoleClaim | None:
    """Take a role for a node whose lease has not run out; None if a living node has it."""
    tx.run(_ADD, name)
    tx.one("SELECT 1 FROM roles WHERE name = ? FOR NO KEY UPDATE", name)
    row = tx.one(_CLAIM, name, node)
    return None if row is None else RoleClaim(name, node, row[0])


def release_role(tx: Transaction, claim: RoleClaim) -> None:
    """Give up a role, unless another node has taken it."""
    tx.run(
        "UPDATE roles SET owner = NULL, fence = nextval('fences') "
        "WHERE name = ? AND owner = ? AND fence = ?",
        claim.name,
        claim.node,
        claim.fence,
    )


def require_role(tx: Transaction, claim: RoleClaim) -> None:
    """Lock a role; raise `NotOwner` if another node has taken it since it was claimed."""
    row = tx.one("SELECT owner, fence FROM roles WHERE name = ? FOR NO KEY UPDATE", claim.name)
    if row != (claim.node, claim.fence):
        raise NotOwner(f"another node has the role {claim.name} now")


def holders(db: Statements) -> list[RoleClaim]:
    """Return the roles that living nodes have, by name."""
    return [RoleClaim(*row) for row in db.all(_HOLDERS)]


@attrs.frozen
class Acting(Generic[R]):
    """Work of what runs as a role: it changes nothing if another node has the role."""

    work: Work[R]
    claim: RoleClaim

    def __call__(self, tx: Transaction, /) -> R:
        require_role(tx, self.claim)
        return self.work(tx)
