"""Which node serves a conversation, and which conversations a loaded node gives away.

A key is placed once, by rendezvous hashing, and then stays with its node: there is its cached
agent. Nothing here decides who may write; that is what the fence is for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b

TOLERANCE = 1.25
"""A node gives conversations away if it has more than this many times the mean."""
SHARE = 0.05
"""The share of its conversations that a node gives away in one heartbeat at most."""


def place(session_key: str, nodes: Collection[int]) -> int | None:
    """Return the node that a key without an owner goes to; None if there is no node.

    All nodes that know the same nodes answer the same. If a node is added or removed, only the keys
    that go to it, or that it had, are placed elsewhere.
    """
    return max(nodes, key=lambda node: _weight(session_key, node), default=None)


def _weight(session_key: str, node: int) -> bytes:
    return blake2b(f"{node} {session_key}".encode(), digest_size=8).digest()


def surplus(node: int, owned: Mapping[int, int], idle: Iterable[str]) -> list[str]:
    """Return the idle keys that a node should give away now.

    `owned` says how many keys each node has. A node with more than `TOLERANCE` times the mean gives
    away keys that are placed elsewhere, at most `SHARE` of its own, and never so many that it would
    fall below the mean.
    """
    mean = sum(owned.values()) / len(owned)
    mine = owned[node]
    if mine <= TOLERANCE * mean:
        return []
    limit = min(math.ceil(mine * SHARE), math.floor(mine - mean))
    away: list[str] = []
    for session_key in idle:
        if len(away) >= limit:
            break
        if place(session_key, owned) != node:
            away.append(session_key)
    return away
