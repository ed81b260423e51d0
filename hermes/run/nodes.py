"""The nodes of a database, as `hermes status` shows them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hermes.messages import ClusterView


class NodeStatus(msgspec.Struct, frozen=True):
    """A node that was not declared dead."""

    node: int
    name: str
    draining: bool
    conversations: int
    """How many it serves."""
    lease_seconds: float
    """How long its lease lasts; negative if it has run out."""
    roles: tuple[str, ...]


def nodes_of(view: ClusterView, now: float) -> tuple[NodeStatus, ...]:
    """Return the nodes of a view; `now` is the time of the database's clock."""
    return tuple(
        NodeStatus(
            node=each.node,
            name=each.name,
            draining=each.draining,
            conversations=view.owned.get(each.node, 0),
            lease_seconds=each.lease_until - now,
            roles=tuple(role.name for role in view.roles if role.node == each.node),
        )
        for each in view.nodes
    )


def lines_of(nodes: tuple[NodeStatus, ...]) -> Iterator[str]:
    """Yield a line for each node."""
    for each in nodes:
        ended = each.lease_seconds <= 0
        lease = "lease has run out" if ended else f"lease for {each.lease_seconds:.1f} seconds"
        state = ", handing over" if each.draining else ""
        roles = f"; roles: {', '.join(each.roles)}" if each.roles else ""
        served = (
            "1 conversation" if each.conversations == 1 else f"{each.conversations} conversations"
        )
        yield f"node      {each.node} ({each.name}): {served}, {lease}{state}{roles}"
