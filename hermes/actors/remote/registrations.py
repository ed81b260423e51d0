"""Which nodes have listeners for which conversations, as an owner knows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

GRACE = 5.0
"""Seconds for which the database may not have what a node has announced."""


class Registrations:
    """What nodes have announced, and what the database says.

    An announcement is known earlier; the database is complete.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, float]] = {}
        """For each conversation its nodes, each with the time of its announcement."""

    def __contains__(self, key: str) -> bool:
        return key in self._nodes

    def nodes(self, key: str) -> Collection[int]:
        """Return the nodes that have listeners for a conversation."""
        return self._nodes.get(key, {}).keys()

    def add(self, node: int, key: str, now: float) -> bool:
        """Note that a node has listeners. Returns whether that is new."""
        nodes = self._nodes.setdefault(key, {})
        is_new = node not in nodes
        nodes[node] = now
        return is_new

    def remove(self, node: int, key: str) -> None:
        """Note that a node has no listeners any more."""
        nodes = self._nodes.get(key)
        if nodes is not None:
            nodes.pop(node, None)
            if not nodes:
                del self._nodes[key]

    def update(self, stored: Iterable[tuple[int, str]], now: float) -> list[tuple[int, str]]:
        """Take what the database says. Returns the registrations that are new."""
        stored = set(stored)
        known = {
            (node, key): at for key, nodes in self._nodes.items() for node, at in nodes.items()
        }
        for node, key in known.keys() - stored:
            if known[node, key] < now - GRACE:
                self.remove(node, key)
        new = sorted(stored - known.keys())
        for node, key in new:
            self.add(node, key, now - GRACE)
        return new
