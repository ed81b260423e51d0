"""A state machine for ownership: nodes with stale knowledge, lost messages, crashes and pauses.

It drives a database, in memory (`cluster_model.Database`) or with real statements. After each step
it checks what must hold whatever is late, lost or wrong; at the end, that every message is answered
soon if one node is left.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from hermes.messages import Claim
from hermes.store.cluster.lease import Heartbeat, Lease
from hermes.store.cluster.placement import place
from tests.support.cluster_model import LEASE

BEAT = LEASE / 4
POLL = LEASE / 6
KEYS = ["key 1", "key 2"]
PAUSES = [0.1, BEAT, LEASE / 2, LEASE + 1]


@dataclass
class Node:
    """What one process knows. It is `paused` while it neither acts nor notices."""

    id: int
    lease: Lease
    known: list[int]
    paused: bool = False
    actors: dict[str, Claim] = field(default_factory=dict)
    beats: list[tuple[Heartbeat, bool]] = field(default_factory=list)
    """Answers of the database that the node has not read: the heartbeat, and whether it counts."""

    def take(self, claims):
        self.actors.update({claim.session_key: claim for claim in claims})


class ClusterMachine(RuleBasedStateMachine):
    """Subclasses say which database it runs on."""

    hints = Bundle("hints")
    """Keys that a node was told of, as (node, key)."""

    def __init__(self):
        super().__init__()
        self.database = self.new_database()
        self.time = 0.0
        self.nodes: dict[int, Node] = {}
        self.writes: dict[str, list[Claim]] = {}
        self.mistakes = False
        """Whether living nodes may be declared dead."""
        self.before = self.database.state()

    def new_database(self):
        raise NotImplementedError

    # Time and nodes

    @initialize(number=st.integers(2, 3), mistakes=st.booleans())
    def begin(self, number, mistakes):
        self.mistakes = mistakes
        for _ in range(number):
            self.start()

    @precondition(lambda self: len(self.nodes) < 3)
    @rule()
    def start_another(self):
        if len(self.nodes) < 3:
            self.start()

    def start(self):
        lease = Lease(LEASE, lambda: self.time)
        beat = lease.begin()
        number = self.database.register()
        lease.renew(beat)
        self.nodes[number] = Node(number, lease, self.database.live())

    @rule(seconds=st.sampled_from(PAUSES))
    def pass_time(self, seconds):
        self.time += seconds
        self.database.advance(seconds)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def crash(self, data):
        del self.nodes[self.pick(data).id]

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def pause_or_resume(self, data):
        node = self.pick(data)
        node.paused = not node.paused

    @precondition(lambda self: self.mistakes and self.nodes)
    @rule(data=st.data())
    def declare_a_living_node_dead(self, data):
        """The clock of the database jumped, or somebody made a mistake; others take over."""
        if not self.mistakes:
            return
        node = self.pick(data)
        self.database.declare(node.id)
        for other in self.nodes.values():
            if other is not node and not other.paused:
                self.look(other)

    # Heartbeats: the database gets one at once, the node reads the answer later or never

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), lost=st.booleans())
    def beat(self, data, lost):
        node = self.awake(data)
        if node is not None:
            heartbeat, renewed = self.send_beat(node)
            if not lost:
                node.beats.append((heartbeat, renewed))

    def send_beat(self, node):
        heartbeat = node.lease.begin()
        renewed = self.database.renew(node.id)
        if renewed and heartbeat.alive:
            self.database.declare_dead()
        return heartbeat, renewed

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def read_beats(self, data):
        node = self.awake(data)
        if node is not None:
            self.take_beats(node)

    def take_beats(self, node):
        for heartbeat, renewed in node.beats:
            if renewed:
                node.lease.renew(heartbeat)
            else:  # it was declared dead: it ends its actors and comes back as another node
                del self.nodes[node.id]
                self.start()
                return
        node.beats = []
        node.known = self.database.live()

    # Messages

    @precondition(lambda self: self.nodes)
    @rule(target=hints, data=st.data(), key=st.sampled_from(KEYS))
    def accept(self, data, key):
        node = self.awake(data)
        if node is None:
            return multiple()
        claim = self.database.accept(key, place(key, node.known))
        if claim is None:
            return multiple()
        if claim.node == node.id:
            node.take([claim])
            return multiple()
        return (claim.node, key)

    @rule(hint=consumes(hints))
    def read_hint(self, hint):
        node = self.nodes.get(hint[0])
        if node is not None and not node.paused:
            node.take(self.database.waiting(node.id))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def poll(self, data):
        node = self.awake(data)
        if node is not None:
            self.look(node)

    def look(self, node):
        """Claim what is free, unless the own lease has run out; then take what waits."""
        if node.lease.valid:
            node.take(self.database.claim(node.id, self.database.free_keys()))
            node.take(self.database.waiting(node.id))

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def commit(self, data):
        """An actor finishes a turn; it may have lost its key long ago."""
        actors = sorted((node.id, key) for node in self.nodes.values() for key in node.actors)
        if actors:
            number, key = data.draw(st.sampled_from(actors))
            self.finish(self.nodes[number], key)

    def finish(self, node, key):
        claim = node.actors[key]
        if self.database.commit(claim):
            self.writes.setdefault(key, []).append(claim)
        else:
            del node.actors[key]

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), everything=st.booleans())
    def release(self, data, everything):
        node = self.awake(data)
        if node is None:
            return
        if everything:  # it is about to end
            self.database.release(node.id, sorted(node.actors))
            node.actors = {}
        elif node.actors:
            key = data.draw(st.sampled_from(sorted(node.actors)))
            self.database.release_idle(node.actors.pop(key))

    def pick(self, data):
        return self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]

    def check(self):
        """Check all invariants."""
        self.writes_of_two_owners_never_interleave()
        self.ownership_changes_by_the_rules()
        self.every_message_is_with_a_living_owner_or_free()
        self.nobody_is_declared_dead_who_trusts_its_lease()

    def awake(self, data):
        node = self.pick(data)
        return None if node.paused else node

    # What always holds

    @invariant()
    def writes_of_two_owners_never_interleave(self):
        for claims in self.writes.values():
            fences = [claim.fence for claim in claims]
            assert fences == sorted(fences)
            assert len({(claim.fence, claim.node) for claim in claims}) == len(set(fences))

    @invariant()
    def ownership_changes_by_the_rules(self):
        (old, dead), (new, now_dead) = self.before, self.database.state()
        assert dead <= now_dead
        for key, (owner, fence, _) in old.items():
            owner_now, fence_now, _ = new[key]
            assert fence_now >= fence
            if owner_now != owner:
                assert fence_now > fence
                assert owner_now is None or owner is None or owner in now_dead
        self.before = (new, now_dead)

    @invariant()
    def every_message_is_with_a_living_owner_or_free(self):
        rows, dead = self.database.state()
        free = set(self.database.free_keys())
        for key, (owner, _, waiting) in rows.items():
            assert not waiting or key in free or (owner is not None and owner not in dead)

    @invariant()
    def nobody_is_declared_dead_who_trusts_its_lease(self):
        _, dead = self.database.state()
        trusting = {node.id for node in self.nodes.values() if node.lease.valid}
        assert self.mistakes or not trusting & dead

    def teardown(self):
        """Let one node live, or a new one: it answers everything within L + B + P."""
        for number in sorted(self.nodes)[1:]:
            del self.nodes[number]
        if not self.nodes:
            self.start()
        until = self.time + LEASE + 2 * BEAT + POLL
        while self.time <= until:
            self.live_on()
            self.pass_time(BEAT)
        rows, _ = self.database.state()
        assert not any(waiting for _, _, waiting in rows.values())

    def live_on(self):
        """Do what the only node does between two heartbeats."""
        [node] = self.nodes.values()
        node.paused = False
        node.beats.append(self.send_beat(node))
        self.take_beats(node)
        [node] = self.nodes.values()
        self.look(node)
        for key in sorted(node.actors):
            self.finish(node, key)


def run_randomly(machine, seed, steps=60):
    """Run a machine without Hypothesis, which takes most of the time; raises `AssertionError`."""
    chance = random.Random(seed)
    data = Steered(chance)
    machine.begin(chance.choice([2, 3]), mistakes=chance.random() < 0.5)
    hints = []
    for _ in range(steps):
        step = chance.choice(STEPS)
        if step == "pass_time":
            machine.pass_time(chance.choice(PAUSES))
        elif step == "start":
            machine.start_another()
        elif step == "read_hint":
            if hints:
                machine.read_hint(hints.pop(chance.randrange(len(hints))))
        elif machine.nodes:
            told = getattr(machine, step)(data, **_options(step, chance))
            hints += [told] if isinstance(told, tuple) else []
        machine.check()
    machine.teardown()


STEPS = [
    "start",
    "pass_time",
    "crash",
    "pause_or_resume",
    "declare_a_living_node_dead",
    "beat",
    "beat",
    "read_beats",
    "accept",
    "accept",
    "read_hint",
    "poll",
    "poll",
    "commit",
    "commit",
    "commit",
    "release",
]


def _options(step, chance):
    return {
        "beat": {"lost": chance.random() < 0.3},
        "accept": {"key": chance.choice(KEYS)},
        "release": {"everything": chance.random() < 0.5},
    }.get(step, {})


class Steered:
    """Draws like Hypothesis, from a seed."""

    def __init__(self, chance):
        self.chance = chance

    def draw(self, strategy):
        return self.chance.choice(strategy.elements)
