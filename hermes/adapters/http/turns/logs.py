"""The events of the turns of API clients, while they run and for a moment after."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.http.credentials import KEYS
from hermes.adapters.http.errors import not_found, stopping
from hermes.background import set_event
from hermes.events import (
    AssistantMessage,
    Envelope,
    ReasoningDelta,
    RuntimeEvent,
    TextDelta,
    ToolFinished,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Receipt, Reply, StoredResponse
from hermes.user_code import contained

KEPT = 1000
"""Turns that have ended and are kept in memory."""
KEPT_BYTES = 32_000_000
"""The approximate size of their events."""
EVENT_SIZE = 200
MOVED = 0.1
"""Seconds that a message waits at least if its turn has begun before on another node."""
CHECK = 15.0
"""Seconds between two looks at the store for ends of turns that were not announced."""


class Listener(Protocol):
    """Builds something from the events of a turn."""

    size: int
    """Its approximate size in bytes."""

    @property
    def in_use(self) -> bool:
        """Whether somebody reads what it builds."""
        ...

    def receive(self, event: RuntimeEvent) -> None:
        """Take an event."""

    def stop(self) -> None:
        """The server stops before the turn has ended."""


class Elsewhere(Protocol):
    """The turns that other nodes of a cluster run."""

    def include(self, response: StoredResponse, log: TurnLog, /) -> None:
        """Let a log take the events of the turn of a response, whoever runs it."""

    def exclude(self, inbox_id: int, /) -> None:
        """Take back `include`."""

    async def heard(self, response: StoredResponse, log: TurnLog, /) -> None:
        """If another node may run the turn of a response, wait until it is heard from."""


class TurnLog:
    """The events of one message's turn, in order.

    If the turn is run again in this process, another `TurnStarted` follows.
    """

    def __init__(self) -> None:
        self.attempt: int = 0
        """The number of the attempt; 0 before the turn has begun."""
        self.events: list[RuntimeEvent] = []
        self.reply: Reply | None = None
        self.listener: Listener | None = None
        """Takes each event; what it builds from them is kept with the log."""
        self.earlier: list[Listener] = []
        """Others that take each event: those before it that are still in use."""
        self.size: int = 0
        self.stopped: bool = False
        """Whether the server stops before the turn has ended."""
        self._deleted = False
        # These exist while somebody waits.
        self._changed: trio.Event | None = None
        self._ended: trio.Event | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for events or for the end of the turn."""
        waits = self.listener, self._changed, self._ended
        return any(each is not None for each in waits)

    def add(self, event: RuntimeEvent) -> None:
        """Take an event of the turn."""
        if isinstance(event, TurnStarted):
            self.attempt = event.attempt
        if isinstance(event, TurnEnded):
            self.reply = event.reply
        self.events.append(event)
        self.size += _size(event)
        for listener in self.listeners:
            listener.receive(event)
        self._wake(ended=self.reply is not None)

    def stop(self) -> None:
        """End all waits: the server stops."""
        self.stopped = True
        for listener in self.listeners:
            listener.stop()
        self._wake(ended=True)

    @property
    def listeners(self) -> list[Listener]:
        """Everything that takes the events."""
        return self.earlier if self.listener is None else [*self.earlier, self.listener]

    def delete(self) -> None:
        """End the waits for the reply: the response was deleted."""
        self._deleted = True
        self._wake(ended=True)

    def _wake(self, *, ended: bool) -> None:
        if self._changed is not None:
            set_event(self._changed)
            self._changed = None
        if ended and self._ended is not None:
            set_event(self._ended)
            self._ended = None

    async def wait(self) -> Reply:
        """Wait for the reply.

        Raises `ApiError` if the server stops before there is one, or if the response is deleted.
        """
        while self.reply is None:
            if self.stopped:
                raise stopping()
            if self._deleted:
                raise not_found("such response")
            if self._ended is None:
                self._ended = trio.Event()
            await self._ended.wait()
        return self.reply

    async def changed(self) -> None:
        """Wait for the next event."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()


def _size(event: RuntimeEvent) -> int:
    match event:
        case TextDelta(text) | ReasoningDelta(text) | ToolFinished(_, text):
            return EVENT_SIZE + 2 * len(text)
        case AssistantMessage(message):
            return EVENT_SIZE + 2 * len(message.content or "")
    return EVENT_SIZE


class TurnLogs:
    """The logs of the turns of API clients, by inbox id.

    Running turns have their events in memory in any case. Of those that have ended, the oldest are
    forgotten: the store has their replies.
    """

    def __init__(self, *, kept: int = KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept, self._kept_bytes = kept, kept_bytes
        self._logs: dict[int, TurnLog] = {}
        self._ended: OrderedDict[int, TurnLog] = OrderedDict()
        self._size = 0
        self._stopped = False
        self.on_restart: Callable[[int], None] = lambda _: None
        """Called with the inbox id of a message that an earlier process had accepted."""
        self._opened = time.monotonic()
        self.elsewhere: Elsewhere | None = None
        """The turns of other nodes; None if this process runs all of them."""

    def of(self, response: StoredResponse) -> TurnLog:
        """Return the log of the turn of a response, which may run on another node."""
        log = self.log(response.inbox_id)
        if self.elsewhere is not None and log.reply is None:
            self.elsewhere.include(response, log)
        return log

    async def heard(self, response: StoredResponse) -> TurnLog:
        """Same as `of`; if another node may run the turn, wait until it is heard from."""
        log = self.of(response)
        if self.elsewhere is not None and response.reply is None:
            await self.elsewhere.heard(response, log)
        return log

    def log(self, inbox_id: int) -> TurnLog:
        """Return the log of a message's turn, which may not have begun."""
        log = self.find(inbox_id)
        if log is None:
            log = self._logs[inbox_id] = TurnLog()
            log.stopped = self._stopped
        return log

    def find(self, inbox_id: int) -> TurnLog | None:
        """Return the log of a message's turn, if there is one."""
        return self._ended.get(inbox_id) or self._logs.get(inbox_id)

    def awaited(self) -> list[int]:
        """Return the messages whose turns somebody waits for."""
        return [inbox_id for inbox_id, log in self._logs.items() if log.is_awaited]

    def settle(self, inbox_id: int, stored: StoredResponse | None) -> None:
        """Take what the store says about a turn, whose end may not have been announced."""
        log = self._logs.get(inbox_id)
        if log is None:
            return
        if stored is None:
            log.delete()
            self._exclude(inbox_id)
        elif stored.reply is not None:
            self._end(inbox_id, TurnEnded(stored.reply, (inbox_id,)))

    def stop(self) -> None:
        """End all waits for turns that have not ended."""
        self._stopped = True
        for log in list(self._logs.values()):
            log.stop()

    def receive(self, envelope: Envelope) -> None:
        """Take an event of the runtime; those of other conversations are ignored."""
        if not envelope.session_key.startswith(KEYS) or envelope.turn_id is None:
            return
        event, turn_id = envelope.event, envelope.turn_id
        if isinstance(event, TurnEnded):
            for inbox_id in {turn_id, *event.inbox_ids}:
                self._end(inbox_id, event)
            return
        if isinstance(event, TurnStarted):
            self.log(turn_id).add(event)
            if event.attempt > 1 or event.waited > self._patience:
                self.on_restart(turn_id)
        elif (log := self._logs.get(turn_id)) is not None:
            log.add(event)

    @property
    def _patience(self) -> float:
        """Seconds after which a message that begins may have begun before, in another process."""
        return MOVED if self.elsewhere is not None else time.monotonic() - self._opened

    def _exclude(self, inbox_id: int) -> None:
        if self.elsewhere is not None:
            self.elsewhere.exclude(inbox_id)

    def _end(self, inbox_id: int, event: TurnEnded) -> None:
        log = self.log(inbox_id)
        if log.reply is not None:  # the store told it before it was announced
            return
        log.add(event)
        self._logs.pop(inbox_id, None)
        self._exclude(inbox_id)
        log.size += 0 if log.listener is None else log.listener.size
        self._ended[inbox_id] = log
        self._size += log.size
        while len(self._ended) > self._kept or self._size > self._kept_bytes:
            self._size -= self._ended.popitem(last=False)[1].size


async def events_of(log: TurnLog) -> AsyncIterator[RuntimeEvent]:
    """Yield the events of the turn until it has ended."""
    index = 0
    while True:
        while index < len(log.events):
            event = log.events[index]
            index += 1
            yield event
            if isinstance(event, TurnEnded):
                return
        await log.changed()


def catch_up(runtime: Runtime, logs: TurnLogs) -> None:
    """Take the events so far of turns that already run, such as those of an earlier process.

    Nothing is missed if `logs` subscribes to the runtime without a checkpoint before this.
    """
    for key in runtime.admin.running_turns():
        if key.startswith(KEYS):
            for envelope in runtime.api.published(key):
                logs.receive(envelope)


async def check_ends(runtime: Runtime, logs: TurnLogs) -> None:
    """Background loop: ask the store for the turns that somebody waits for.

    Another process may have ended one, for example by withdrawing its message.
    """
    while True:
        await trio.sleep(CHECK)
        for inbox_id in logs.awaited():
            with contained():  # the store may be busy
                receipt = Receipt(inbox_id, "", "", 0, 0.0)
                logs.settle(inbox_id, await runtime.api.response_to(receipt))
