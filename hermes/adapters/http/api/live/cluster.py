"""The nodes of a cluster and their conversations, as the live view compares them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from hermes.adapters.http.api.live.types import LiveClaim, LiveNode
from hermes.messages import ClusterView

MAX_KNOWN = 10_000
"""Conversations whose last node is remembered, also while no node serves them."""


class ClusterWatch:
    """What operators see of a cluster. It notices when another node serves a conversation."""

    def __init__(self) -> None:
        self.nodes: list[LiveNode] = []
        self.claims: Mapping[str, LiveClaim] = {}
        self._last: dict[str, int] = {}

    def look(self, view: ClusterView, here: int, now: float) -> tuple[list[LiveClaim], list[str]]:
        """Take a view. Returns the claims that have changed, and the keys of those that ended."""
        self.nodes = _nodes(view, here)
        before = self.claims
        self.claims = {each.session_key: self._claim(each.session_key, each.node, now)
                       for each in view.claims}  # fmt: skip
        changed = [each for key, each in self.claims.items() if before.get(key) != each]
        return changed, [key for key in before if key not in self.claims]

    def _claim(self, key: str, node: int, now: float) -> LiveClaim:
        known, last = self.claims.get(key), self._last.pop(key, None)
        self._last[key] = node
        if len(self._last) > MAX_KNOWN:
            del self._last[next(iter(self._last))]
        if known is not None and known.node == node:
            return known
        if last is None or last == node:
            return LiveClaim(session_key=key, node=node)
        return LiveClaim(session_key=key, node=node, before=last, moved_at=now)


def _nodes(view: ClusterView, here: int) -> list[LiveNode]:
    return [
        LiveNode(
            node=each.node,
            name=each.name,
            here=each.node == here,
            draining=each.draining,
            owned=view.owned.get(each.node, 0),
            lease_until=each.lease_until,
            roles=[role.name for role in view.roles if role.node == each.node],
        )
        for each in sorted(view.nodes, key=attrgetter("node"))
    ]
