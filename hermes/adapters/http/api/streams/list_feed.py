"""The list of conversations as a channel: each event is a conversation as it is listed now."""

from __future__ import annotations

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.http.api.streams.channels import Channel, Numbers
from hermes.adapters.http.api.streams.state import ListEvent
from hermes.background import start_soon
from hermes.events import (
    ApprovalAsked,
    Envelope,
    MessageAccepted,
    MessagePosted,
    SessionMoved,
    TitleChanged,
    TurnEnded,
    TurnStarted,
)
from hermes.user_code import contained

NAME = "list"
BATCH = 200
PAUSE = 0.1
"""Seconds between two reads, so that a busy conversation is not sent for each of its events."""
SHOWN = (
    ApprovalAsked,
    MessageAccepted,
    MessagePosted,
    SessionMoved,
    TitleChanged,
    TurnEnded,
    TurnStarted,
)
"""Events after which a conversation is listed differently."""


class ListFeed(Channel):
    """Sends each conversation that changes, read from the store."""

    def __init__(self, runtime: Runtime, nursery: trio.Nursery, numbers: Numbers) -> None:
        super().__init__(NAME, numbers)
        self._runtime = runtime
        self._nursery = nursery
        self._changed: dict[str, None] = {}
        self._stamps: dict[str, str] | None = None
        """The stored state of the latest conversations; None if nobody has listened lately."""
        self._working = False

    def receive(self, envelope: Envelope) -> None:
        """Take an event of the runtime."""
        if isinstance(envelope.event, SHOWN):
            self.note(envelope.session_key)

    def note(self, session_key: str) -> None:
        """Note that a conversation has changed."""
        if not self.listeners:
            self.forget()
            return
        self._changed[session_key] = None
        if not self._working:
            self._working = True
            start_soon(self._nursery, self._run)

    async def compare(self) -> None:
        """Note the conversations that other nodes of a cluster have changed since the last time."""
        api = self._runtime.api
        if not api.has_other_nodes():
            return
        before = self._stamps
        self._stamps = now = {**await api.stamps(await api.list_branches("", BATCH))}
        for key in now if before is not None else ():
            if before is not None and before.get(key) != now[key]:
                self.note(key)

    def rest(self) -> None:
        """Note that nobody listens any more."""
        self._stamps = None

    async def _run(self) -> None:
        try:
            while self._changed:
                keys = [*self._changed][:BATCH]
                with contained() as caught:
                    await self._send(keys)
                if caught.error is not None:  # what was not read is in the next snapshot
                    self._changed.clear()
                    self.forget()
                await trio.sleep(PAUSE)
        finally:
            self._working = False

    async def _send(self, keys: list[str]) -> None:
        for key in keys:
            del self._changed[key]
        api = self._runtime.api
        found = await api.conversations(keys=keys, archived=None, limit=len(keys))
        listed = {each.session_key: each for each in found}
        for key in keys:
            turn = api.progress(key)
            turn_id = None if turn is None else turn.turn_id
            event = ListEvent(session_key=key, conversation=listed.get(key), turn_id=turn_id)
            self.emit("conversation", key, event)
