"""The listener's side: what this node hears of the conversations that other nodes serve.

Events are published on the bus of this node, as those of a turn that runs here. Replies are read
from the database: as soon as the owner says that they are there, and in any case once a second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import attrs
import trio
from outcome import Error

from hermes.actors.event_bus import EventBus, Identity
from hermes.actors.remote.conversation import REMEMBERED, RemoteConversation, ends_of
from hermes.actors.remote.frames import (
    Answered,
    Awaiting,
    Listening,
    Missing,
    Published,
)
from hermes.actors.remote.this_node import ThisNode
from hermes.actors.remote.turn import RemoteTurn
from hermes.background import set_event
from hermes.errors import ReplyNotFound
from hermes.events import RuntimeEvent
from hermes.messages import Claim, MessageOutcome, Receipt

ASK_AGAIN = 0.25
"""Seconds after which an owner is asked again for what is missing."""
GRACE = 2.0
"""Seconds for which the end of a turn that has listeners waits for what was said before it."""


class Reads(Protocol):
    """What is read from the database."""

    def get_outcomes(self, inbox_ids: Sequence[int], /) -> Awaitable[Sequence[MessageOutcome]]:
        """Return what became of these messages, without those that are unknown."""
        ...

    def open_ids(self, session_keys: Sequence[str], /) -> Awaitable[Sequence[tuple[str, int]]]:
        """Return the keys and ids of the open messages of these conversations."""
        ...


OwnersOf: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, Claim]]]


@attrs.frozen
class Awaited:
    """A message with callers on this node that wait for its reply."""

    session_key: str
    identity: Identity


class Audience:
    """The conversations and messages about which somebody on this node wants to know something.

    Nothing is done for a conversation that an actor of this node serves.
    """

    def __init__(
        self, bus: EventBus, this_node: ThisNode, reads: Reads, owners_of: OwnersOf
    ) -> None:
        self._bus = bus
        self._this_node = this_node
        self._serves = this_node.served.serves
        self._reads = reads
        self._owners_of = owners_of
        self._listeners: dict[str, int] = {}
        """How many listeners each conversation has, whoever serves it."""
        self._ended: dict[str, deque[int]] = {}
        """For each conversation with listeners, the messages whose end was published here."""
        self._conversations: dict[str, RemoteConversation] = {}
        """Those of them that no actor of this node serves."""
        self._asking = False
        """Whether owners were asked for what is missing."""
        self._asked: dict[str, float] = {}
        """When the owner was last asked for what is missing."""
        self._awaited: dict[int, Awaited] = {}
        self._fewer = trio.Event()
        """Set when fewer callers may wait."""
        self._closed: dict[int, str] = {}
        """Messages whose outcomes are to be read now."""
        self._overdue: dict[int, float] = {}
        """Since when messages are closed whose ends the owner has not announced, as far as known.

        They are of conversations with listeners, who shall first hear what was said before.
        """
        self._announced: tuple[int, set[str]] = (0, set())
        """Conversations for which other nodes were told that this node has listeners."""
        self._dirty = trio.Event()

    @property
    def listened(self) -> Collection[str]:
        """The conversations of other nodes that have listeners here."""
        return self._conversations.keys()

    def turn(self, session_key: str) -> RemoteTurn | None:
        """Return the running turn of a conversation of another node, as far as it is known."""
        conversation = self._conversations.get(session_key)
        return None if conversation is None else conversation.turn

    def turns(self) -> dict[str, RemoteTurn]:
        """Return the running turns on other nodes, as far as they are known, by session_key."""
        turns = {key: each.turn for key, each in self._conversations.items()}
        return {key: turn for key, turn in turns.items() if turn is not None}

    def _wake(self) -> None:
        set_event(self._dirty)

    # Listeners come and go

    def begin(self, session_key: str) -> None:
        """Note that somebody listens to a conversation, whoever serves it."""
        self._listeners[session_key] = self._listeners.get(session_key, 0) + 1
        self._ended.setdefault(session_key, deque(maxlen=REMEMBERED))
        if session_key not in self._conversations and not self._serves(session_key):
            self._open(session_key)

    def end(self, session_key: str) -> None:
        """Note that a listener has left."""
        self._listeners[session_key] -= 1
        if self._listeners[session_key] == 0:
            del self._listeners[session_key], self._ended[session_key]
            self._conversations.pop(session_key, None)
            self._asked.pop(session_key, None)
            self._wake()

    def _open(self, session_key: str, open_ids: Iterable[int] = ()) -> None:
        def publish(turn_id: int | None, event: RuntimeEvent) -> None:
            self._bus.publish_remote(session_key, turn_id, event)

        conversation = RemoteConversation(
            session_key, publish, self._this_node.wall, self._ended[session_key]
        )
        conversation.open.update(open_ids)
        self._conversations[session_key] = conversation
        self._wake()

    def expect(self, receipt: Receipt, identity: Identity, claim: Claim | None) -> None:
        """Note that a caller waits for the reply to a message."""
        inbox_id, key = receipt.inbox_id, receipt.session_key
        self._awaited[inbox_id] = Awaited(key, identity)
        if not self._serves(key):
            self._this_node.tell(claim, [Awaiting(self._this_node.id, [inbox_id])])

    async def wait_answered(self) -> None:
        """Wait until no caller on this node waits for a reply from another one."""
        while any(not self._serves(each.session_key) for each in self._awaited.values()):
            self._fewer = trio.Event()
            await self._fewer.wait()
            self._forget_callers()

    def ended(self, session_key: str, inbox_ids: Sequence[int]) -> None:
        """Note that this node has answered messages."""
        if session_key in self._ended:
            self._ended[session_key].extend(inbox_ids)
        for inbox_id in inbox_ids:
            self._awaited.pop(inbox_id, None)
            self._closed.pop(inbox_id, None)

    # Conversations come and go

    def serve(self, session_key: str) -> None:
        """Note that an actor of this node serves a conversation from now on.

        Messages that an earlier owner has answered are not its business: they are looked up.
        """
        conversation = self._conversations.pop(session_key, None)
        self._asked.pop(session_key, None)
        known = set() if conversation is None else conversation.open.union(conversation.reading)
        known |= {each for each, of in self._awaited.items() if of.session_key == session_key}
        self._closed |= dict.fromkeys(known, session_key)
        if known or conversation is not None:
            self._wake()

    def leave(self, session_key: str, open_ids: Collection[int]) -> None:
        """Note that no actor of this node serves a conversation any more.

        `open_ids` are the messages that it has not answered.
        """
        if session_key in self._listeners and session_key not in self._conversations:
            self._open(session_key, open_ids)

    # From other nodes

    def receive(self, frame: Published | Answered) -> None:
        """Take what an owner says."""
        if isinstance(frame, Answered):
            for inbox_id in frame.inbox_ids:
                if (awaited := self._awaited.get(inbox_id)) is not None:
                    self._closed[inbox_id] = awaited.session_key
            self._wake()
            return
        conversation = self._conversations.get(frame.key)
        if conversation is None:
            return
        conversation.receive(frame)
        if conversation.reading or conversation.behind:
            self._wake()

    # The task

    async def wait(self) -> None:
        """Wait until `step` has something to do."""
        with trio.move_on_after(ASK_AGAIN if self._asking else math.inf):
            await self._dirty.wait()

    async def step(self) -> None:
        """Announce listeners, read the outcomes that are due, and ask for what is missing."""
        self._dirty = trio.Event()
        self._announce()
        await self._settle_closed()
        self._ask()

    async def poll(self) -> None:
        """Find out what hints should have said, and were perhaps lost."""
        self._forget_callers()
        set_event(self._fewer)
        await self._find_owners()
        keys = {*self._conversations, *self._tracked().values()}
        keys = {key for key in keys if not self._serves(key)}
        still_open: set[int] = set()
        for session_key, inbox_id in await self._reads.open_ids(sorted(keys)) if keys else ():
            still_open.add(inbox_id)
            found = self._conversations.get(session_key)
            if found is not None and inbox_id not in self._ended[session_key]:
                found.open.add(inbox_id)
        tracked = self._tracked()  # without those that have ended meanwhile
        gone = {each for each, key in tracked.items() if key in keys} - still_open
        now = trio.current_time()
        late = {each for each in gone if tracked[each] in self._conversations}
        self._overdue = {each: self._overdue.get(each, now) for each in late}
        due = {each for each, since in self._overdue.items() if since <= now - GRACE}
        self._closed |= {each: tracked[each] for each in (gone - late) | due}
        self._wake()

    def _tracked(self) -> dict[int, str]:
        """Return the messages that are open as far as this node knows, and that others answer."""
        tracked = {each: of.session_key for each, of in self._awaited.items()}
        for key, conversation in self._conversations.items():
            tracked |= dict.fromkeys(conversation.open, key)
        return {each: key for each, key in tracked.items() if not self._serves(key)}

    def _forget_callers(self) -> None:
        """Forget messages for whose replies nobody waits any more."""
        self._awaited = {
            inbox_id: awaited
            for inbox_id, awaited in self._awaited.items()
            if self._bus.is_awaited(awaited.identity)
        }

    async def _find_owners(self) -> None:
        """Ask new owners for the state of conversations: perhaps they do not know of this node."""
        if not self._conversations:
            return
        for key, claim in (await self._owners_of(sorted(self._conversations))).items():
            conversation = self._conversations.get(key)
            if conversation is not None:
                position = conversation.position
                if position is None or position.feed.fence < claim.fence:
                    self._this_node.tell(claim, [Missing(self._this_node.id, key, None, 0)])

    def _announce(self) -> None:
        """Tell the other nodes which conversations have listeners here, or have none any more."""
        me, wanted = self._this_node.id, set(self._conversations)
        before = self._announced[1] if self._announced[0] == me else set[str]()
        self._announced = (me, wanted)
        changes = ((wanted - before, True), (before - wanted, False))
        frames = [Listening(me, sorted(keys), begins) for keys, begins in changes if keys]
        self._this_node.tell(None, frames)

    def _ask(self) -> None:
        """Ask the owners for what is missing."""
        now, self._asking = trio.current_time(), False
        for key, conversation in self._conversations.items():
            late = not self._overdue.keys().isdisjoint(conversation.open)
            if (source := conversation.source) is None or not (late or conversation.behind):
                continue
            self._asking = True
            if now >= self._asked.get(key, -math.inf) + ASK_AGAIN:
                self._asked[key] = now
                at = conversation.position
                feed, number = (None, 0) if at is None else (at.feed, at.number)
                self._this_node.send(source, [Missing(self._this_node.id, key, feed, number)])

    async def _settle_closed(self) -> None:
        """Read outcomes until none is due."""
        while True:
            due = dict(self._closed)
            for key, conversation in self._conversations.items():
                due |= dict.fromkeys(conversation.reading, key)
            if not due:
                return
            self._settle(due, await self._reads.get_outcomes([*due]))

    def _settle(self, looked_up: dict[int, str], outcomes: Sequence[MessageOutcome]) -> None:
        """Publish and answer what was read, unless this node has answered it meanwhile."""
        by_id = {each.receipt.inbox_id: each for each in outcomes}
        by_key: dict[str, list[int]] = {}
        answered = False
        for inbox_id, key in looked_up.items():
            conversation = self._conversations.get(key)
            reading = conversation is not None and inbox_id in conversation.reading
            is_due = self._closed.pop(inbox_id, None) is not None
            if reading or (is_due and not self._this_node.served.knows(key, inbox_id)):
                by_key.setdefault(key, []).append(inbox_id)
                outcome = by_id.get(inbox_id)
                if outcome is None or outcome.state != "open":
                    answered |= self._answer(inbox_id, outcome)
        for key, ids in by_key.items():
            self._publish_ends(key, ids, [by_id[each] for each in ids if each in by_id])
        if answered:
            self._bus.wake_streams()
            set_event(self._fewer)

    def _publish_ends(self, key: str, ids: list[int], outcomes: list[MessageOutcome]) -> None:
        conversation = self._conversations.get(key)
        if conversation is not None:
            conversation.settle(ids, outcomes)
            return
        published = self._ended.get(key, deque())
        fresh = [each for each in outcomes if each.receipt.inbox_id not in published]
        for end in ends_of(fresh):
            published.extend(end.inbox_ids)
            self._bus.publish_remote(key, end.reply.turn_id, end)

    def _answer(self, inbox_id: int, outcome: MessageOutcome | None) -> bool:
        """Answer the callers that wait for the reply to a closed message."""
        awaited = self._awaited.pop(inbox_id, None)
        if outcome is None:
            if awaited is None:
                return False
            receipt = Receipt(inbox_id, awaited.session_key, "", 0, 0.0)
            outcome = MessageOutcome(receipt, awaited.identity, "done")
        note = f" ({outcome.note})" if outcome.note else ""
        unknown = ReplyNotFound(f"message {inbox_id} was closed without a stored reply{note}")
        return self._bus.answer(outcome, outcome.reply or Error(unknown))
