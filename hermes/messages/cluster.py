"""Several processes that share a database: the nodes, and what each of them serves."""

from __future__ import annotations

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


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A conversation and the node that serves it.

    `fence` grows with every change of the owner. A claim with an older one is void for good.
    """

    session_key: str
    node: int
    fence: int


class RoleClaim(msgspec.Struct, frozen=True, gc=False):
    """A role and the node that has it; `fence` is as in `Claim`."""

    name: str
    node: int
    fence: int
