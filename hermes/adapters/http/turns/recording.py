"""Records what clients have seen of running responses: the next process continues after it."""

from __future__ import annotations

import math
from typing import Protocol

import trio

from hermes.adapters.http.turns.sharing import ItemRecords
from hermes.background import set_event, start_soon
from hermes.messages import JsonObject, StoredResponse
from hermes.user_code import contained

RECORD_EVERY = 1.0
"""Seconds between two records of texts that grow."""
RECORD_NEW = 0.05
"""Seconds after which a new item is recorded. Short turns end before, and need no record."""


class Recorded(Protocol):
    """A response that runs and has clients."""

    response: StoredResponse
    written: list[JsonObject]
    """What was recorded."""
    begun_at: float | None
    """When the first item began that is not recorded; None if there is none."""

    @property
    def seen(self) -> list[JsonObject]:
        """What clients have seen, as it is recorded."""


class Recorder:
    """Records new items soon, and texts that grow once a second."""

    def __init__(self, records: ItemRecords) -> None:
        self._records = records
        self._running: dict[Recorded, float] = {}
        """When each response is recorded next, unless an item begins."""
        self._added = trio.Event()

    def add(self, running: Recorded) -> None:
        """Record a response from now on."""
        if not self._running:
            set_event(self._added)
        self._running[running] = trio.current_time() + RECORD_EVERY

    def remove(self, running: Recorded) -> bool:
        """Record a response no more. Returns whether it was recorded until now."""
        return self._running.pop(running, None) is not None

    async def run(self) -> None:
        """Record what is due, until cancelled."""
        while True:
            if not self._running:
                self._added = trio.Event()
                await self._added.wait()
            await trio.sleep(RECORD_NEW)
            now = trio.current_time()
            async with trio.open_nursery() as nursery:
                for running in [each for each in self._running if self._is_due(each, now)]:
                    self._running[running] = now + RECORD_EVERY
                    start_soon(nursery, self._record, running)

    def _is_due(self, running: Recorded, now: float) -> bool:
        begun = math.inf if running.begun_at is None else running.begun_at
        return now >= min(begun + RECORD_NEW, self._running[running])

    async def _record(self, running: Recorded) -> None:
        if running not in self._running:  # it has just ended, and what it has lost is recorded
            return
        before, seen = running.written, running.seen
        running.begun_at = None
        if seen == before:
            return
        running.written = seen
        with contained() as caught:
            await self._records.record_items(running.response.id, seen)
        if caught.error is not None:  # the store may be busy; the next record counts
            running.written = before
