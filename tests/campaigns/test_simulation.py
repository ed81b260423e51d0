"""C3: random interleavings of messages, commands, cancellations, crashes, other writers and time.

A script of operations runs against the real actors and a real file, on a virtual clock, with a
store that works inline, so that a failing script repeats exactly. COMMITs fail on demand: busy,
full, or with an unknown outcome, which ends the runtime as a crash would. In the end the runtime is
opened once more without faults, and the file must show that every guarantee was kept.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable

import apsw
import attrs
import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from msgspec.structs import replace
from trio.testing import MockClock

from hermes import CompressionConfig, Config, ExpiryPolicy, Inbound, Source
from hermes.actors.runtime import open_actors
from hermes.embed.agent import default_spec
from hermes.errors import (
    ContextOverflow,
    HermesError,
    Overloaded,
    StoreFailed,
)
from hermes.events import TextDelta, ToolFinished, ToolStarted
from hermes.messages import Committed, ToolCall, TurnResult, Usage
from hermes.store import SessionStore, open_store
from hermes.testing import DeterministicCompressor, MemoryAdapter, inline, inspect
from hermes.texts import ENGLISH
from hermes.transcript.render import is_valid, render
from tests.support.folders import quick_folder
from tests.support.store_proxy import Through
from tests.support.stores import World

KEYS = ("k0", "k1")
COMMANDS = (
    "/new", "/new a title", "/stop", "/retry", "/undo", "/undo 3", "/compress", "/compress here 1",
    "/branch", "/resume 1", "/resume 2", "/sessions", "/title x", "/status", "/background look",
    "/steer left", "/queue later", "/usage", "/nonsense",
)  # fmt: skip
PATIENCE = 10_000.0
CANCELLED = re.compile(r"(\d+) queued messages? w")
ANSWERS = "SELECT content FROM all_messages WHERE role = 'assistant' AND content LIKE 'well, _%'"
REPLIES = "SELECT turn_id FROM outbox WHERE json_extract(body, '$.kind') = 'reply'"
EXAMPLES = 5000 if "--prove" in sys.argv else 100

CONFIG = Config(
    expiry=ExpiryPolicy(mode="idle", idle_minutes=10),
    turn_timeout=60,
    commit_timeout=2,
    idle_timeout=300,
    max_agents=1,
    drain_timeout=0,
    max_attempts=1000,
    compression=CompressionConfig(window=1000, max_output=100, protect_first=1),
)

key = st.sampled_from(KEYS)
OPERATIONS = st.one_of(
    st.tuples(
        st.just("say"), key, st.sampled_from([None, "queue", "interrupt", "steer", "reject"])
    ),
    st.tuples(st.just("say"), key, st.none()),
    st.tuples(st.just("command"), key, st.sampled_from(COMMANDS)),
    st.tuples(st.just("repeat"), st.integers(0, 30)),
    st.tuples(st.just("give_up"), key, st.integers(0, 12)),
    st.tuples(st.just("interrupt"), key),
    st.tuples(st.just("write"), key, st.sampled_from(["append", "rewind", "edit", "title"])),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 2.0, 30.0, 700.0])),
    st.tuples(st.just("steps"), st.integers(1, 15)),
    st.tuples(
        st.just("fault"), st.sampled_from(["busy", "full", "unknown-absent", "unknown-present"])
    ),
    st.tuples(st.just("crash")),
    st.tuples(st.just("passivate")),
)


@attrs.define
class Agent:
    """An agent whose behaviour depends on the message, and on nothing else."""

    story: Story
    runs: int = 0
    open_turns: int = 0
    closed: int = 0

    async def run(self, turn):
        assert not self.open_turns, "two turns at once"
        assert is_valid(turn.messages()) is None
        self.open_turns += 1
        try:
            return await self._run(turn)
        finally:
            self.open_turns -= 1

    async def _run(self, turn):
        self.runs += 1
        dice = random.Random(turn.text)
        if dice.random() < 0.1:
            raise RuntimeError("the model is unwell")
        if dice.random() < 0.05 and len(turn.history) > 6:
            raise ContextOverflow("too long")
        for number in range(dice.randint(0, 2)):
            call = ToolCall(f"{turn.turn_id}-{number}-{self.runs}", "tool")
            turn.emit(ToolStarted(call))
            await trio.sleep(dice.choice([0, 0.1, 5]))
            turn.emit(ToolFinished(call.id, "done"))
            turn.steered()
        turn.emit(TextDelta("well, "))
        await trio.sleep(dice.choice([0, 0, 0.2, 3]))
        usage = [Usage(input_tokens=dice.choice([10, 10, 900]), output_tokens=5)]
        return TurnResult(text=f"well, {turn.text[-20:]}", usage=usage)

    async def aclose(self):
        assert not self.open_turns
        self.closed += 1
        assert self.closed == 1, "closed twice"
        await trio.lowlevel.checkpoint()


@attrs.define
class Story:
    """The input of a simulation, and its results."""

    path: object
    world: World = attrs.Factory(World)
    said: list[Inbound] = attrs.Factory(list)
    receipts: dict[str, int] = attrs.Factory(dict)
    replies: dict[str, list] = attrs.Factory(dict)
    agents: list[Agent] = attrs.Factory(list)
    adapter: MemoryAdapter = attrs.Factory(lambda: MemoryAdapter(platform="sim"))
    faults: list[str] = attrs.Factory(list)
    heard: list[tuple[str, str, int]] = attrs.Factory(list)
    starts: int = 0
    behind: Callable[[object], object] = lambda store: store
    """Wraps the store that the runtime gets."""

    @contextlib.asynccontextmanager
    async def open(self):
        """Open the runtime."""
        self.starts += 1
        async with (
            open_store(
                self.path,
                clock=self.world.clock,
                hooks={
                    "on_session_finalize": [self._hook("finalize")],
                    "on_session_reset": [self._hook("reset")],
                },
                open_worker=inline(lambda: self.faults.pop(0) if self.faults else None),
            ) as store,
            open_actors(
                self.behind(store),
                build=self.build,
                agent_spec=default_spec,
                compressor=DeterministicCompressor(delay=0.5),
                adapters=[self.adapter],
                wall=self.world.clock.wall,
                config=CONFIG,
            ) as runtime,
        ):
            yield runtime

    def build(self, spec):
        agent = Agent(self)
        self.agents.append(agent)
        return agent

    def _hook(self, name):
        async def hook(session_id, platform, boundary_id):
            self.heard.append((name, session_id, boundary_id))

        return hook

    def inbound(self, session_key, text, **options):
        number = len(self.said)
        source = Source(platform="sim", chat_id=session_key, user_id=session_key)
        inbound = Inbound(session_key, f"e{number}", text, source, **options)
        self.said.append(inbound)
        return inbound


class Player:
    """Runs a script, and opens the runtime again after each crash."""

    def __init__(self, story):
        self.story = story

    async def play(self, script):
        left = list(script)
        while left:
            try:
                async with self.story.open() as runtime, trio.open_nursery() as nursery:
                    while left:
                        operation = left.pop(0)
                        if operation == ("crash",):
                            raise Crash  # noqa: TRY301
                        await self.do(runtime, nursery, *operation)
                    nursery.cancel_scope.cancel()
            except Crash:
                pass
            except BaseExceptionGroup as group:
                if (rest := group.split((Crash, StoreFailed))[1]) is not None:
                    raise rest from None
            except StoreFailed:
                pass
            self.story.faults.clear()

    async def do(self, runtime, nursery, name, *arguments):
        await getattr(self, name)(runtime, nursery, *arguments)

    async def say(self, runtime, nursery, session_key, when_busy):
        number = len(self.story.said)
        inbound = self.story.inbound(
            session_key, f"{number:04} {'word ' * (number % 40)}", when_busy=when_busy
        )
        nursery.start_soon(self.submit, runtime, inbound)

    async def command(self, runtime, nursery, session_key, text):
        inbound = self.story.inbound(session_key, text, command=True)
        nursery.start_soon(self.submit, runtime, inbound)

    async def repeat(self, runtime, nursery, number):
        if self.story.said:
            inbound = self.story.said[number % len(self.story.said)]
            nursery.start_soon(self.submit, runtime, inbound)

    async def submit(self, runtime, inbound):
        try:
            receipt = await runtime.submit(inbound)
        except (HermesError, Overloaded):
            return
        first = self.story.receipts.setdefault(inbound.event_id, receipt.inbox_id)
        assert first == receipt.inbox_id, "one event, two receipts"

    async def give_up(self, runtime, nursery, session_key, steps):
        """Ask, and cancel the call after a number of steps."""
        number = len(self.story.said)
        text = f"{number:04} cancelled"
        inbound = self.story.inbound(session_key, text, per_conversation=True)

        async def ask():
            with contextlib.suppress(HermesError):
                await runtime.ask(
                    session_key, inbound.text, source=inbound.source, event_id=inbound.event_id
                )

        async with trio.open_nursery() as inner:
            inner.start_soon(ask)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            inner.cancel_scope.cancel()

    async def interrupt(self, runtime, nursery, session_key):
        await runtime.conversation(session_key).interrupt()

    async def write(self, runtime, nursery, session_key, what):
        with SessionStore(self.story.path, clock=self.story.world.clock) as store:
            route = store.get_route(session_key)
            if route is None or store.get_session(route.session_id) is None:
                return
            rows = store.load(route.session_id).messages
            try:
                match what:
                    case "append":
                        store.append_message(route.session_id, "user", "from elsewhere")
                    case "rewind" if rows:
                        store.rewind(route.session_id, rows[len(rows) // 2].id)
                    case "edit" if rows:
                        store.edit_message(route.session_id, rows[-1].id, "edited elsewhere")
                    case "title":
                        store.set_session_title(route.session_id, f"t{len(self.story.said)}")
            except (HermesError, ValueError):
                pass  # the session has just ended, or the title is in use

    async def wait(self, runtime, nursery, seconds):
        self.story.world.pass_time(seconds)
        await trio.sleep(seconds)

    async def steps(self, runtime, nursery, number):
        for _ in range(number):
            await trio.lowlevel.checkpoint()

    async def fault(self, runtime, nursery, kind):
        self.story.faults.append(kind)

    async def passivate(self, runtime, nursery):
        runtime.admin.passivate()


class Crash(Exception):
    """The program of the host fails."""


async def calm(story):
    """Open the runtime without faults, until nothing is left to do."""
    with trio.fail_after(PATIENCE):
        async with story.open() as runtime:
            while await unfinished(runtime):
                story.world.pass_time(1)
                await trio.sleep(1)
            await runtime.wait_hooks()
            await runtime.drain(PATIENCE)


async def unfinished(runtime):
    store = inspect(runtime).store
    return await store.open_inbox() or await store.pending_outbox()


def check(story):
    with (
        SessionStore(story.path, clock=story.world.clock) as store,
        contextlib.closing(apsw.Connection(str(story.path))) as db,
    ):
        states = dict(db.execute("SELECT event_id, state FROM inbox"))
        order = dict(db.execute("SELECT event_id, id FROM inbox"))
        for event_id in story.receipts:
            assert states.get(event_id) == "done", f"{event_id} is {states.get(event_id)}"
        for inbox_id in order.values():
            assert store.get_outcome(inbox_id).reply is not None, f"{inbox_id} has no reply"
        sessions = [row[0] for row in db.execute("SELECT id FROM sessions")]
        for session_id in sessions:
            session = store.get_session(session_id)
            rows = store.get_messages(session_id)
            assert session.message_count == len(rows)
            assert is_valid(render(rows)) is None
            every = store.get_messages(session_id, include_rewound=True)
            ours = [row for row in every if row.content and row.content[:4].isdigit()]
            waited = [row for row in ours if story.said[int(row.content[:4])].when_busy != "steer"]
            assert [r.id for r in every] == sorted(r.id for r in every)
            check_order(waited, order)
            live = [row.content[:4] for row in rows if row in ours and row.role == "user"]
            assert len(live) == len(set(live)), f"twice in {session_id}: {live}"
            if session.end_reason == "compression":
                assert store.get_compression_tip(session_id) != session_id
        for (session_id,) in db.execute("SELECT session_id FROM routes").fetchall():
            session = store.get_session(session_id)
            assert session is None or session.end_reason is None
        assert not store.pending_outbox()
        assert not store.pending_boundaries()
        assert not db.execute("SELECT 1 FROM leases WHERE holder IS NOT NULL").fetchall()
        assert store.integrity_check() == []
        assert store.check_search() is None
        check_telling(story, db)
    check_sending(story)
    assert all(agent.closed == 1 for agent in story.agents)


def check_order(rows, order):
    """In one session, messages are in the order in which they were accepted.

    A retry, an edit and a compression write messages again; only the first time counts. A steering
    message is part of the running turn, before messages that wait for the next one.
    """
    seen = dict.fromkeys(row.content[:4] for row in rows if row.role == "user")
    events = [f"e{int(number)}" for number in seen]
    assert set(events) <= set(order), "a message that was not accepted"
    places = [order[event] for event in events]
    assert places == sorted(places), list(seen)


def check_telling(story, db):
    """Each accepted message is in a transcript, or its sender was notified that it is not."""
    bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM outbox")]
    texts = [body["text"] for body in bodies]
    dropped = sum(int(found[1]) for text in texts if (found := CANCELLED.search(text)))
    dropped += texts.count(ENGLISH.busy)
    stored = {row[0] for row in db.execute("SELECT substr(content, 1, 4) FROM all_messages")}
    spoken = {f"e{n}": said for n, said in enumerate(story.said) if not said.command}
    lost = [
        event for event in story.receipts if event in spoken and event[1:].zfill(4) not in stored
    ]
    assert len(lost) <= dropped, f"no sender was told about {lost}"
    turns = Counter(turn for (turn,) in db.execute(REPLIES))
    assert all(times == 1 for times in turns.values()), "one turn, two replies"
    for (answer,) in db.execute(ANSWERS):
        assert answer in texts, f"{answer!r} was not sent"


def check_sending(story):
    """Each reply was sent, in the order of its lane; more than once only after a crash."""
    first = {}
    for row in story.adapter.sent:
        first.setdefault(row.outbox_id, row)
    lanes = {}
    for row in first.values():
        lanes.setdefault(row.lane, []).append(row.outbox_id)
    for ids in lanes.values():
        assert ids == sorted(ids)
    times = Counter(row.outbox_id for row in story.adapter.sent)
    for row in story.adapter.sent[::-1]:
        if times[row.outbox_id] > 1:
            assert story.starts > 1
            times[row.outbox_id] = 1


def simulate(path, script, behind=lambda store: store):
    story = Story(path, behind=behind)

    async def run():
        await Player(story).play(script)
        await calm(story)

    trio.run(run, clock=MockClock(autojump_threshold=0))
    check(story)
    return story


@pytest.fixture
def fresh():
    """Return paths of new files."""
    numbers = itertools.count()
    with quick_folder() as folder:
        yield lambda: folder / f"{next(numbers)}.db"


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
@given(script=st.lists(OPERATIONS, max_size=40))
def test_every_guarantee_holds_for_any_sequence_of_operations(fresh, script):
    simulate(fresh(), script)


# Mutants: stores that break one guarantee each, which the simulation must find.


class LosesInput(Through):
    """It does not store the message of the user."""

    async def commit_turn(self, turn):
        return await self.store.commit_turn(replace(turn, rows=turn.rows[1:]))


class LosesReplies(Through):
    """It does not store replies."""

    async def commit_turn(self, turn):
        return await self.store.commit_turn(replace(turn, outbox=()))


class CommitsTwice(Through):
    """It writes each turn twice, as if it had run again after its commit."""

    async def commit_turn(self, turn):
        done = await self.store.commit_turn(turn)
        if isinstance(done, Committed):
            await self.store.append_messages(done.head.session_id, turn.rows)
        return done


class AcceptsTwice(Through):
    """It accepts a repeated event as a new one."""

    async def accept(self, inbound, **options):
        times = self.seen[inbound.event_id]
        self.seen[inbound.event_id] += 1
        again = replace(inbound, event_id=f"{inbound.event_id}{'x' * times}")
        return await self.store.accept(again, **options)


class KeepsLeases(Through):
    """It does not release leases."""

    async def release_compression_lock(self, session_id, holder):
        await trio.lowlevel.checkpoint()


class Reorders(Through):
    """It delivers the second of two messages first."""

    def subscribe(self, *, on_accepted, on_outbox):
        kept = []

        def shuffled(accepted):
            kept.append(replace(accepted, waiting=0))
            if len(kept) == 2:
                on_accepted(kept.pop())
                on_accepted(kept.pop())

        return self.store.subscribe(on_accepted=shuffled, on_outbox=on_outbox)


class LeavesOpen(Through):
    """It leaves messages open that were answered without a turn."""

    async def answer(self, answer):
        await self.store.answer(replace(answer, inbox_ids=()))


MUTANTS = {
    "loses input": LosesInput,
    "loses replies": LosesReplies,
    "commits twice": CommitsTwice,
    "accepts twice": lambda store: AcceptsTwice(store, seen=Counter()),
    "keeps leases": KeepsLeases,
    "reorders": Reorders,
    "leaves open": LeavesOpen,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_simulation_finds(fresh, name):
    @settings(
        max_examples=300,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        database=None,
    )
    @given(script=st.lists(OPERATIONS, max_size=40))
    def attempt(script):
        simulate(fresh(), script, MUTANTS[name])

    with pytest.raises((AssertionError, trio.TooSlowError, BaseExceptionGroup)) as caught:
        attempt()
    found = list(leaves(caught.value))
    assert found
    assert all(isinstance(error, AssertionError | trio.TooSlowError) for error in found), found


def leaves(error):
    """Yield the exceptions in a group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error
