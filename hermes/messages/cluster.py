"""Several processes that share a database: the nodes, and what each of them serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class NodeInfo(msgspec.Struct, frozen=True):
    """A node that is not dead: one life of a process."""

    node: int
    """The id; it is never used again."""
    name: str
    draining: bool = False
    """Whether the node is about to end and takes nothing new."""
    owned: int = 0
    """How many conversations it served at its last heartbeat."""
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What the node said of itself at its last heartbeat, as JSON values by name."""
    lease_until: float = 0.0
    """When its lease ends, by the database's clock, as a Unix time."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A conversation and the node that serves it.

    `fence` grows with every change of the owner. A claim with an older one is void for good.
    """

    session_key: str
    node: int
    fence: int


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a cluster, and what each of them has. It is empty for a single process."""

    nodes: tuple[NodeInfo, ...] = ()
    roles: tuple[RoleClaim, ...] = ()
    claims: tuple[Claim, ...] = ()
    """Conversations that a node serves; those claimed last come first, and not all are listed."""
    owned: Mapping[int, int] = msgspec.field(default_factory=dict)
    """How many conversations each node serves now."""


class RoleClaim(msgspec.Struct, frozen=True, gc=False):
    """A role and the node that has it; `fence` is as in `Claim`."""

    name: str
    node: int
    fence: int


def node_of(process: str) -> int:
    """Return the node that a process was when it began; 0 if it shares its store with none."""
    node, separator, _ = process.partition(".")
    return int(node) if separator and node.isdecimal() else 0
