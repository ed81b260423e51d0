"""Clients that wait for the state of a conversation."""

from __future__ import annotations

import attrs
import trio

from hermes.adapters.http.api.streams.state import Snapshot
from hermes.background import set_event


@attrs.define(eq=False)
class Waiter:
    """A client that waits for a snapshot; it gets none if the server ends."""

    rendered: bool = False
    """Whether it reads the rendered stream."""
    done: trio.Event = attrs.field(factory=trio.Event)
    snapshot: Snapshot | None = None

    def give(self, state: Snapshot | None) -> None:
        """Let the client go on."""
        self.snapshot = state
        set_event(self.done)
