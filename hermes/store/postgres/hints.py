"""Hints between the nodes of a database, by LISTEN and NOTIFY.

They have a connection of their own, which never begins a transaction: a transaction that notifies
takes a lock of the whole server until its commit is done, and one that stays open fills the queue
of the server.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import psycopg
import trio

from hermes.background import set_event
from hermes.forks import watch_forks
from hermes.store.postgres.payloads import Joiner, split
from hermes.store.worker import StoreThread
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

OnHint: TypeAlias = Callable[[str], None]
Driver: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Connect: TypeAlias = Callable[[], Driver]

MAX_SIZE = 16 * 1024 * 1024
"""The most characters that wait to be sent, or to be received by Trio. What is more is lost."""
BATCH = 100
"""How many payloads are sent at once."""
PAUSES = (0.1, 1.0)
"""Seconds between two attempts to connect: the first pause and the longest one."""
CLOSE_SECONDS = 2.0
_NOTIFY = "SELECT pg_notify($1, $2)"


def channel(node: int) -> str:
    """Return the channel on which a node listens."""
    return f"hermes_{node}"


class PostgresHints:
    """Sends and receives hints in a thread. Use `open_hints`. See `hermes.protocols.Hints`.

    A hint arrives whole or not at all, after those that the same node has sent before.
    """

    def __init__(self, connect: Connect, node: int) -> None:
        self._connect = connect
        self._token = trio.lowlevel.current_trio_token()
        self._node = node
        self._listeners: dict[str, OnHint] = {}
        self.connected: int = 0
        """How often this node began to listen. Whenever it grows, hints may have been lost."""
        self._connection = trio.Event()
        """Set at the next connection."""
        self.lost: int = 0
        """Hints that were not sent, because too many waited."""
        self.ended: trio.Event = trio.Event()
        """Set when the thread has closed its connection."""
        self._lock = threading.Lock()
        """Held for each change of what follows."""
        self._unsent: dict[int, list[str]] = {}
        self._unsent_size = 0
        self._received: deque[str] = deque()
        self._received_size = 0
        self._closing = False
        self._sender = secrets.token_hex(8)
        self._number = 0
        self._wakes, self._wake_end = os.pipe()
        os.set_blocking(self._wake_end, False)
        watch_forks(self)

    # In Trio's thread

    def join(self, node: int) -> None:
        """Listen as this node from now on."""
        self._node = node
        self._wake()

    async def wait_connected(self, times: int = 1) -> None:
        """Wait until `connected` is at least so much."""
        while self.connected < times:
            await self._connection.wait()

    def send(self, node: int, topic: str, payload: str = "") -> None:
        """Send a hint to a node, soon. Never waits and never raises."""
        record = _record(topic, payload.replace("\0", "\ufffd"))
        with self._lock:
            if self._closing or self._unsent_size + len(record) > MAX_SIZE:
                self.lost += 1
                return
            self._unsent.setdefault(node, []).append(record)
            self._unsent_size += len(record)
        self._wake()

    @contextmanager
    def listen(self, topic: str, on_hint: OnHint) -> Iterator[None]:
        """Call `on_hint` with the payload of each hint of this topic during the block."""
        if topic in self._listeners:
            raise ValueError(f"there is a listener for {topic} already")
        self._listeners[topic] = on_hint
        try:
            yield
        finally:
            del self._listeners[topic]

    def close(self) -> None:
        """Let the thread send what waits, close its connection and end."""
        with self._lock:
            self._closing = True
        self._wake()

    def forked(self) -> None:
        """Send nothing in a forked process, which does not have the thread."""
        self._lock = threading.Lock()
        self._closing = True

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # then it wakes up anyway
            os.write(self._wake_end, b"1")

    def _deliver(self) -> None:
        """Pass on what has arrived."""
        with self._lock:
            texts, self._received = self._received, deque()
            self._received_size = 0
        for text in texts:
            for topic, payload in _records(text):
                if (on_hint := self._listeners.get(topic)) is not None:
                    with contained() as caught:
                        on_hint(payload)
                    if caught.error is not None:
                        log.error("a hint (%s) was not handled", topic, exc_info=caught.error)

    # In the thread of the connection

    def run(self) -> None:
        """Send and receive until `close`; connect again whenever the connection is lost."""
        pause = PAUSES[0]
        try:
            while not self._closing:
                try:
                    with self._connect() as db:
                        pause = PAUSES[0]
                        self._serve(db)
                except psycopg.Error as error:
                    log.info("the connection for hints between nodes was lost: %s", error)
                    self._wait(pause)
                    pause = min(2 * pause, PAUSES[1])
        except trio.RunFinishedError:
            pass
        finally:
            with contextlib.suppress(trio.RunFinishedError):
                self._tell(lambda: set_event(self.ended))

    def _note_connection(self) -> None:
        self.connected += 1
        set_event(self._connection)
        self._connection = trio.Event()

    def _tell(self, function: Callable[[], None]) -> None:
        with StoreThread.telling:
            self._token.run_sync_soon(function)

    def _wait(self, seconds: float | None, *descriptors: int) -> None:
        """Wait until a descriptor is readable, or until there is something to do."""
        ready, _, _ = select.select([self._wakes, *descriptors], [], [], seconds)
        if self._wakes in ready:
            os.read(self._wakes, 4096)

    def _serve(self, db: Driver) -> None:
        joiner, listening, closing = Joiner(), "", False
        while not closing:
            closing = self._closing
            if listening != channel(self._node):
                listening = channel(self._node)
                db.execute("UNLISTEN *")
                db.execute(f"LISTEN {listening}")
                self._tell(self._note_connection)
            self._send(db)
            for notification in db.notifies(timeout=0):
                self._receive(joiner.add(notification.payload))
            if not closing:
                self._wait(None, db.fileno())

    def _send(self, db: Driver) -> None:
        with self._lock:
            unsent, self._unsent, self._unsent_size = self._unsent, {}, 0
        payloads = []
        for node, records in unsent.items():
            self._number += 1
            texts = split(self._sender, self._number, "".join(records))
            payloads += [(channel(node), text) for text in texts]
        for at in range(0, len(payloads), BATCH):
            with db.pipeline():
                for payload in payloads[at : at + BATCH]:
                    db.execute(_NOTIFY, payload)

    def _receive(self, text: str | None) -> None:
        if text is None:
            return
        with self._lock:
            if self._received_size + len(text) > MAX_SIZE:
                self.lost += 1
                return
            self._received.append(text)
            self._received_size += len(text)
        self._tell(self._deliver)


def _record(topic: str, payload: str) -> str:
    return f"{topic} {len(payload)} {payload}"


def _records(text: str) -> Iterator[tuple[str, str]]:
    """Yield the topics and payloads in a text."""
    while text:
        topic, _, rest = text.partition(" ")
        size, _, rest = rest.partition(" ")
        yield topic, rest[: int(size)]
        text = rest[int(size) :]


@asynccontextmanager
async def open_hints(connect: Connect, node: int) -> AsyncIterator[PostgresHints]:
    """Run the connection for hints of a node during the block.

    `connect` need not succeed: while the database is away, hints are lost, and it is
    called again and again.
    """
    hints = PostgresHints(connect, node)
    thread = threading.Thread(target=hints.run, name="hermes hints", daemon=True)
    thread.start()
    try:
        yield hints
    finally:
        hints.close()
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            await hints.ended.wait()
