"""The events of a request on their way from the connection to the app."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio
from starlette.types import Message

from hermes.background import set_event

MAX_PIECES = 10
"""Events that wait for the app."""
MAX_JOINED = 65536
"""Bytes up to which pieces of a body are joined."""


class Incoming:
    """A bounded queue of ASGI events. Small pieces of a body are joined.

    What waits can be received without a checkpoint: the app gets a request that has arrived at
    once.
    """

    def __init__(self, disconnect: str) -> None:
        self._on_disconnect: list[Callable[[], None]] = []
        self._disconnect: Message = {"type": disconnect}
        self._events: deque[Message] = deque()
        self._changed = trio.Event()
        self._joined = 0
        self._begun = False
        """Whether the app has received something."""
        self._disconnected = False
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether the next event waits until the app has received one."""
        return len(self._events) >= MAX_PIECES

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call a function when the connection has ended; at once if it has."""
        if self._disconnected:
            callback()
        else:
            self._on_disconnect.append(callback)

    async def put(self, event: Message) -> None:
        """Add an event; the end of the connection is added at once."""
        if event["type"] == self._disconnect["type"]:
            self._disconnect, self._disconnected = event, True
            self._wake()
            for callback in self._on_disconnect:
                callback()
        elif self._join(event):
            self._joined += 1
            if self._joined % MAX_PIECES == 0:  # a client may send thousands of tiny ones at once
                await trio.lowlevel.checkpoint()
        else:
            while self.is_full and not self._closed:
                await self._changed.wait()
            self._events.append(event)
            self._wake()

    def _join(self, event: Message) -> bool:
        """Add a piece of a body to the last one."""
        last = self._events[-1] if self._events else None
        if last is None or not (last.get("more_body") and event["type"] == last["type"]):
            return False
        body = last.get("body", b"") + event.get("body", b"")
        if len(body) > MAX_JOINED:
            return False
        self._events[-1] = {**event, "body": body}
        self._wake()
        return True

    async def receive(self) -> Message:
        """Wait for the next event, and return it. What follows is the end of the connection."""
        while not self._events:
            if self._disconnected:
                await trio.lowlevel.checkpoint()
                return self._disconnect
            await self._changed.wait()
        self._begun = True
        event = self._events.popleft()
        self._wake()
        return event

    def take_whole_body(self) -> bytes | None:
        """Return the body, if all of it has arrived and nothing of it was received before."""
        if self._begun or len(self._events) != 1 or self._events[0].get("more_body"):
            return None
        self._begun = True
        body: bytes = self._events.popleft().get("body", b"")
        return body

    def close(self) -> None:
        """The app has ended, and receives no more."""
        self._closed = True
        self._events.clear()
        self._wake()

    def _wake(self) -> None:
        set_event(self._changed)
        self._changed = trio.Event()
