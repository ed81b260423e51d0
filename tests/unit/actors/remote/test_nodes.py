"""The two sides of remote events on several nodes, in virtual time, with hints that get lost.

Owners run turns, crash and hand conversations over. What a listener on another node sees of a run
is the beginning of what was published, each turn ends once, and each caller gets its reply.
"""

from __future__ import annotations

import itertools
from random import Random

import pytest
import trio

from hermes.actors.event_bus import EventBus
from hermes.actors.remote.audience import Audience
from hermes.actors.remote.frames import Answered, Item, Published, decode, encode
from hermes.actors.remote.items import Items, missing
from hermes.actors.remote.relay import Relay
from hermes.actors.remote.this_node import State, ThisNode
from hermes.events import MessageAccepted, TextDelta, ToolFinished, TurnEnded, TurnStarted
from hermes.messages import Claim, Inbound, InboxRow, MessageOutcome, Receipt, Reply

KEYS = ["one", "two"]
NODES = [1, 2, 3]


class Database:
    """Messages with their replies, and who serves which conversation."""

    def __init__(self):
        self.replies = {}
        self.keys = {}
        self.owners = {}
        self.fences = itertools.count(1)
        self.listeners = set()

    def accept(self, key):
        inbox_id = len(self.keys) + 1
        self.keys[inbox_id], self.replies[inbox_id] = key, None
        return inbox_id

    def outcome(self, inbox_id):
        reply, key = self.replies[inbox_id], self.keys[inbox_id]
        receipt = Receipt(inbox_id, key, "s", 1, 0.0)
        state = "open" if reply is None else "done"
        return MessageOutcome(receipt, identity(inbox_id), state, reply=reply)

    async def get_outcomes(self, inbox_ids):
        await trio.sleep(0.01)
        return [self.outcome(each) for each in inbox_ids]

    async def open_ids(self, session_keys):
        await trio.sleep(0.01)
        wanted = [(key, each) for each, key in self.keys.items() if key in session_keys]
        return [(key, each) for key, each in wanted if self.replies[each] is None]

    async def owners_of(self, session_keys):
        await trio.sleep(0.01)
        return {key: self.owners[key] for key in session_keys if key in self.owners}


def identity(inbox_id):
    return ("embedded", "", f"event {inbox_id}", "")


class Node:
    """A node: it runs turns of the conversations that it owns, and listens to all others."""

    def __init__(self, world, number):
        self.world, self.number = world, number
        self.bus = EventBus(lambda _: None)
        this = ThisNode(self, lambda: number, self.others, world.sender(number), lambda: 0.0)
        self.relay = Relay(self.bus, this)
        self.audience = Audience(self.bus, this, world.db, world.db.owners_of)
        self.bus.other_nodes = self
        self.running = {}
        """The events of the running turn of each conversation that it serves."""
        self.seen = []
        self.requests = {}

    def others(self):
        return [node for node in NODES if node != self.number]

    # What it serves

    def serves(self, key):
        return key in self.running

    def knows(self, key, inbox_id):
        return key in self.running and self.world.db.replies[inbox_id] is None

    def state_of(self, key):
        return State(self.running[key]) if key in self.running else None

    # What the bus says

    def begin(self, key):
        self.audience.begin(key)

    def end(self, key):
        self.audience.end(key)

    def expect(self, receipt, identity, claim):
        self.audience.expect(receipt, identity, claim)

    def ended(self, key, inbox_ids):
        self.audience.ended(key, inbox_ids)
        self.relay.ended(key, inbox_ids)

    # What it does

    def receive(self, text):
        for frame in decode(text):
            to = self.audience if isinstance(frame, Published | Answered) else self.relay
            to.receive(frame)

    def ask(self, inbox_id, key):
        self.requests[inbox_id] = self.bus.expect(identity(inbox_id))
        receipt = self.world.db.outcome(inbox_id).receipt
        claim = self.world.db.owners.get(key)
        self.bus.await_reply(receipt, identity(inbox_id), self.requests[inbox_id], claim)

    async def run(self):
        self.subscriptions = [self.bus.subscribe(key, callback=self.seen.append) for key in KEYS]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.relay.run)
            nursery.start_soon(self.listen)
            while True:
                await trio.sleep(1)
                self.relay.repeat_positions()
                self.world.db.listeners -= {
                    each for each in self.world.db.listeners if each[0] == self.number
                }
                self.world.db.listeners |= {(self.number, key) for key in self.audience.listened}
                self.relay.update({e for e in self.world.db.listeners if e[0] != self.number})
                await self.audience.poll()

    async def listen(self):
        while True:
            await self.audience.wait()
            await self.audience.step()

    def take(self, key):
        """Begin to serve a conversation."""
        claim = Claim(key, self.number, next(self.world.db.fences))
        self.world.db.owners[key] = claim
        self.running[key] = []
        self.audience.serve(key)
        self.relay.serve(key, claim.fence)

    def lose(self, key, open_ids):
        del self.running[key]
        self.relay.leave(key)
        self.audience.leave(key, open_ids)

    def publish(self, key, turn_id, event):
        self.running[key].append(Item(turn_id, event))
        self.world.published[self.run_of(key)] = [*self.running[key]]
        self.bus.publish(key, turn_id, event)

    def run_of(self, key):
        return self.running[key][0].event.session_id


class World:
    """The nodes, what they send, and what happens in each conversation."""

    def __init__(self, random, share, nursery):
        self.random, self.share, self.nursery = random, share, nursery
        self.db = Database()
        self.published = {}
        self.runs = itertools.count(1)
        self.nodes = {number: Node(self, number) for number in NODES}

    def sender(self, number):
        def send(node, frames):
            if self.random.random() >= self.share:
                self.nursery.start_soon(self.deliver, node, encode(frames).decode())

        return send

    async def deliver(self, node, text):
        await trio.sleep(0.001)
        self.nodes[node].receive(text)

    async def converse(self, key):
        """Have turns of one conversation, each by an owner that may not live to see its end."""
        owner = self.nodes[self.random.choice(NODES)]
        owner.take(key)
        await trio.sleep(2)
        for _ in range(6):
            inbox_id, attempt = self.db.accept(key), 0
            self.nodes[self.random.choice(NODES)].ask(inbox_id, key)
            owner.bus.announce(key, MessageAccepted("hello", inbox_id))
            while self.db.replies[inbox_id] is None:
                attempt += 1
                if not await self.turn(owner, key, inbox_id, attempt):
                    owner.lose(key, [inbox_id])
                    del self.db.owners[key]
                    await trio.sleep(self.random.random() * 2)
                    owner = self.nodes[self.random.choice(NODES)]
                    owner.take(key)
            await trio.sleep(self.random.random() * 3)

    async def turn(self, owner, key, inbox_id, attempt):
        owner.running[key] = []
        name = f"run {next(self.runs)}"
        owner.publish(
            key, inbox_id, TurnStarted(inbox_id, name, None, (inbox_id,), attempt=attempt)
        )
        for number in range(self.random.randrange(12)):
            event = (
                TextDelta(f"{number} ") if self.random.random() < 0.7 else ToolFinished("c", "x")
            )
            owner.publish(key, inbox_id, event)
            await trio.sleep(self.random.choice([0, 0.01, 0.2]))
            if self.random.random() < 0.04:
                return False
        reply = Reply(text=name, session_id="s", turn_id=inbox_id, status="complete")
        self.db.replies[inbox_id] = reply
        owner.running[key] = []
        inbound = Inbound(key, f"event {inbox_id}", "hello")
        owner.bus.reply([InboxRow(inbox_id, inbound, 0, 0.0)], reply)
        return True

    def check(self, node):
        """Compare what a node has seen with what was published and stored."""
        ends, runs = seen_by(node)
        for name, seen in runs.items():
            assert missing([*Items(seen)], [*Items(self.published[name])]) is not None
            if not self.share and self.db.replies[seen[0].turn_id].text == name:
                assert [*Items(seen)] == [*Items(self.published[name])]
        assert ends == {each: self.db.replies[each] for each in ends}
        begun = {seen[0].turn_id for seen in runs.values()}
        assert begun <= ends.keys(), "every turn that was seen has ended"
        if not self.share:  # else a listener may not hear of a short turn at all
            assert ends == self.db.replies
        for inbox_id, request in node.requests.items():
            assert request.answered
            assert request._answer == self.db.replies[inbox_id]


def seen_by(node):
    """Return the replies of turns whose ends a node has seen, and the events of each run."""
    ends, runs, current = {}, {}, {}
    for envelope in node.seen:
        event, key = envelope.event, envelope.session_key
        if isinstance(event, TurnEnded):
            assert ends.keys().isdisjoint(event.inbox_ids), "an end is published once"
            ends |= dict.fromkeys(event.inbox_ids, event.reply)
            current[key] = None
            continue
        if isinstance(event, TurnStarted):
            assert envelope.turn_id not in ends
            current[key] = runs[event.session_id] = []
        if current.get(key) is not None:
            current[key].append(Item(envelope.turn_id, event))
    return ends, runs


@pytest.mark.parametrize("share", [0, 0.2, 0.6])
@pytest.mark.parametrize("seed", range(8))
async def test_listeners_see_what_owners_publish(autojump_clock, seed, share):
    async with trio.open_nursery() as nursery:
        world = World(Random(seed), share, nursery)
        for node in world.nodes.values():
            nursery.start_soon(node.run)
        await trio.sleep(0.1)
        async with trio.open_nursery() as conversations:
            for key in KEYS:
                conversations.start_soon(world.converse, key)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    for node in world.nodes.values():
        world.check(node)
