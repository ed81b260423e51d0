"""A cluster in memory: the database's side of ownership as plain rules, and nodes without threads.

`Database` says what the statements of `hermes.store.cluster` do. The state machine runs on it, and
also on the real ones (`test_cluster_machine`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hermes.messages import Claim

LEASE = 6.0


@dataclass
class Row:
    owner: int | None = None
    fence: int = 0
    waiting: int = 0


@dataclass
class Database:
    """Nodes and routes, each method one transaction on the database's clock."""

    now: float = 0.0
    leases: dict[int, float] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    rows: dict[str, Row] = field(default_factory=dict)

    def advance(self, seconds):
        self.now += seconds

    def register(self):
        node = len(self.leases) + 1
        self.leases[node] = self.now + LEASE
        return node

    def renew(self, node):
        if node in self.dead:
            return False
        self.leases[node] = self.now + LEASE
        return True

    def declare_dead(self):
        found = {node for node, until in self.leases.items() if until < self.now} - self.dead
        self.dead |= found

    def declare(self, node):
        self.dead.add(node)

    def live(self):
        return sorted(self.leases.keys() - self.dead)

    def _free(self, row):
        return row.owner is None or row.owner in self.dead

    def _take(self, key, node):
        row = self.rows[key]
        if not self._free(row) or node in self.dead:
            return None
        row.owner, row.fence = node, row.fence + 1
        return Claim(key, row.owner, row.fence)

    def accept(self, key, placed):
        """Store a message, and return the owner; `placed` is where it goes if it has none."""
        row = self.rows.setdefault(key, Row())
        row.waiting += 1
        if placed is not None:
            self._take(key, placed)
        return None if self._free(row) else Claim(key, row.owner, row.fence)

    def free_keys(self):
        return sorted(key for key, row in self.rows.items() if row.waiting and self._free(row))

    def claim(self, node, keys):
        return [claim for key in keys if (claim := self._take(key, node))]

    def waiting(self, node):
        return [
            Claim(key, node, row.fence)
            for key, row in sorted(self.rows.items())
            if row.owner == node and row.waiting
        ]

    def commit(self, claim):
        """Answer the messages of a key; False if the claim does not hold."""
        row = self.rows[claim.session_key]
        if (row.owner, row.fence) != (claim.node, claim.fence):
            return False
        row.waiting = 0
        return True

    def release_idle(self, claim):
        row = self.rows[claim.session_key]
        if (row.owner, row.fence) == (claim.node, claim.fence) and not row.waiting:
            row.owner, row.fence = None, row.fence + 1

    def release(self, node, keys):
        for key in keys:
            if (row := self.rows[key]).owner == node:
                row.owner, row.fence = None, row.fence + 1

    def state(self):
        """Return owner, fence and number of waiting messages of each key, and the dead nodes."""
        rows = {key: (row.owner, row.fence, row.waiting) for key, row in self.rows.items()}
        return rows, set(self.dead)
