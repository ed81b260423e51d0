"""Requests that wait for the batch of others, so that they cost none of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from hermes.actors.kernel.mailbox import Mailbox, Request
from hermes.background import set_event

DEFER_SECONDS = 0.02
"""How long a request waits for a batch to join."""


class Deferred:
    """Requests beside the mailbox of an actor, which takes them along with its next batch."""

    def __init__(self, mailbox: Mailbox[Request[Any]]) -> None:
        self._mailbox = mailbox
        self._waiting: list[Request[Any]] = []
        self._since = 0.0
        """When the first of them came."""
        self._arrived = trio.Event()

    def send_nowait(self, request: Request[Any]) -> None:
        """Add a request. Raises as the mailbox does if that is closed."""
        self._mailbox.require_open()
        if not self._waiting:
            self._since = trio.current_time()
            set_event(self._arrived)
        self._waiting.append(request)

    def take(self) -> list[Request[Any]]:
        """Return the requests that wait, in order."""
        waiting, self._waiting = self._waiting, []
        return waiting

    async def run(self, flush: Callable[[], Awaitable[object]]) -> None:
        """Background loop: call `flush` if requests have waited for long enough.

        It must let the actor handle a batch, even an empty one.
        """
        while True:
            if not self._waiting:
                self._arrived = trio.Event()
                await self._arrived.wait()
            due = self._since + DEFER_SECONDS
            await trio.sleep_until(due)
            if self._waiting and self._since + DEFER_SECONDS <= due:
                await flush()
