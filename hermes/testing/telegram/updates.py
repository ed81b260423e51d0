"""The queue of updates: kept for a day, and sent until they are confirmed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import attrs
import trio

DAY, WEEK = 86400.0, 604800.0


@attrs.frozen
class _Update:
    update_id: int
    body: bytes
    at: float


class UpdateQueue:
    """The updates that the bot has not confirmed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._updates: list[_Update] = []
        self._next_id = self._random.randrange(10**8, 10**9)
        self._last_at = -math.inf
        self.allowed: Sequence[str] = ()
        """The kinds that the bot has asked for; all, if empty."""

    def add(self, kind: str, body: bytes, now: float) -> int | None:
        """Add an update and return its id; None if the bot has not asked for its kind."""
        if self.allowed and kind not in self.allowed:
            return None
        if self._last_at > -math.inf and now - self._last_at >= WEEK:
            # Telegram chooses the next id at random then. Here it is always lower, but not so much
            # that it becomes small after many weeks, and ids are used twice.
            self._next_id = self._random.randrange(self._next_id // 2, self._next_id)
        update_id, self._next_id = self._next_id, self._next_id + 1
        self._last_at = now
        whole = b'{"update_id":%d,"%s":%s}' % (update_id, kind.encode(), body)
        self._updates.append(_Update(update_id, whole, now))
        return update_id

    def confirm(self, offset: int, now: float) -> None:
        """Drop the updates below an offset, or all but the last `-offset` ones."""
        self._drop_old(now)
        if offset < 0:
            self._updates = self._updates[offset:]
        elif offset:
            self._updates = [each for each in self._updates if each.update_id >= offset]

    def count(self, now: float) -> int:
        """Return how many updates are not confirmed."""
        self._drop_old(now)
        return len(self._updates)

    def first(self, number: int) -> bytes:
        """Return the first updates as JSON."""
        return b"[%s]" % b",".join(update.body for update in self._updates[:number])

    def _drop_old(self, now: float) -> None:
        self._updates = [each for each in self._updates if now - each.at < DAY]


async def wait_any(*events: trio.Event) -> None:
    """Wait until one of the events is set."""

    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)
