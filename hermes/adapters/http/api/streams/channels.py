"""Channels: numbered events that are kept for a while, so that a client can continue after a gap.

A channel keeps its latest events as bytes that are ready to send. A listener has a position only:
whatever it has not read is in the channel, or is gone and the listener gets a new snapshot.
"""

from __future__ import annotations

import re
from collections import deque

import attrs
import msgspec
import trio

from hermes.adapters.jsonrpc.frames import encode
from hermes.background import set_event

_EVENT_ID = re.compile(r"(\w+)\.(\w+)\.[0-9]{1,9}\.([0-9]{1,18})", re.ASCII)
MAX_ENTRIES = 1000
MAX_BYTES = 1_000_000


@attrs.frozen
class Entry:
    """An event with its number, which is unique in this process and grows."""

    number: int
    session_key: str
    frame: bytes


@attrs.define(eq=False)
class Listener:
    """A client that reads a channel."""

    woken: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        """Let the client look for new events."""
        set_event(self.woken)

    async def wait(self) -> None:
        """Wait until there may be new events."""
        await self.woken.wait()
        self.woken = trio.Event()


class Numbers:
    """Numbers the events of one process; an event id names the process, too."""

    def __init__(self, process: str) -> None:
        self.process = process
        self.last: int = 0

    def next(self) -> int:
        """Return the next number."""
        self.last += 1
        return self.last


class Channel:
    """The latest events of one conversation, or of the list of conversations."""

    __slots__ = (
        "_entries", "_floor", "_size", "attempt", "listeners", "name", "numbers", "unused_since",
    )  # fmt: skip

    def __init__(self, name: str, numbers: Numbers) -> None:
        self.name: str = name
        """Tells the ids of its events from those of other channels."""
        self.numbers: Numbers = numbers
        self.attempt: int = 0
        """The attempt of the running turn, or of the last one; 0 before the first."""
        self.listeners: set[Listener] = set()
        self.unused_since: float = trio.current_time()
        self._entries: deque[Entry] | None = None  # most conversations are idle
        self._size = 0
        self._floor = numbers.next()
        """Events up to this number cannot be replayed."""

    def event_id(self, number: int) -> str:
        """Return the id of an event of this channel."""
        return f"{self.numbers.process}.{self.name}.{self.attempt}.{number}"

    def begin_attempt(self, attempt: int) -> None:
        """Name this attempt of the turn in the ids of the events that follow."""
        self.attempt = attempt

    def position(self, event_id: str | None) -> int | None:
        """Return the number in an event id; None if the events after it cannot be replayed."""
        found = _EVENT_ID.fullmatch(event_id or "")
        if found is None or found.groups()[:2] != (self.numbers.process, self.name):
            return None
        number = int(found[3])
        return number if self.has_all_after(number) and number <= self.numbers.last else None

    def has_all_after(self, number: int) -> bool:
        """Whether no event after this number has been dropped."""
        return number >= self._floor

    def after(self, number: int) -> list[Entry]:
        """Return the events after this number."""
        if self._entries is None or self._entries[-1].number <= number:
            return []
        return [entry for entry in self._entries if entry.number > number]

    def emit(self, kind: str, session_key: str, data: msgspec.Struct) -> None:
        """Add an event, and wake the listeners."""
        number = self.numbers.next()
        entry = Entry(number, session_key, frame(self.event_id(number), kind, data))
        entries = self._entries = deque() if self._entries is None else self._entries
        entries.append(entry)
        self._size += len(entry.frame)
        while len(entries) > 1 and (len(entries) > MAX_ENTRIES or self._size > MAX_BYTES):
            dropped = entries.popleft()
            self._size -= len(dropped.frame)
            self._floor = dropped.number
        self.wake()

    def forget(self) -> None:
        """Drop all events: each listener gets a new snapshot."""
        self._entries = None
        self._size, self._floor = 0, self.numbers.next()
        self.wake()

    def wake(self) -> None:
        """Let all listeners look for new events."""
        for listener in self.listeners:
            listener.wake()


def frame(event_id: str, kind: str, data: msgspec.Struct) -> bytes:
    """Return a server-sent event. JSON has no line breaks outside of its escapes."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id.encode(), kind.encode(), encode(data))
