"""Turns that other nodes of a cluster run, and that somebody on this node waits for."""

from __future__ import annotations

from collections import Counter

import trio

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.adapters.http.turns.logs import TurnLog, TurnLogs
from hermes.background import start_soon
from hermes.events import RuntimeEvent
from hermes.messages import Receipt, StoredResponse
from hermes.user_code import contained

HEARD_SECONDS = 1.0
"""How long a turn on another node may take to be heard from."""
LOOKS = (0.25, 2.5)
"""Seconds before the looks at the store for an end that came before this node listened."""


class TurnsElsewhere:
    """Lets the logs of turns take the events of conversations that other nodes serve."""

    def __init__(
        self, runtime: Runtime, logs: TurnLogs, subscription: Subscription, nursery: trio.Nursery
    ) -> None:
        self._api = runtime.api
        self._logs = logs
        self._subscription = subscription
        self._nursery = nursery
        self._included: dict[int, str] = {}
        self._keys: Counter[str] = Counter()

    def include(self, response: StoredResponse, log: TurnLog) -> None:
        """Let a log take the events of the turn of a response, whoever runs it."""
        inbox_id, key = response.inbox_id, response.session_key
        if inbox_id in self._included:
            return
        self._included[inbox_id] = key
        self._keys[key] += 1
        self._subscription.include(key)
        if self._api.is_elsewhere(key):
            for event in self._said(key, inbox_id, log):
                log.add(event)
            start_soon(self._nursery, self._look, inbox_id)

    def _said(self, key: str, inbox_id: int, log: TurnLog) -> list[RuntimeEvent]:
        """Return what others on this node have heard of a turn, if its log has not."""
        said = [each.event for each in self._api.published(key) if each.turn_id == inbox_id]
        if not said or said[0] in log.events:
            return []
        return [said[0], *(self._api.turn_events(key) or said[1:])]

    def exclude(self, inbox_id: int) -> None:
        """Take back `include`."""
        key = self._included.pop(inbox_id, None)
        if key is not None:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
                self._subscription.exclude(key)

    async def heard(self, response: StoredResponse, log: TurnLog) -> None:
        """If another node may run the turn of a response, wait until it is heard from."""
        if self._api.is_elsewhere(response.session_key):
            with trio.move_on_after(HEARD_SECONDS):
                while not (log.attempt or log.reply or log.stopped):
                    await log.changed()

    async def _look(self, inbox_id: int) -> None:
        """Look for an end that came before this node listened. Later ones are announced."""
        for seconds in LOOKS:
            await trio.sleep(seconds)
            if inbox_id not in self._included:
                return
            with contained():  # the store may be busy
                stored = await self._api.response_to(Receipt(inbox_id, "", "", 0, 0.0))
                self._logs.settle(inbox_id, stored)
