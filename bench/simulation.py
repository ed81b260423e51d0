"""A node on paper: one interpreter, one writer that commits for all who wait, one turn per session.

Discrete events in plain Python, seeded; it knows nothing of `hermes` and takes its costs from
whoever runs it. Times are in seconds.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

import attrs

from bench.peers.timing import percentile

Then = Callable[[], None]


@attrs.frozen
class Costs:
    """What a node pays, in seconds."""

    accept: float
    """The interpreter, until a message is handed to the writer."""
    run: float
    """The interpreter, for the turn itself and its commit, without its calls of a model."""
    commit: float = 0.0
    """The interpreter, for each commit, however many share it."""
    flush: float = 0.0
    """The disk, for each commit; the interpreter is free meanwhile."""
    call: float = 0.0
    """The interpreter, for each call of a model."""
    spread: float = 0.0
    """How uneven the interpreter's work is, variance / mean²: 0 always the same, 1 exponential."""


@attrs.frozen
class Model:
    """How long a model thinks: `calls` times, each lognormal around `median` seconds."""

    median: float = 0.0
    sigma: float = 0.0
    calls: int = 0

    @property
    def mean(self) -> float:
        """What a turn waits for its model."""
        return self.calls * self.median * math.exp(self.sigma**2 / 2)

    def draw(self, random: Random) -> float:
        """How long one call takes."""
        return self.median * random.lognormvariate(0.0, self.sigma) if self.median else 0.0


class Clock:
    """What happens when; what falls on the same time, in the order it was planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Then]] = []
        self._numbers = itertools.count()

    def at(self, when: float, then: Then) -> None:
        """Plan something, not before now."""
        heapq.heappush(self._due, (when, next(self._numbers), then))

    def run(self, until: float = math.inf) -> None:
        """Let happen all that falls before `until`."""
        while self._due and self._due[0][0] < until:
            self.now, _, then = heapq.heappop(self._due)
            then()


class Processor:
    """One interpreter: one thing at a time, first come, first served."""

    def __init__(self, clock: Clock, random: Random, spread: float = 0.0) -> None:
        self.busy = 0.0
        self._clock = clock
        self._random = random
        self._spread = spread
        self._free = 0.0

    def work(self, mean: float, then: Then) -> None:
        """Do this behind all else that waits, then go on."""
        seconds = mean
        if self._spread and mean:
            seconds = self._random.gammavariate(1 / self._spread, mean * self._spread)
        self.busy += seconds
        self._free = max(self._free, self._clock.now) + seconds
        self._clock.at(self._free, then)


class Writer:
    """One commit at a time, for all who wait when it begins."""

    def __init__(self, clock: Clock, processor: Processor, costs: Costs) -> None:
        self.commits = 0
        self.requests = 0
        self._clock = clock
        self._processor = processor
        self._costs = costs
        self._waiting: list[Then] = []
        self._busy = False

    def ask(self, then: Then) -> None:
        """Go on when this is on disk."""
        self.requests += 1
        self._waiting.append(then)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        self.commits += 1
        group, self._waiting = self._waiting, []
        self._processor.work(self._costs.commit, partial(self._flush, group))

    def _flush(self, group: Sequence[Then]) -> None:
        self._clock.at(self._clock.now + self._costs.flush, partial(self._end, group))

    def _end(self, group: Sequence[Then]) -> None:
        for then in group:
            then()
        self._busy = False
        if self._waiting:
            self._begin()


@attrs.define
class Mail:
    """A message on its way; `accepting` is what it took until it was on disk."""

    came: float
    then: Then | None
    accepting: float = 0.0


@attrs.frozen
class Turn:
    """A turn that is over; `own` is its time without the model's and the mailbox's."""

    key: int
    messages: int
    begun: float
    ended: float
    own: float


@attrs.define
class Session:
    """What waits for a conversation's next turn."""

    waiting: list[Mail] = attrs.field(factory=list)
    running: bool = False


class Node:
    """Accepts messages and runs their turns: what waits for a session becomes its next turn."""

    def __init__(self, costs: Costs, model: Model, random: Random) -> None:
        self.clock = Clock()
        self.processor = Processor(self.clock, random, costs.spread)
        self.writer = Writer(self.clock, self.processor, costs)
        self.turns: list[Turn] = []
        self._costs = costs
        self._model = model
        self._random = random
        self._sessions: dict[int, Session] = {}

    def arrive(self, key: int, then: Then | None = None) -> None:
        """A message; `then` is called when its turn is committed."""
        mail = Mail(self.clock.now, then)
        accepted = partial(self._accepted, key, mail)
        self.processor.work(self._costs.accept, partial(self.writer.ask, accepted))

    def _accepted(self, key: int, mail: Mail) -> None:
        mail.accepting = self.clock.now - mail.came
        session = self._sessions.setdefault(key, Session())
        session.waiting.append(mail)
        if not session.running:
            self._begin(key, session)

    def _begin(self, key: int, session: Session) -> None:
        taken, session.waiting, session.running = session.waiting, [], True
        turn = partial(self._committed, key, taken, self.clock.now)
        self.processor.work(self._costs.run, partial(self._call, turn, self._model.calls, 0.0))

    def _call(self, turn: Callable[[float], None], calls: int, thought: float) -> None:
        """Ask the model `calls` times, then commit."""
        if not calls:
            self.writer.ask(partial(turn, thought))
            return
        seconds = self._model.draw(self._random)
        next_ = partial(self._call, turn, calls - 1, thought + seconds)
        answered = partial(self.processor.work, self._costs.call, next_)
        self.clock.at(self.clock.now + seconds, answered)

    def _committed(self, key: int, taken: Sequence[Mail], begun: float, thought: float) -> None:
        ended = self.clock.now
        own = taken[0].accepting + ended - begun - thought
        self.turns.append(Turn(key, len(taken), begun, ended, own))
        session = self._sessions[key]
        session.running = False
        if session.waiting:
            self._begin(key, session)
        for mail in taken:
            if mail.then is not None:
                mail.then()


@attrs.frozen
class Seen:
    """What a simulation has shown, after its warm-up."""

    seconds: float
    turns: Sequence[Turn]
    messages: int
    busy: float
    """The share of the time in which the interpreter worked."""
    batch: float
    """Requests per commit."""

    @property
    def rate(self) -> float:
        """Turns per second."""
        return len(self.turns) / self.seconds

    @property
    def mean(self) -> float:
        """Seconds of a turn that were Hermes' own."""
        return sum(turn.own for turn in self.turns) / len(self.turns)

    def quantile(self, share: float) -> float:
        """Seconds of their own that this share of turns stayed below."""
        return percentile([turn.own for turn in self.turns], share)


def watch(node: Node, warm_up: float, seconds: float) -> Seen:
    """Let a node with its arrivals run, and count after the warm-up."""
    node.clock.run(warm_up)
    first, busy = len(node.turns), node.processor.busy
    commits, requests = node.writer.commits, node.writer.requests
    node.clock.run(warm_up + seconds)
    turns = node.turns[first:]
    return Seen(
        seconds=seconds,
        turns=turns,
        messages=sum(turn.messages for turn in turns),
        busy=(node.processor.busy - busy) / seconds,
        batch=(node.writer.requests - requests) / max(1, node.writer.commits - commits),
    )


def closed(node: Node, sessions: int) -> None:
    """So many sessions, each with its next message as soon as it has its answer."""
    for key in range(sessions):
        _again(node, key)


def _again(node: Node, key: int) -> None:
    node.arrive(key, partial(_again, node, key))


@attrs.frozen
class People:
    """Who writes: `rate` messages per second of all keys together.

    A thought takes `burst` messages in a row, a few seconds (`gap`) apart; thoughts are Poisson.
    """

    keys: Sequence[int]
    rate: float
    burst: int = 1
    gap: float = 0.0


def opened(node: Node, people: People, random: Random) -> None:
    """People who write whether or not they were answered."""

    def think() -> None:
        clock, key = node.clock, random.choice(people.keys)
        when = clock.now
        for _ in range(people.burst):
            clock.at(when, partial(node.arrive, key))
            when += random.expovariate(1 / people.gap) if people.gap else 0.0
        clock.at(clock.now + random.expovariate(people.rate / people.burst), think)

    node.clock.at(random.expovariate(people.rate / people.burst), think)


def home(key: int, nodes: int) -> int:
    """Which node a key lives on: the one with the highest hash of both (rendezvous)."""
    return max(range(nodes), key=lambda node: hashlib.blake2b(b"%d %d" % (key, node)).digest())


def shares(keys: Iterable[int], nodes: int) -> list[list[int]]:
    """The keys of each node."""
    homes: list[list[int]] = [[] for _ in range(nodes)]
    for key in keys:
        homes[home(key, nodes)].append(key)
    return homes
