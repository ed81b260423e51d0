"""The conversations that this node serves, as the other nodes need to know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from hermes.actors.remote.frames import Item, item_of
from hermes.actors.remote.this_node import State
from hermes.actors.session.actor import SessionActor
from hermes.actors.session.following import announcements
from hermes.messages import InboxRow


class Registry(Protocol):
    """The actors of a runtime."""

    def find(self, session_key: str, /) -> SessionActor | None: ...


class ServedHere:
    """See `hermes.actors.remote.this_node.Served`."""

    def __init__(self, registry: Callable[[], Registry]) -> None:
        self._registry = registry

    def serves(self, session_key: str) -> bool:
        """Whether an actor of this node serves a conversation."""
        return self._registry().find(session_key) is not None

    def knows(self, session_key: str, inbox_id: int) -> bool:
        """Whether such an actor is going to answer a message."""
        actor = self._registry().find(session_key)
        return actor is not None and actor.inbox.knows(inbox_id)

    def state_of(self, session_key: str) -> State | None:
        """Return the state of a conversation; None if no actor of this node serves it."""
        actor = self._registry().find(session_key)
        return None if actor is None else _state(actor)


def _state(actor: SessionActor) -> State:
    turn, inbox = actor.runner.latest, actor.inbox
    rows = [*inbox.rows, *([] if turn is None else turn.open_rows)]
    known = sorted([row for row in rows if inbox.knows(row.inbox_id)], key=_inbox_id)
    items: list[Item | None] = [
        item_of(None, event) for row in known for event in announcements(row)
    ]
    if turn is None or turn.started is None or not turn.runs:
        return State([item for item in items if item is not None])
    events = [turn.started, *turn.published_events]
    items += [item_of(turn.turn_id, event) for event in events]
    started_at = turn.rows[0].accepted_at + turn.started.waited
    return State([item for item in items if item is not None], started_at)


def _inbox_id(row: InboxRow) -> int:
    return row.inbox_id


async def run_while_served(actor: SessionActor) -> None:
    """Run an actor, in a cluster until another node serves its conversation."""
    if actor.claim is None:
        await actor.run()
        return
    with trio.CancelScope() as actor.scope:
        if not actor.lost:
            await actor.run()
