"""The statements of `hermes.store.cluster` behind the interface of `cluster_model.Database`."""

from __future__ import annotations

from hermes.errors import NotOwner
from hermes.messages import Inbound, InboxReply
from hermes.store.cluster import claims, nodes
from hermes.store.conversations import inbox, turns
from hermes.store.transaction import KeyedWork
from tests.support.cluster_model import LEASE

SCALE = 1000.0
"""How many seconds of the database a second of a test is, so that what a test takes is nothing."""


class Statements:
    """Each method is one transaction of a real database; time passes if a test says so."""

    def __init__(self, store):
        """`store` is a `SessionStore` on a PostgreSQL database without rows."""
        self._store = store
        self._numbers = {}
        """What a test calls a node, by its id: tests count from 1."""
        self._events = 0

    def _run(self, work):
        return self._store.transact(work)

    def _all(self, sql, *values):
        return self._run(lambda tx: tx.all(sql, *values))

    def advance(self, seconds):
        self._all("UPDATE nodes SET lease_until = lease_until - ? RETURNING 1", seconds * SCALE)

    def register(self):
        return self._run(lambda tx: nodes.register(tx, "node", LEASE * SCALE))

    def renew(self, node):
        return self._run(lambda tx: nodes.renew(tx, node, LEASE * SCALE))

    def declare_dead(self):
        self._run(nodes.declare_dead)

    def declare(self, node):
        self._run(lambda tx: nodes.leave(tx, node))

    def live(self):
        return sorted(self._run(nodes.live))

    def accept(self, key, placed):
        self._events += 1
        inbound = Inbound(key, f"event {self._events}", "hello")

        def work(tx):
            turns.accept(tx, inbound)
            return claims.accept(tx, key, lambda: placed)

        return self._run(KeyedWork(work, key))

    def free_keys(self):
        return sorted(key for key, _ in self._run(lambda tx: claims.free_keys(tx, 1000)))

    def claim(self, node, keys):
        return self._run(lambda tx: claims.claim(tx, node, keys))

    def waiting(self, node):
        found = self._run(lambda tx: claims.waiting(tx, node, 0, 1000))
        return list({key: claim for key, _, claim in found}.values())

    def commit(self, claim):
        key = claim.session_key

        def work(tx):
            ids = [row.inbox_id for row in inbox.open_inbox(tx, key)]
            inbox.close(tx, InboxReply(session_key=key, inbox_ids=ids, outbox=[]))
            return True

        try:
            return self._run(claims.Fenced(work, key, claim=claim))
        except NotOwner:
            return False

    def release_idle(self, claim):
        self._run(lambda tx: claims.release_idle(tx, [claim]))

    def release(self, node, keys):
        self._run(lambda tx: claims.hand_over(tx, node, keys))

    def state(self):
        rows = self._all(
            "SELECT session_key, owner, fence, (SELECT count(*) FROM inbox i "
            "WHERE i.session_key = r.session_key AND i.state = 'open') FROM routes r"
        )
        dead = self._all("SELECT id FROM nodes WHERE dead = 1")
        return {row[0]: row[1:] for row in rows}, {row[0] for row in dead}
