"""The other nodes of a cluster: what this node hears from them, and what it tells them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

import trio

from hermes.actors.event_bus import EventBus, Identity
from hermes.actors.remote.audience import Audience, Reads
from hermes.actors.remote.calls import Calls, Execute
from hermes.actors.remote.frames import (
    Answered,
    Awaiting,
    Frame,
    Listening,
    Missing,
    Published,
    decode,
    encode,
)
from hermes.actors.remote.relay import Relay
from hermes.actors.remote.this_node import Served, ThisNode
from hermes.actors.remote.turn import RemoteTurn
from hermes.background import open_background, start_soon
from hermes.errors import ActorStopped, HermesError, StoreFailed
from hermes.messages import Claim, Receipt
from hermes.protocols.cluster import Cluster
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

EVENTS: Final = "events"
CALLS: Final = "calls"
REVOKED: Final = "revoked"
POLL_SECONDS: Final = 1.0
"""Seconds between two looks at what hints should have said."""


class PeerStore(Reads, Protocol):
    """What of the store it uses."""

    @property
    def cluster(self) -> Cluster: ...


class Peers:
    """Sends events of this node's conversations to others, and publishes those of others here.

    Only what a node of a cluster has; a process that is alone has none of it.
    """

    def __init__(
        self,
        bus: EventBus,
        store: PeerStore,
        served: Served,
        wall: Callable[[], float],
        nursery: trio.Nursery,
        execute: Execute,
    ) -> None:
        self._nodes = nodes = store.cluster
        this_node = ThisNode(served, lambda: nodes.node, self._others, self._send, wall)
        self._relay = Relay(bus, this_node)
        self._audience = Audience(bus, this_node, store, nodes.owners_of)
        self.calls: Calls = Calls(lambda: nodes.node, self._send_call, execute, nursery)
        self.on_revoked: Callable[[], None] = lambda: None
        """Called when another node has revoked a token or a web session."""
        self._stored: tuple[int, frozenset[str]] = (0, frozenset())
        """The listeners of this node in the database."""
        bus.other_nodes = self

    def _others(self) -> Sequence[int]:
        return [node for node in self._nodes.nodes if node != self._nodes.node]

    def _send(self, node: int, frames: Sequence[Frame]) -> None:
        self._nodes.hints.send(node, EVENTS, encode(frames).decode())

    def _send_call(self, node: int, text: str) -> None:
        self._nodes.hints.send(node, CALLS, text)

    def tell_revoked(self) -> None:
        """Tell the other nodes that a token or a web session was revoked."""
        for node in self._others():
            self._nodes.hints.send(node, REVOKED)

    # What the supervisor says

    def serve(self, session_key: str, fence: int) -> None:
        """Note that an actor of this node serves a conversation from now on."""
        self._audience.serve(session_key)
        self._relay.serve(session_key, fence)

    def leave(self, session_key: str, open_ids: Collection[int]) -> None:
        """Note that none does any more; it has not answered these messages."""
        self._relay.leave(session_key)
        self._audience.leave(session_key, open_ids)

    # What the bus says

    def begin(self, session_key: str) -> None:
        """Note that somebody listens to a conversation, whoever serves it."""
        self._audience.begin(session_key)

    def end(self, session_key: str) -> None:
        """Note that a listener has left."""
        self._audience.end(session_key)

    def expect(self, receipt: Receipt, identity: Identity, claim: Claim | None) -> None:
        """Note that a caller waits for the reply to a message."""
        self._audience.expect(receipt, identity, claim)

    async def wait_answered(self) -> None:
        """Wait until no caller on this node waits for a reply from another one."""
        await self._audience.wait_answered()

    def ended(self, session_key: str, inbox_ids: Sequence[int]) -> None:
        """Note that this node has answered messages."""
        self._audience.ended(session_key, inbox_ids)
        self._relay.ended(session_key, inbox_ids)

    # What is known of other nodes

    def turn(self, session_key: str) -> RemoteTurn | None:
        """Return the running turn of a conversation that another node serves, if it is known."""
        return self._audience.turn(session_key)

    def turns(self) -> dict[str, RemoteTurn]:
        """Return the running turns on other nodes that are known, by session_key."""
        return self._audience.turns()

    # The tasks

    def _receive(self, text: str) -> None:
        for frame in decode(text):
            match frame:
                case Published() | Answered():
                    self._audience.receive(frame)
                case Listening() | Missing() | Awaiting():
                    self._relay.receive(frame)

    async def run(self) -> None:
        """Background loop: exchange events with other nodes."""
        hints = self._nodes.hints
        with (
            hints.listen(EVENTS, self._receive),
            hints.listen(CALLS, self.calls.receive),
            hints.listen(REVOKED, lambda _: self.on_revoked()),
        ):
            async with open_background() as background:
                start_soon(background, self._relay.run)
                start_soon(background, self._listen)
                await self._poll()

    async def _listen(self) -> None:
        while True:
            await self._audience.wait()
            if not await _tried(self._audience.step):
                await trio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        while True:
            await trio.sleep(POLL_SECONDS)
            self._relay.repeat_positions()
            await _tried(self._look)

    async def _look(self) -> None:
        me, listened = self._nodes.node, frozenset(self._audience.listened)
        if (me, listened) != self._stored:
            await self._nodes.set_listened(listened)
            self._stored = (me, listened)
        self._relay.update(await self._nodes.listened())
        await self._audience.poll()


async def _tried(function: Callable[[], Awaitable[None]]) -> bool:
    """Await a function that uses the database; False if that failed for now."""
    with contained(ActorStopped, StoreFailed) as caught:
        await function()
    if caught.error is None:
        return True
    level = logging.DEBUG if isinstance(caught.error, HermesError) else logging.ERROR
    log.log(level, "other nodes were not heard, and will be", exc_info=caught.error)
    return False
