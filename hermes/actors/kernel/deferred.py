"""Requests that wait for the batch of others, so that they cost none of their own."""

from __future__ import annotations

from typing import Any

import trio

from hermes.actors.kernel.mailbox import Mailbox, Request, refuse
from hermes.background import set_event, until_memory
from hermes.errors import Overloaded

DEFER_SECONDS = 0.02
"""How long a request waits for a batch to join."""


class Deferred:
    """Requests beside the mailbox of an actor, which takes them along with its next batch."""

    def __init__(self, mailbox: Mailbox[Request[Any]]) -> None:
        self._mailbox = mailbox
        self._waiting: list[Request[Any]] = []
        self._taken: list[Request[Any]] = []
        self._since = 0.0
        """When the first of them came."""
        self._arrived = trio.Event()
        self._ended = False
        """Whether nothing is deferred any more."""

    def send_nowait(self, request: Request[Any]) -> None:
        """Add a request. Raises as the mailbox does if that is closed."""
        if self._ended:
            self._mailbox.send_nowait(request)
            return
        self._mailbox.require_open()
        if not self._waiting:
            self._since = trio.current_time()
            set_event(self._arrived)
        self._waiting.append(request)

    def take(self) -> list[Request[Any]]:
        """Return the requests that wait, in order."""
        self._taken, self._waiting = self._waiting, []
        return self._taken

    def refuse_rest(self) -> None:
        """Close the mailbox, and fail every request that was not answered."""
        self._mailbox.refuse_rest(self._taken)
        self._mailbox.refuse_rest(self._waiting)

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Background loop: move requests that have waited for long enough to the mailbox.

        When it is cancelled, those that wait are moved too, and later ones are not deferred. The
        tasks that wait for them may be shielded, and the actor may get no other request.
        """
        pass_on = self._pass_on  # at the end, there may be no memory for the bound method
        try:
            while not self._mailbox.closed:
                if not self._waiting:
                    self._arrived = trio.Event()
                    await self._arrived.wait()
                due = self._since + DEFER_SECONDS
                await trio.sleep_until(due)
                if self._since + DEFER_SECONDS <= due:
                    pass_on()
        finally:
            self._ended = True
            until_memory(pass_on)

    def _pass_on(self) -> None:
        while self._waiting and not self._mailbox.closed:  # if it is, the actor takes them
            try:
                self._mailbox.send_nowait(self._waiting[0])
            except Overloaded as error:
                refuse(self._waiting[:1], error)
            del self._waiting[0]
