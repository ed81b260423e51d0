"""A process as a node: it registers, and renews its lease.

The heartbeats have a thread and a connection of their own, so that neither a busy event loop nor
long transactions delay them. Each statement is committed alone: a process that is stopped halfway
leaves nothing locked.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import psycopg
import trio

from hermes.messages import NodeInfo
from hermes.store.cluster import nodes, roles
from hermes.store.cluster.lease import Lease
from hermes.store.postgres.driver import Driver
from hermes.store.postgres.translate import translate
from hermes.store.transaction import Row, Value
from hermes.store.worker import StoreThread

log: Final = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[], Driver]

BEATS: Final = 4
"""How often a node renews its lease in the time of one."""
FIRST_PAUSE: Final = 0.05
LEAVE_SECONDS: Final = 2.0
"""For how long a node that ends waits until the server knows."""


@attrs.frozen
class Beat:
    """The answer to a heartbeat."""

    node: int
    """The id of this node; it changes after the node was declared dead."""
    lease: Lease
    """The lease of this id; it has ended if the node has another one now."""
    nodes: Mapping[int, NodeInfo]
    """The nodes that are not dead."""
    holders: Mapping[str, int]
    """The roles that they have, with the id of the node."""


class Autocommit:
    """Statements on a connection, each of which is committed by itself."""

    def __init__(self, db: Driver) -> None:
        self._db = db

    def all(self, sql: str, *values: Value) -> list[Row]:
        """Execute, and return all rows."""
        return self._db.execute(translate(sql), values).fetchall()


class Membership:
    """Sends the heartbeats of a process. See `run`; without threads, call `beat` regularly."""

    def __init__(self, connect: Connect, name: str, seconds: float) -> None:
        self._connect = connect
        self._name = name
        self._seconds = seconds
        self.interval: float = seconds / BEATS
        """Seconds between two heartbeats."""
        self._db: Driver | None = None
        self._node = 0
        self._lease: Lease | None = None
        self._pause = FIRST_PAUSE
        self._lock = threading.Lock()
        """Held for each use of the connection."""
        self._wakes = threading.Event()
        self._closing = False
        # What Trio's thread sets, and each heartbeat tells the others.
        self.owned: int = 0
        self.draining: bool = False
        self.facts: dict[str, Callable[[], Any]] = {}

    def beat(self) -> Beat | None:
        """Send a heartbeat; None if the database cannot be reached now."""
        with self._lock:
            if self._closing:
                return None
            try:
                found = self._beat(Autocommit(self._connected()))
            except psycopg.Error as error:
                log.info("a heartbeat of node %d failed: %s", self._node, error)
                self._disconnect()
                self._pause = min(2 * self._pause, self.interval)
                return None
            self._pause = FIRST_PAUSE
            return found

    def _beat(self, db: Autocommit) -> Beat:
        lease = self._lease or Lease(self._seconds)
        heartbeat = lease.begin()
        if self._lease is not None and not self._renew(db):
            log.warning("node %d was declared dead; it comes back as another one", self._node)
            lease.end()
            self._lease = None
            return self._beat(db)
        if self._lease is None:
            self._node = nodes.register(db, self._name, self._seconds)
            self._lease = lease
        lease.renew(heartbeat)
        if heartbeat.alive and (dead := nodes.declare_dead(db)):
            log.warning("nodes were declared dead: %s", ", ".join(map(str, dead)))
            nodes.forget_dead(db)
        holders = {claim.name: claim.node for claim in roles.holders(db)}
        return Beat(self._node, lease, nodes.live(db), holders)

    def _renew(self, db: Autocommit) -> bool:
        return nodes.renew(
            db,
            self._node,
            self._seconds,
            owned=self.owned,
            facts={name: fact() for name, fact in list(self.facts.items())},
            draining=self.draining,
        )

    def _connected(self) -> Driver:
        if self._db is None or self._db.closed:
            self._db = self._connect()
        return self._db

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # The thread

    def start(self, on_beat: Callable[[Beat], None]) -> None:
        """Send heartbeats in a thread until `close`.

        `on_beat` is called with the answers in Trio's thread.
        """
        run = partial(self._run, trio.lowlevel.current_trio_token(), on_beat)
        threading.Thread(target=run, name="hermes heartbeats", daemon=True).start()

    def _run(self, token: trio.lowlevel.TrioToken, on_beat: Callable[[Beat], None]) -> None:
        self._wakes.wait(self.interval)
        try:
            while not self._closing:
                beat = self.beat()
                if beat is not None:
                    with StoreThread.telling:
                        token.run_sync_soon(on_beat, beat)
                self._wakes.wait(self._pause if beat is None else self.interval)
                self._wakes.clear()
        except trio.RunFinishedError:
            pass

    def wake(self) -> None:
        """Let the thread send a heartbeat now."""
        self._wakes.set()

    def close(self) -> None:
        """Leave the cluster: what this node serves is free at once. Ends the thread."""
        self._closing = True
        self.wake()
        if not self._lock.acquire(timeout=LEAVE_SECONDS):  # a heartbeat waits for the server
            return
        try:
            if self._lease is not None:
                self._lease.end()
                self._lease = None
                nodes.leave(Autocommit(self._connected()), self._node)
        except psycopg.Error as error:
            log.info("node %d has left without a word: %s", self._node, error)
        finally:
            self._disconnect()
            self._lock.release()
