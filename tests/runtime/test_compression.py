"""Compression by the runtime: one child whoever wants it, nothing lost, nothing paid for twice.

The conversations here are ten exchanges of about fifty tokens in a window of a thousand, of which
five hundred may be used: the eleventh message is one too many. Other processes are real ones.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import subprocess
import sys
import textwrap
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec.structs import asdict, replace
from trio.testing import wait_all_tasks_blocked

from hermes.actors.compression.compressor import (
    Compressed,
    CompressionFailed,
    CompressionJob,
    SessionCompressor,
)
from hermes.actors.runtime import running
from hermes.config import CompressionConfig, Config
from hermes.context import current_session_id
from hermes.errors import ContextOverflow, StoreBusy
from hermes.events import (
    Notice,
    SessionMoved,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import (
    AgentSpec,
    Inbound,
    Message,
    Skipped,
    Source,
    ToolCall,
    TurnResult,
    Usage,
)
from hermes.protocols import Summary
from hermes.store import Clock, SessionStore, inline, open_store
from hermes.testing import CountingBuilder, MemoryAdapter, texts_of
from hermes.transcript.compaction import estimate_tokens, is_summary, summary_text
from tests.campaigns.test_races import ROOT, racing
from tests.runtime.conftest import Through

SMALL = CompressionConfig(window=1000, max_output=0, share=0.5, tail_share=0.2, protect_first=0)
FULL = 10
"""So many exchanges fit; before the next one the conversation is compressed."""
OVER = 500
"""Tokens in the window from which on a conversation is compressed."""
SUMMARY = "what was said before"
inline_only = pytest.mark.parametrize("workers", ["inline"], indirect=True)
threads_only = pytest.mark.parametrize("workers", ["threads"], indirect=True)


def asked(number):
    """A message of eighty characters, about twenty-four tokens."""
    return f"question {number:03} ".ljust(80, "x")


def numbers(texts):
    """Which of the messages are among these texts."""
    return [int(text[9:12]) for text in texts if text and text.startswith("question ")]


class Gate:
    """Holds who comes until it is opened."""

    def __init__(self):
        self.begun = trio.Event()
        self.go = trio.Event()

    async def __call__(self, *_):
        self.begun.set()
        await self.go.wait()

    async def reached(self):
        """Wait until somebody is held; not for ever, since a test must be able to fail."""
        with trio.fail_after(20):
            await self.begun.wait()


class Sums:
    """A compressor that does as a test says, and by itself answers shortly."""

    def __init__(self, then=None):
        self.then = then
        self.requests = []
        self.together = 0
        self.most_together = 0

    async def summarize(self, request, /):
        self.requests.append(request)
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        try:
            await trio.lowlevel.checkpoint()
            said = None if self.then is None else await self.then(request)
        finally:
            self.together -= 1
        return said if isinstance(said, Summary) else Summary(said or SUMMARY)

    def __len__(self):
        return len(self.requests)


class Recorder:
    """An agent that writes down what it is shown, and answers from a script or with an echo."""

    def __init__(self, *script):
        self.script = list(script)
        self.turn_ids = []
        self.asked = []
        self.shown = []
        self.sizes = []
        self.sessions = []
        self.closed = 0

    async def run(self, turn, /):
        await trio.lowlevel.checkpoint()
        self.turn_ids.append(turn.turn_id)
        self.asked.append(turn.text)
        self.shown.append(texts_of(turn.history))
        self.sizes.append(estimate_tokens([*turn.history, *turn.input]))
        self.sessions.append((turn.session_id, current_session_id()))
        step = self.script.pop(0) if self.script else None
        if callable(step):
            step = await step(turn)
        if isinstance(step, BaseException):
            raise step
        return step or TurnResult(text=f"echo: {turn.text}")

    async def aclose(self):
        await trio.lowlevel.checkpoint()
        self.closed += 1


def failing(error):
    async def then(_):
        raise error

    return then


async def never(_):
    await trio.sleep_forever()


async def at_length(request):
    """A summary that is longer than what it sums up."""
    return "and so on " * sum(len(message.content or "") for message in request.messages)


@pytest.fixture
def small(start):
    """Open a runtime with the small window."""

    def opened(**options):
        compression = replace(SMALL, **options.pop("compression", {}))
        options.setdefault("config", Config(compression=compression))
        options.setdefault("compressor", Sums())
        return start(**options)

    return opened


async def talk(runtime, count=FULL, *, key="k", first=0):
    """So many exchanges; the replies."""
    return [await runtime.ask(key, asked(n)) for n in range(first, first + count)]


async def collect(answers, verb, *args, **options):
    answers.append(await verb(*args, **options))


@asynccontextmanager
async def meanwhile(gate, verb, *args):
    """A block in the middle of the compression that the verb gives rise to; the verb's answer."""
    answers = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, answers, verb, *args)
        await gate.reached()
        yield answers
        gate.go.set()


async def heard(events, kind):
    """The next event of this kind."""
    with trio.fail_after(20):
        async for envelope in events:
            if isinstance(envelope.event, kind):
                return envelope.event
    raise AssertionError(f"there was no {kind.__name__}")


# What the file says


def sound(path):
    """What is wrong with the file: forks, orphans, leases, routes that lead nowhere."""
    with SessionStore(path) as store:
        return [
            *_wrong(store, "a fork", "SELECT parent_no, count(*) FROM sessions "
                    "WHERE kind = 'compression' GROUP BY parent_no HAVING count(*) > 1"),
            *_wrong(store, "an end without a child", "SELECT id FROM sessions p "
                    "WHERE end_reason = 'compression' AND NOT EXISTS (SELECT 1 FROM sessions c "
                    "WHERE c.parent_no = p.no AND c.kind = 'compression')"),
            *_wrong(store, "a child of a living parent", "SELECT c.id FROM sessions c "
                    "JOIN sessions p ON p.no = c.parent_no WHERE c.kind = 'compression' "
                    "AND p.end_reason IS NOT 'compression'"),
            *_wrong(store, "a route to a past", "SELECT r.session_key FROM routes r "
                    "JOIN sessions s ON s.id = r.session_id WHERE s.end_reason = 'compression'"),
            *_wrong(store, "a lease", "SELECT holder FROM leases WHERE holder IS NOT NULL"),
            *_wrong(store, "an open message", "SELECT id FROM inbox WHERE state <> 'done'"),
            *store.integrity_check(),
        ]  # fmt: skip


def _wrong(store, what, sql):
    return [f"{what}: {row}" for row in store.snapshot(lambda tx: tx.all(sql))]


def lineage(path, key="k"):
    """The sessions of the key's conversation, from its beginning to its tip."""
    with SessionStore(path) as store:
        return store.get_compression_lineage(store.get_route(key).session_id)


def rows_in(path, session_id):
    with SessionStore(path) as store:
        return store.get_messages(session_id)


def contents(path, session_id):
    return [row.content for row in rows_in(path, session_id)]


def told(path):
    """All that was said to users, in order: kinds and texts."""
    with SessionStore(path) as store:
        found = store.snapshot(lambda tx: tx.all("SELECT body FROM outbox ORDER BY id"))
    bodies = [json.loads(row[0]) for row in found]
    return [(body["kind"], body["text"]) for body in bodies]


def same(left, right):
    """Whether rows say the same, whatever session they are in."""
    return [_placeless(row) for row in left] == [_placeless(row) for row in right]


def _placeless(row):
    return {name: value for name, value in asdict(row).items() if name != "id"}


# Other processes


def elsewhere(path, world, code, **given):
    """Run code on a `SessionStore` of the same file, in another process, at the same time of day.

    Returns what the code has left in `answer`.
    """
    program = (
        "import json, sys\n"
        "from hermes.messages import *\n"
        "from hermes.store import Clock, SessionStore\n"
        "path, now, steady, given = json.loads(sys.argv[1])\n"
        "globals().update(given)\n"
        "answer = None\n"
        "clock = Clock(wall=lambda: now, steady=lambda: steady)\n"
        "with SessionStore(path, clock=clock) as store:\n"
        + textwrap.indent(textwrap.dedent(code).strip(), "    ")
        + "\nprint(json.dumps(answer))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps([str(path), world.now, world.steady, given])],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


KEEP_TAIL = """
rows = store.get_messages(session_id)[-3:]
tail = [Message(row.role, row.content, row.timestamp) for row in rows]
"""
ROTATE = """
tail = globals().get("tail", [])
transcript = store.load(session_id)
route = store.get_route(key) if key else None
rotated = store.rotate(Rotation(
    session_id=session_id,
    messages=[Message("user", "the summary of another"), *tail],
    rotation_id="elsewhere",
    rewrites=transcript.head.rewrites,
    upto=transcript.messages[-1].id,
    session_key=key,
    epoch=route and route.epoch,
))
answer = rotated.session_id
"""
HOLD = "answer = store.try_acquire_compression_lock(session_id, 'elsewhere', seconds)"
DROP_LEASES = "store.transact(lambda tx: tx.run('DROP TABLE leases'))"


# Two who want to compress one session


async def test_a_request_and_a_turn_over_the_threshold_at_once_rotate_once(small, path):
    gate = Gate()
    compressor = Sums(gate)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            await runtime.submit(Inbound("k", "over", asked(10)))
        last = await runtime.ask("k", asked(11))
    assert [type(outcome) for outcome in outcomes] == [Compressed]
    assert len(compressor) == 1
    assert sound(path) == []
    parent, child = lineage(path)
    assert last.session_id == child
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, child)) == [8, 9, 10, 11]


async def test_a_turn_over_the_threshold_and_a_request_at_once_leave_one_line(small, path):
    gate = Gate()
    compressor = Sums(gate)
    outcomes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.submit(Inbound("k", "over", asked(10)))
        await gate.reached()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, outcomes, runtime.compress, "k")
            await wait_all_tasks_blocked()
            gate.go.set()
    assert compressor.most_together == 1
    assert sound(path) == []
    line = lineage(path)
    assert len(line) == 1 + len(compressor)
    assert numbers(contents(path, line[0])) == list(range(10))
    assert numbers(contents(path, line[-1]))[-2:] == [9, 10]


async def test_two_requests_at_once_rotate_once_and_pay_for_one_summary(small, path):
    gate = Gate()
    compressor = Sums(gate)
    outcomes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, outcomes, runtime.compress, "k")
            nursery.start_soon(collect, outcomes, runtime.compress, "k")
            await gate.reached()
            await wait_all_tasks_blocked()
            gate.go.set()
        await runtime.ask("k", asked(10))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Compressed", "Skipped"]
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert sound(path) == []


async def test_requests_that_come_too_late_do_not_end_automatic_compression(small, path):
    """Who asks for what was just done has not shown that compression is useless."""
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(runtime.compress, "k")
        assert (await runtime.status("k")).compression_note is None
        await talk(runtime, 10, first=10)
    assert len(compressor) == 2
    assert len(lineage(path)) == 3


async def test_asking_twice_in_a_short_conversation_does_not_end_automatic_compression(small):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", asked(0))
        for _ in range(2):
            assert "nothing to sum up" in (await runtime.ask("k", "/compress")).text
        await talk(runtime, FULL, first=1)
        assert len(compressor) == 1


async def two_keys_on_one_session(runtime):
    """A conversation, and a background key that was led to the same session."""
    parent = (await talk(runtime))[-1].session_id
    await runtime.switch("k:background:1", parent)
    return parent


async def test_two_keys_that_compress_one_session_at_once_leave_one_child(small, path):
    gate = Gate()
    compressor = Sums(gate)
    outcomes = []
    async with small(compressor=compressor) as runtime:
        parent = await two_keys_on_one_session(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, outcomes, runtime.compress, "k")
            nursery.start_soon(collect, outcomes, runtime.compress, "k:background:1")
            await gate.reached()
            await wait_all_tasks_blocked()
            gate.go.set()
        replies = [await runtime.ask(key, asked(10)) for key in ("k", "k:background:1")]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Compressed", "Skipped"]
    first, child = lineage(path)
    assert first == parent
    assert [reply.session_id for reply in replies] == [child, child]
    assert numbers(contents(path, child)) == [8, 9, 10, 10]
    assert sound(path) == []


async def test_two_keys_that_compress_one_session_at_once_pay_for_one_summary(small):
    gate = Gate()
    compressor = Sums(gate)
    async with small(compressor=compressor) as runtime:
        await two_keys_on_one_session(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.compress, "k")
            nursery.start_soon(runtime.compress, "k:background:1")
            await gate.reached()
            await wait_all_tasks_blocked()
            gate.go.set()
    assert len(compressor) == 1


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_another_process_that_rotates_during_our_summary_wins(small, path, world, key):
    gate = Gate()
    compressor = Sums(gate)
    agent = Recorder()
    builder = CountingBuilder(lambda _: agent)
    async with small(compressor=compressor, agent=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            winner = elsewhere(path, world, ROTATE, session_id=parent, key=key)
        reply = await runtime.ask("k", asked(10))
    assert outcomes == [Skipped("already compressed", winner=winner)]
    assert reply.session_id == winner
    assert reply.build_reason is None
    assert agent.shown[-1] == [("user", "the summary of another")]
    assert agent.sessions[-1] == (winner, winner)
    assert lineage(path) == [parent, winner]
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, winner)) == [10]
    assert len(compressor) == 1
    assert len(builder) == 1
    assert sound(path) == []


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_a_turn_whose_session_was_rotated_elsewhere_is_answered_in_the_winners_child(
    small, path, world, key
):
    gate = Gate()
    agent = Recorder()
    builder = CountingBuilder(lambda _: agent)
    async with small(compressor=Sums(gate), agent=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.ask, "k", asked(10)) as replies:
            winner = elsewhere(path, world, ROTATE, session_id=parent, key=key)
        await runtime.ask("k", asked(11))
    assert [(reply.status, reply.session_id) for reply in replies] == [("complete", winner)]
    assert lineage(path) == [parent, winner]
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, winner)) == [10, 11]
    assert agent.shown[-1][0] == ("user", "the summary of another")
    assert len(agent.turn_ids[10:-1]) == 1
    assert len(builder) == 1
    assert sound(path) == []


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_no_summary_is_paid_for_a_session_that_was_compressed_elsewhere(
    small, path, world, key
):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        winner = elsewhere(path, world, ROTATE, session_id=parent, key=key)
        await runtime.compress("k")
    assert parent not in [request.session_id for request in compressor.requests]
    assert lineage(path) == [parent, winner]


@threads_only
async def test_our_rotations_and_those_of_another_process_never_fork(small, path):
    """Both at the same moment, again and again, with nothing to keep them apart."""
    rounds = 12
    outcomes = []
    with racing(path, ["other"]) as (other,):
        async with small(clock=Clock()) as runtime:
            for number in range(rounds):
                key = f"k{number}"
                parent = (await talk(runtime, 6, key=key))[-1].session_id
                await trio.to_thread.run_sync(lambda p=parent: other.ask("prepare", p))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect, outcomes, runtime.compress, key)
                    other.send("rotate")
                    answer = await trio.to_thread.run_sync(other.receive)
                outcome = outcomes[-1]
                assert answer.get("rotated") != isinstance(outcome, Compressed), (answer, outcome)
                reply = await runtime.ask(key, asked(99))
                assert reply.status == "complete"
    for number in range(rounds):
        parent, child = lineage(path, f"k{number}")
        assert numbers(contents(path, parent)) == list(range(6))
        assert numbers(contents(path, child))[-1] == 99
    assert sound(path) == []


# Leases


@threads_only
async def test_a_lease_held_elsewhere_stops_a_request_before_the_summary(small, path, world):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.history("k")
        assert elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        outcome = await runtime.compress("k")
        assert outcome == Skipped("another compression of it runs", holder="elsewhere")
        said = await runtime.ask("k", "/compress")
        assert said.text.startswith("Not compressed")
        assert "elsewhere" in said.text
        assert await runtime.history("k") == before
        world.pass_time(31)
        assert isinstance(await runtime.compress("k"), Compressed)
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert sound(path) == []


@threads_only
async def test_a_turn_is_answered_while_a_lease_is_held_elsewhere(small, path, world):
    compressor = Sums()
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        reply = await runtime.ask("k", asked(10))
        assert (reply.text, reply.session_id) == (f"echo: {asked(10)}", parent)
        assert len(agent.shown[-1]) == 20
        assert len(compressor) == 0
        world.pass_time(31)
        await runtime.ask("k", asked(11))
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert sound(path) == []


@threads_only
async def test_a_lease_that_is_held_elsewhere_stays_there(small, path, world):
    async with small() as runtime:
        parent = (await talk(runtime))[-1].session_id
        elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        await runtime.compress("k")
    with SessionStore(path, clock=world.clock) as store:
        assert store.get_compression_lock_holder(parent) == "elsewhere"


@threads_only
async def test_a_lease_lost_during_the_summary_cannot_rotate(small, path, world):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            assert not elsewhere(path, world, HOLD, session_id=parent, seconds=30)
            world.pass_time(31)
            assert elsewhere(path, world, HOLD, session_id=parent, seconds=30)
        assert (await runtime.ask("k", "hello")).session_id == parent
    assert outcomes == [Skipped("the lease was lost", holder="elsewhere")]
    assert lineage(path) == [parent]
    with SessionStore(path, clock=world.clock) as store:
        assert store.get_compression_lock_holder(parent) == "elsewhere"
        assert store.get_session(parent).end_reason is None


@inline_only
async def test_a_long_summary_keeps_its_lease(small, path, world, autojump_clock):
    """Three times as long as a lease lasts; others may not take it at any time."""
    taken = []

    async def slowly(request):
        for step in range(20):
            await trio.sleep(5)
            world.pass_time(5)
            if step % 7 == 6:
                code, given = HOLD, {"session_id": request.session_id, "seconds": 30}
                taken.append(elsewhere(path, world, code, **given))

    async with small(compressor=Sums(slowly)) as runtime:
        await talk(runtime)
        assert isinstance(await runtime.compress("k"), Compressed)
    assert taken == [False, False]
    assert sound(path) == []


@threads_only
async def test_without_a_lease_table_compression_goes_on(small, path, world):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        elsewhere(path, world, DROP_LEASES)
        reply = await runtime.ask("k", asked(10))
        assert reply.text == f"echo: {asked(10)}"
        shorter = await runtime.history("k")
        assert reply.session_id != parent
        assert len(shorter) == 7
        await talk(runtime, 3, first=11)
        assert len(compressor) == 1
    assert len(lineage(path)) == 2


@threads_only
async def test_a_lease_table_that_goes_during_the_summary_does_not_stop_it(small, path, world):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        await talk(runtime)
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            elsewhere(path, world, DROP_LEASES)
        await runtime.ask("k", asked(10))
    assert [type(outcome) for outcome in outcomes] == [Compressed]
    assert len(lineage(path)) == 2


class Without(Through):
    """A store that lacks some verbs."""

    def __init__(self, store, *missing):
        super().__init__(store, _missing=missing)

    def __getattr__(self, name):
        if name in self._missing:
            raise AttributeError(f"'Store' object has no attribute '{name}'")
        return super().__getattr__(name)


LEASE_VERBS = (
    "acquire_lease", "try_acquire_compression_lock", "refresh_compression_lock",
    "release_compression_lock", "get_compression_lock_holder",
)  # fmt: skip


@asynccontextmanager
async def over(path, world, workers, wrap, *, compression=SMALL, **options):
    """A runtime on a store that is seen through something."""
    kind = {"open_worker": inline()} if workers == "inline" else {}
    async with open_store(path, clock=world.clock, **kind) as store:
        options.setdefault("build", CountingBuilder(lambda _: Recorder()))
        async with running(
            wrap(store),
            describe=lambda key, _: AgentSpec(session_key=key),
            config=Config(compression=compression),
            wall=world.clock.wall,
            **options,
        ) as runtime:
            yield runtime


async def test_a_store_without_lease_verbs_is_compressed_all_the_same(path, world, workers):
    compressor = Sums()
    builder = CountingBuilder(lambda _: Recorder())
    wrap = lambda store: Without(store, *LEASE_VERBS)  # noqa: E731
    async with over(path, world, workers, wrap, compressor=compressor, build=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.history("k")
        reply = await runtime.ask("k", asked(10))
        assert reply.status == "complete"
        assert reply.session_id != parent
        assert len(compressor) == 1
        assert len(await runtime.history("k")) < len(before)
        await talk(runtime, 3, first=11)
    assert len(compressor) == 1
    assert len(builder) == 1
    assert len(lineage(path)) == 2
    assert sound(path) == []


@inline_only
@pytest.mark.parametrize(
    "missing",
    LEASE_VERBS,
)
async def test_a_store_without_one_lease_verb_is_compressed_all_the_same(
    path, world, workers, missing, autojump_clock
):
    """The summary takes longer than the lease, so that it has to be renewed."""

    async def slowly(_):
        await trio.sleep(100)

    compressor = Sums(slowly)
    wrap = lambda store: Without(store, missing)  # noqa: E731
    async with over(path, world, workers, wrap, compressor=compressor) as runtime:
        await talk(runtime)
        assert isinstance(await runtime.compress("k"), Compressed)
        await runtime.ask("k", asked(10))
    assert len(compressor) == 1
    assert len(lineage(path)) == 2


# What others do during the summary


@threads_only
async def test_what_another_process_appends_during_the_summary_is_carried_over(small, path, world):
    gate = Gate()
    agent = Recorder()
    async with small(compressor=Sums(gate), agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            code = """
            for number in (50, 51):
                store.append_message(session_id, "user", f"question {number:03}")
            """
            elsewhere(path, world, code, session_id=parent)
        await runtime.ask("k", asked(10))
    assert [outcome.rotated.carried for outcome in outcomes] == [2]
    child = lineage(path)[-1]
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9, 50, 51]
    assert numbers(contents(path, child)) == [8, 9, 50, 51, 10]
    assert numbers(contents(path, parent)) == [*range(10), 50, 51]
    assert sound(path) == []


REWRITES = {
    "rewind": "store.rewind(session_id, store.get_messages(session_id)[-2].id)",
    "edit": "store.edit_message(session_id, store.get_messages(session_id)[0].id, 'changed')",
    "replace": "store.replace_messages(session_id, [Message('user', 'question 070')] * 3)",
}


@threads_only
@pytest.mark.parametrize("how", REWRITES)
async def test_a_rewrite_during_the_summary_refuses_it(small, path, world, how):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            elsewhere(path, world, REWRITES[how], session_id=parent)
        now = rows_in(path, parent)
        assert outcomes == [Skipped("the transcript was rewritten meanwhile")]
        assert await runtime.history("k") == now
        assert (await runtime.ask("k", "hello")).session_id == parent
    assert lineage(path) == [parent]
    assert same(rows_in(path, parent)[: len(now)], now)
    assert sound(path) == []


MOVES = {
    "switch": "store.create_session('other'); store.switch('k', 'other')",
    "new session": "store.new_session('k')",
    "end": "store.end_session(session_id, 'closed')",
    "delete": "store.delete_session(session_id)",
}


@threads_only
@pytest.mark.parametrize("how", MOVES)
async def test_a_move_elsewhere_during_the_summary_refuses_it(small, path, world, how):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.compress, "k") as outcomes:
            elsewhere(path, world, MOVES[how], session_id=parent)
        assert [type(outcome) for outcome in outcomes] == [Skipped]
        reply = await runtime.ask("k", asked(10))
        assert reply.text == f"echo: {asked(10)}"
    assert lineage(path) == [reply.session_id]
    assert numbers(contents(path, reply.session_id)) == [10]
    assert reply.session_id != parent
    assert sound(path) == []


@threads_only
@pytest.mark.parametrize("how", MOVES)
async def test_a_turn_is_answered_where_its_key_was_led_during_the_summary(small, path, world, how):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with meanwhile(gate, runtime.ask, "k", asked(10)) as replies:
            elsewhere(path, world, MOVES[how], session_id=parent)
    (reply,) = replies
    assert reply.status == "complete"
    assert lineage(path) == [reply.session_id]
    assert numbers(contents(path, reply.session_id)) == [10]
    assert sound(path) == []


# Crashes


@pytest.mark.parametrize("moment", ["during the summary", "after the summary"])
async def test_a_crash_between_summary_and_rotation_changes_nothing(small, path, moment):
    scope = trio.CancelScope()

    async def crash(_):
        scope.cancel()
        if moment == "during the summary":
            await trio.sleep_forever()

    with scope:
        async with small(compressor=Sums(crash)) as runtime:
            parent = (await talk(runtime))[-1].session_id
            before = await runtime.history("k")
            await runtime.ask("k", asked(10))
    assert lineage(path) == [parent]
    assert rows_in(path, parent) == before
    with SessionStore(path) as store:
        assert store.get_session(parent).end_reason is None
        leases = "SELECT holder FROM leases WHERE holder IS NOT NULL"
        assert store.snapshot(lambda tx: tx.all(leases)) == []
    compressor, agent = Sums(), Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        with runtime.events("k") as events:
            await heard(events, TurnEnded)
        assert len(compressor) == 1
    assert agent.turn_ids == [11]
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, 10]
    assert sound(path) == []


@inline_only
async def test_what_a_crash_left_is_answered_before_what_comes_after_it(small, path):
    scope = trio.CancelScope()

    async def crash(_):
        scope.cancel()
        await trio.sleep_forever()

    with scope:
        async with small(compressor=Sums(crash)) as runtime:
            await talk(runtime)
            await runtime.ask("k", asked(10))
    async with small() as runtime:
        await runtime.ask("k", asked(11))
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, 10, 11]


async def test_a_crash_between_rotation_and_commit_runs_the_turn_again_in_the_child(small, path):
    scope = trio.CancelScope()

    async def crash(_):
        scope.cancel()
        await trio.sleep_forever()

    agent = Recorder()
    with scope:
        async with small(agent=lambda _: agent) as runtime:
            parent = (await talk(runtime))[-1].session_id
            agent.script.append(crash)
            await runtime.ask("k", asked(10))
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9]
    compressor, again = Sums(), Recorder()
    async with small(compressor=compressor, agent=lambda _: again) as runtime:
        with runtime.events("k") as events:
            await heard(events, TurnEnded)
    assert again.turn_ids == [agent.turn_ids[-1]]
    assert again.shown == [agent.shown[-1]]
    first, child = lineage(path)
    assert first == parent
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, child)) == [8, 9, 10]
    assert len(compressor) == 0
    assert sound(path) == []


CRASHING = """
import sys, trio
from hermes import open_runtime
from hermes.config import CompressionConfig, Config
from hermes.messages import Inbound
from tests.runtime.test_compression import SMALL, asked, talk

class Dying:
    async def summarize(self, request, /):
        print("summing up", flush=True)
        await trio.sleep_forever()

async def reply(turn):
    return f"echo: {turn.text}"

async def main():
    config = Config(compression=SMALL)
    async with open_runtime(sys.argv[1], agent=reply, compressor=Dying(), config=config) as runtime:
        await talk(runtime)
        await runtime.submit(Inbound("k", "over", asked(10)))
        await trio.sleep_forever()

trio.run(main)
"""


def kill_while_it_sums_up(path):
    """Talk in another process until it compresses, and kill it."""
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "summing up\n"
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


@threads_only
async def test_a_process_killed_during_the_summary_leaves_no_lease_that_anybody_waits_for(
    small, path
):
    kill_while_it_sums_up(path)
    with SessionStore(path) as store:
        parent = store.get_route("k").session_id
        assert store.get_compression_lock_holder(parent) is not None
    compressor, agent = Sums(), Recorder()
    async with small(compressor=compressor, agent=lambda _: agent, clock=Clock()) as runtime:
        await runtime.ask("k", asked(11))
        assert numbers(agent.asked[0].split("\n\n"))[0] == 10
        assert len(compressor) == 1
    line = lineage(path)
    assert line[0] == parent
    assert numbers(contents(path, parent)) == [*range(10)]
    assert numbers(contents(path, line[1]))[-2:] == [10, 11]
    assert sound(path) == []


def job(runtime_key, session_id, epoch):
    return CompressionJob(
        session_key=runtime_key,
        session_id=session_id,
        epoch=epoch,
        rotation_id="the same",
        occasion="asked",
    )


async def test_a_retry_with_the_same_rotation_id_is_a_success(path, world, workers):
    kind = {"open_worker": inline()} if workers == "inline" else {}
    async with open_store(path, clock=world.clock, **kind) as store:
        await store.create_session("p", session_key="k")
        await store.append_messages("p", [Message("user", asked(n)) for n in range(20)])
        route = await store.switch("k", "p")
        compression = SessionCompressor(store, Sums(), SMALL, world.clock.wall)
        first = await compression.run(job("k", "p", route.epoch))
        again = await compression.run(job("k", "p", route.epoch))
    assert isinstance(first, Compressed)
    assert isinstance(again, Compressed)
    assert again.rotated.session_id == first.rotated.session_id
    assert (first.rotated.repeated, again.rotated.repeated) == (False, True)
    assert lineage(path) == ["p", first.rotated.session_id]
    assert sound(path) == []


class Stuttering(Through):
    """A store whose answers get lost: each rotation is asked for a second time."""

    async def rotate(self, rotation):
        await self.store.append_message(rotation.session_id, "user", "question 060")
        await self.store.rotate(rotation)
        return await self.store.rotate(rotation)


async def test_a_rotation_that_had_to_be_asked_for_twice_shows_all_rows(path, world, workers):
    """What came during the summary was carried over by the first try."""
    agent = Recorder()
    build = CountingBuilder(lambda _: agent)
    async with over(path, world, workers, Stuttering, compressor=Sums(), build=build) as runtime:
        await talk(runtime)
        assert isinstance(await runtime.compress("k"), Compressed)
        await runtime.ask("k", asked(10))
    child = lineage(path)[-1]
    assert numbers(contents(path, child)) == [8, 9, 60, 10]
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9, 60]


class Busy(Through):
    """A store that another process keeps busy when a rotation is written, some times."""

    def __init__(self, store, times):
        super().__init__(store)
        self.__dict__["_times"] = itertools.chain(range(times), itertools.repeat(None))

    async def rotate(self, rotation):
        if next(self._times) is not None:
            raise StoreBusy("another process holds the write lock")
        return await self.store.rotate(rotation)


@pytest.mark.parametrize("trigger", ["before", "after"])
async def test_a_rotation_that_finds_the_store_busy_costs_neither_turn_nor_agent(
    path, world, workers, trigger
):
    agent = Recorder()
    build = CountingBuilder(lambda _: agent)
    wrap = lambda store: Busy(store, 1)  # noqa: E731
    async with over(path, world, workers, wrap, compressor=Sums(), build=build) as runtime:
        count = FULL if trigger == "before" else 5
        await talk(runtime, count)
        if trigger == "after":
            agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        reply = await runtime.ask("k", asked(count))
        await runtime.ask("k", asked(count + 1))
    assert reply.status == "complete"
    assert len(build) == 1
    assert agent.turn_ids == sorted(set(agent.turn_ids))
    assert sound(path) == []


class Unbilled(Through):
    """A store that is busy when the cost of a summary is written down."""

    async def book(self, session_id, calls):
        raise StoreBusy("another process holds the write lock")


async def test_a_rotation_whose_cost_cannot_be_written_down_has_happened(path, world, workers):
    async def paid(_):
        return Summary(SUMMARY, [Usage("summary", input_tokens=400)])

    agent = Recorder()
    build = CountingBuilder(lambda _: agent)
    async with over(path, world, workers, Unbilled, compressor=Sums(paid), build=build) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", asked(10))
        assert len(agent.turn_ids) == 11
        assert isinstance(await runtime.compress("k"), Compressed)
    assert reply.session_id == lineage(path)[1]
    assert sound(path) == []


# Triggers


async def test_a_conversation_is_compressed_before_the_turn_that_would_be_too_long(small, path):
    compressor = Sums()
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        assert len(compressor) == 0
        reply = await runtime.ask("k", asked(10))
        assert len(compressor) == 1
    assert max(agent.sizes) < OVER
    first, child = lineage(path)
    assert (first, child) == (parent, reply.session_id)
    assert agent.sessions[-1] == (child, child)
    assert len(agent.shown[-1]) == 5
    assert SUMMARY in agent.shown[-1][0][1]
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9]
    assert sound(path) == []


async def test_a_message_that_is_long_itself_makes_room_for_itself(small, path):
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        reply = await runtime.ask("k", "y" * 1200)
    assert reply.status == "complete"
    assert len(lineage(path)) == 2
    assert agent.sizes[-1] < OVER


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=OVER),
        Usage(input_tokens=1, cache_read_tokens=OVER - 1),
        Usage(input_tokens=1, cache_write_tokens=OVER - 1),
    ],
)
async def test_a_conversation_is_compressed_after_a_turn_that_the_provider_counted(
    small, path, usage
):
    compressor = Sums()
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=1), usage]))
        with runtime.events("k") as events:
            reply = await runtime.ask("k", asked(5))
            event = await heard(events, SessionMoved)
        assert len(compressor) == 1
        assert event == SessionMoved(reply.session_id, lineage(path)[-1], "compression")
        assert (await runtime.status("k")).context_tokens < OVER
        last = await runtime.ask("k", asked(6))
    assert len(compressor) == 1
    assert last.session_id == lineage(path)[-1]
    assert numbers(contents(path, last.session_id)) == [4, 5, 6]
    assert sound(path) == []


async def test_a_turn_that_the_provider_counted_as_short_is_left_alone(small, path):
    agent = Recorder()
    compressor = Sums()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(
            TurnResult(text="ok", usage=[Usage(input_tokens=9999), Usage(input_tokens=OVER - 50)])
        )
        await talk(runtime, 2, first=5)
    assert len(compressor) == 0
    assert len(lineage(path)) == 1


async def test_what_always_counts_as_too_long_is_not_compressed_at_every_turn(small):
    """Tools that fill the window by themselves: no summary helps, and none is paid for in vain."""
    compressor = Sums()

    async def counted(turn):
        return TurnResult(text="y" * 80, usage=[Usage(input_tokens=OVER + 100)])

    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script += [counted] * 20
        await talk(runtime, 20, first=5)
    assert len(compressor) < 10


OVERFLOWS = {
    "raised": ContextOverflow("maximum context length is 1000 tokens"),
    "told": TurnResult(failed=True, error="400: this model's maximum context length is 1000"),
    "coded": TurnResult(failed=True, error="context_length_exceeded"),
}


@pytest.mark.parametrize("how", OVERFLOWS)
async def test_an_overflow_compresses_and_the_turn_is_tried_once_more(small, path, how):
    async def overflow(turn):
        turn.emit(TextDelta("half a word"))
        turn.emit(ToolStarted(ToolCall("c1", "search")))
        return OVERFLOWS[how]

    compressor = Sums()
    agent = Recorder()
    builder = CountingBuilder(lambda _: agent)
    async with small(compressor=compressor, agent=builder) as runtime:
        parent = (await talk(runtime, 6))[-1].session_id
        agent.script.append(overflow)
        reply = await runtime.ask("k", asked(6))
    assert (reply.status, reply.text) == ("complete", f"echo: {asked(6)}")
    assert len(agent.turn_ids) == 8
    assert agent.turn_ids[6] == agent.turn_ids[7] == reply.turn_id
    assert agent.asked[6] == agent.asked[7] == asked(6)
    assert agent.sizes[7] < agent.sizes[6]
    assert len(agent.shown[7]) == 5
    assert SUMMARY in agent.shown[7][0][1]
    assert len(compressor) == 1
    first, child = lineage(path)
    assert (first, child) == (parent, reply.session_id)
    assert agent.sessions[6:] == [(parent, parent), (child, child)]
    assert numbers(contents(path, parent)) == list(range(6))
    assert numbers(contents(path, child)) == [4, 5, 6]
    assert contents(path, child)[-2:] == [asked(6), f"echo: {asked(6)}"]
    assert len(builder) == 1
    assert [kind for kind, _ in told(path)] == ["reply"] * 7
    assert sound(path) == []


async def test_an_overflow_error_is_one_whatever_it_says(small):
    """Who raises `ContextOverflow` knows: the text need not be read for other reasons."""
    compressor = Sums()
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script.append(ContextOverflow("1200 tokens, but the quota of a request is 1000"))
        reply = await runtime.ask("k", asked(6))
    assert (reply.status, len(compressor)) == ("complete", 1)


@pytest.mark.parametrize("how", OVERFLOWS)
async def test_a_second_overflow_is_told_and_not_tried_again(small, path, how):
    """Although a second compression would make it shorter still."""
    compressor = Sums()
    agent = Recorder()
    options = {"compressor": compressor, "compression": {"protect_first": 2}}
    async with small(**options, agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script += [OVERFLOWS[how]] * 5
        reply = await runtime.ask("k", asked(6))
        assert reply.status == "failed"
        assert "context window" in reply.text
        assert "/compact" in reply.text
        assert len(agent.turn_ids) == 8
        assert len(compressor) == 1
        agent.script.clear()
        assert (await runtime.ask("k", "again")).status == "complete"
    assert numbers(contents(path, lineage(path)[-1])) == [0, 4, 5, 6]
    assert told(path)[-2][1] == reply.text
    assert sound(path) == []


async def test_an_overflow_of_the_first_message_is_told(small, path):
    compressor = Sums()
    agent = Recorder(*[ContextOverflow("too long")] * 5)
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "z" * 5000)
    assert "context window" in reply.text
    assert len(agent.turn_ids) == 1
    assert len(compressor) == 0
    assert sound(path) == []


async def test_an_overflow_whose_summary_fails_is_told(small, path):
    compressor = Sums(failing(RuntimeError("no model")))
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script += [ContextOverflow("too long")] * 5
        reply = await runtime.ask("k", asked(6))
    assert "context window" in reply.text
    assert len(agent.turn_ids) == 7
    assert len(lineage(path)) == 1
    assert sound(path) == []


@pytest.mark.parametrize("error", ["429: rate limit, too many tokens per minute", "401: no key"])
async def test_other_errors_are_no_reason_to_compress(small, error):
    compressor = Sums()
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script.append(TurnResult(failed=True, error=error))
        reply = await runtime.ask("k", asked(6))
    assert reply.status == "failed"
    assert "context window" not in reply.text
    assert (len(compressor), len(agent.turn_ids)) == (0, 7)


async def test_the_command_compresses_and_says_by_how_much(small, path):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", "/compress")
        assert reply.status == "command"
        assert "Compressed" in reply.text
        assert reply.session_id == lineage(path)[-1]
        status = await runtime.status("k")
        assert status.context_tokens < OVER / 2
        assert status.session_id == reply.session_id
    assert compressor.requests[0].focus is None
    assert len(lineage(path)) == 2
    assert told(path)[-1] == ("command", reply.text)
    assert sound(path) == []


@pytest.mark.parametrize("command", ["/compact the tests", "/COMPRESS  the tests"])
async def test_a_focus_is_handed_to_the_compressor(small, command):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.ask("k", command)
    assert [request.focus for request in compressor.requests] == ["the tests"]


@pytest.mark.parametrize(
    ("argument", "kept"),
    [("here 2", 2), ("here", 2), ("up to here 4", 4), ("--keep 1", 1), ("--keep=3", 3),
     ("-k 5", 5), ("here 0", 1)],
)  # fmt: skip
async def test_the_last_exchanges_stay_word_for_word(small, path, argument, kept):
    compressor = Sums()
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime)
        before = await runtime.history("k")
        assert "Compressed" in (await runtime.ask("k", f"/compress {argument}")).text
        first, *after = await runtime.history("k")
        assert is_summary(first)
        assert same(after, before[-2 * kept :])
        await runtime.ask("k", asked(10))
    assert numbers(text for _, text in agent.shown[-1]) == list(range(10 - kept, 10))
    assert [len(request.messages) for request in compressor.requests] == [20 - 2 * kept]
    assert compressor.requests[0].focus is None


async def test_more_exchanges_than_there_are_leave_nothing_to_sum_up(small, path):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await talk(runtime, 3)
        assert "nothing to sum up" in (await runtime.ask("k", "/compress here 50")).text
    assert (len(compressor), len(lineage(path))) == (0, 1)


async def test_a_request_for_an_unknown_conversation_changes_nothing(small, path):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", "/whoami")
        assert isinstance(await runtime.compress("k"), Skipped)
        assert "Not compressed" in (await runtime.ask("k", "/compress")).text
        assert await runtime.history("k") == []
    assert len(compressor) == 0
    assert sound(path) == []


# Input during a compression


@pytest.mark.parametrize(
    ("busy", "statuses", "stored"),
    [
        ("queue", ["complete", "complete"], [10, 11]),
        ("interrupt", ["interrupted", "complete"], [10, 11]),
        ("steer", ["complete", "complete"], [10, 11]),
        ("reject", ["complete", "refused"], [10]),
    ],
)
async def test_new_input_does_not_cancel_a_compression(small, path, busy, statuses, stored):
    gate = Gate()
    compressor = Sums(gate)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            async with meanwhile(gate, runtime.ask, "k", asked(10)) as first:
                second = []
                ask = lambda: runtime.ask("k", asked(11), busy=busy)  # noqa: E731
                nursery.start_soon(collect, second, ask)
                await wait_all_tasks_blocked()
    assert [reply.status for reply in first + second] == statuses
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, *stored]
    assert sound(path) == []


async def test_input_during_a_requested_compression_is_answered_in_the_child(small, path):
    gate = Gate()
    compressor = Sums(gate)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            async with meanwhile(gate, runtime.ask, "k", "/compress") as commands:
                replies = []
                ask = lambda: runtime.ask("k", asked(10), busy="interrupt")  # noqa: E731
                nursery.start_soon(collect, replies, ask)
                await wait_all_tasks_blocked()
                assert not await runtime.interrupt("k")
    (command,), (reply,) = commands, replies
    assert "Compressed" in command.text
    assert (reply.status, reply.session_id) == ("complete", lineage(path)[-1])
    assert len(compressor) == 1
    assert sound(path) == []


async def test_an_interrupt_during_a_compression_stops_the_turn_and_not_the_compression(
    small, path
):
    gate = Gate()
    compressor = Sums(gate)
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime)
        async with meanwhile(gate, runtime.ask, "k", asked(10)) as replies:
            assert await runtime.interrupt("k")
            await wait_all_tasks_blocked()
            assert replies == []
        assert [reply.status for reply in replies] == ["interrupted"]
        assert len(agent.turn_ids) == 10
        assert (await runtime.ask("k", asked(11))).status == "complete"
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, 10, 11]
    assert sound(path) == []


async def test_who_is_interrupted_before_the_agent_began_is_told(small):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        await talk(runtime)
        async with meanwhile(gate, runtime.ask, "k", asked(10)) as replies:
            await runtime.interrupt("k")
    assert "send it again" in replies[0].text


async def test_an_interrupt_during_the_compression_of_an_overflow_stops_the_second_try(small, path):
    gate = Gate()
    agent = Recorder()
    async with small(compressor=Sums(gate), agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script.append(ContextOverflow("too long"))
        async with meanwhile(gate, runtime.ask, "k", asked(6)) as replies:
            assert await runtime.interrupt("k")
    assert [reply.status for reply in replies] == ["interrupted"]
    assert len(agent.turn_ids) == 7
    assert numbers(contents(path, lineage(path)[-1])) == [4, 5, 6]
    assert sound(path) == []


async def test_a_new_session_during_a_compression_waits_for_it(small, path):
    gate = Gate()
    async with small(compressor=Sums(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with trio.open_nursery() as nursery:
            async with meanwhile(gate, runtime.ask, "k", asked(10)) as first:
                second = []
                nursery.start_soon(collect, second, runtime.ask, "k", "/new")
                await wait_all_tasks_blocked()
                assert first + second == []
        fresh = await runtime.ask("k", "hello")
    assert [reply.status for reply in first + second] == ["interrupted", "command"]
    assert lineage(path) == [fresh.session_id]
    assert fresh.session_id != parent
    with SessionStore(path) as store:
        line = store.get_compression_lineage(parent)
        assert len(line) == 2
        assert store.get_session(line[-1]).end_reason == "session_reset"
    assert sound(path) == []


@inline_only
async def test_an_agent_that_compresses_its_own_conversation_is_refused(
    small, path, autojump_clock
):
    """It would wait for the end of its own turn; a tool might do so with the best intentions."""

    async def compress(_):
        await runtime.compress("k")

    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(compress)
        begin = trio.current_time()
        reply = await runtime.ask("k", asked(5))
        assert trio.current_time() - begin < 1
    assert reply.status == "failed"
    assert len(lineage(path)) == 1
    assert sound(path) == []


@inline_only
async def test_an_actor_is_not_passivated_while_it_compresses(small, path, autojump_clock):
    """Else a second actor of the same key would run turns beside it."""

    async def slowly(_):
        await trio.sleep(100)

    compressor = Sums(slowly)
    outcomes = []
    config = Config(compression=SMALL, idle_timeout=20.0)
    async with small(compressor=compressor, config=config) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, outcomes, runtime.compress, "k")
            await trio.sleep(50)
            assert runtime.statistics().actors == 1
            await runtime.ask("k", asked(10))
            assert compressor.together == 0
    assert [type(outcome) for outcome in outcomes] == [Compressed]
    assert sound(path) == []


@inline_only
async def test_leaving_the_runtime_waits_for_a_compression(small, path, autojump_clock):
    async def slowly(_):
        await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        async with small(compressor=Sums(slowly)) as runtime:
            await talk(runtime)
            outcomes = []
            nursery.start_soon(collect, outcomes, runtime.compress, "k")
            await trio.sleep(1)
    assert [type(outcome) for outcome in outcomes] == [Compressed]
    assert sound(path) == []


# Failures


async def test_a_summary_that_fails_changes_nothing_and_tells_the_user(small, path):
    compressor = Sums(failing(RuntimeError("the model is out")))
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reply = await runtime.ask("k", asked(10))
        assert (reply.text, reply.session_id) == (f"echo: {asked(10)}", parent)
        assert len(agent.shown[-1]) == 20
    (kind, notice), answer = told(path)[-2:]
    assert kind == "notice"
    assert "the model is out" in notice
    assert "/compress" in notice
    assert answer == ("reply", reply.text)
    assert lineage(path) == [parent]
    assert numbers(contents(path, parent)) == list(range(11))
    assert sound(path) == []


@inline_only
async def test_a_summary_that_hangs_is_given_up(small, path, autojump_clock):
    compressor = Sums(never)
    async with small(compressor=compressor, compression={"summary_timeout": 45.0}) as runtime:
        parent = (await talk(runtime))[-1].session_id
        begin = trio.current_time()
        with trio.fail_after(1000):
            reply = await runtime.ask("k", asked(10))
        assert trio.current_time() - begin == pytest.approx(45, abs=1)
        assert reply.session_id == parent
    assert "too long" in told(path)[-2][1]
    assert lineage(path) == [parent]
    assert sound(path) == []


async def test_a_request_whose_summary_fails_says_so(small, path):
    async with small(compressor=Sums(failing(ValueError("no")))) as runtime:
        await talk(runtime)
        before = await runtime.history("k")
        outcome = await runtime.compress("k")
        assert isinstance(outcome, CompressionFailed)
        assert "ValueError: no" in outcome.text
        assert (await runtime.ask("k", "/compress")).text == outcome.text
        assert await runtime.history("k") == before
    assert sound(path) == []


async def test_a_summary_that_fails_after_a_turn_tells_the_user(small, path):
    """Also those who hear by an adapter and not by events."""
    compressor = Sums(failing(RuntimeError("the model is out")))
    agent = Recorder()
    adapter = MemoryAdapter()
    source = Source("memory", chat_id="c")
    async with small(compressor=compressor, agent=lambda _: agent, adapters=[adapter]) as runtime:
        for number in range(5):
            await runtime.ask("k", asked(number), source=source)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        await runtime.ask("k", asked(5), source=source)
        await runtime.ask("k", asked(6), source=source)
    assert len(compressor) == 1
    assert [text for text in adapter.texts if "the model is out" in text]


async def test_listeners_hear_of_a_summary_that_failed_after_a_turn(small):
    compressor = Sums(failing(RuntimeError("the model is out")))
    agent = Recorder()
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        with runtime.events("k") as events:
            await runtime.ask("k", asked(5))
            event = await heard(events, Notice)
    assert "the model is out" in event.text


@inline_only
@pytest.mark.parametrize(
    "answer",
    [
        "a plain text",
        None,
        Summary(None),
        Summary("   "),
    ],
)
async def test_a_compressor_that_answers_nonsense_does_no_harm(small, path, answer, autojump_clock):
    class Nonsense:
        async def summarize(self, request, /):
            await trio.lowlevel.checkpoint()
            return answer

    builder = CountingBuilder(lambda _: Recorder())
    async with small(compressor=Nonsense(), agent=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        reply = await runtime.ask("k", asked(10))
    assert (reply.status, reply.session_id) == ("complete", parent)
    assert len(builder) == 1
    assert lineage(path) == [parent]
    assert sound(path) == []


async def test_a_compressor_that_wants_to_exit_does_not_end_the_runtime(small):
    """As with an agent: it is foreign code, and its failure is its own."""
    async with small(compressor=Sums(failing(SystemExit(1)))) as runtime:
        await talk(runtime)
        assert (await runtime.ask("k", asked(10))).status == "complete"


@inline_only
async def test_a_compressor_that_waits_for_its_own_conversation_is_given_up(
    small, path, autojump_clock
):
    compressor = Sums(lambda _: runtime.ask("k", asked(20)))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        assert (await runtime.ask("k", asked(10))).status == "complete"
        await runtime.ask("k", asked(11))
    assert len(compressor) == 1
    assert numbers(contents(path, lineage(path)[-1])) == [*range(11), 20, 11]
    assert sound(path) == []


async def test_a_failure_is_remembered_by_the_next_process(small, path, world):
    compressor = Sums(failing(RuntimeError("no")))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.ask("k", asked(10))
        await runtime.ask("k", asked(11))
        assert len(compressor) == 1
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", asked(12))
        assert len(compressor) == 1
        assert "RuntimeError: no" in (await runtime.ask("k", "/status")).text
        world.pass_time(59)
        await runtime.ask("k", asked(13))
        assert len(compressor) == 1
        world.pass_time(2)
        await runtime.ask("k", asked(14))
        assert len(compressor) == 2
        world.pass_time(299)  # the second failure counts longer
        await runtime.ask("k", asked(15))
        assert len(compressor) == 2
    world.pass_time(2)
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", asked(16))
        assert len(compressor) == 3
    assert [kind for kind, _ in told(path)].count("notice") == 3
    assert len(lineage(path)) == 1
    assert numbers(contents(path, lineage(path)[0])) == list(range(17))
    assert sound(path) == []


async def test_a_command_does_not_wait_for_the_end_of_a_cool_down(small, path):
    compressor = Sums(failing(RuntimeError("no")))
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.ask("k", asked(10))
        compressor.then = None
        assert "Compressed" in (await runtime.ask("k", "/compress")).text
        assert (await runtime.status("k")).compression_note is None
        await talk(runtime, 8, first=11)
    assert len(compressor) == 3
    assert len(lineage(path)) == 3
    assert sound(path) == []


async def test_a_summary_that_does_not_shrink_is_refused(small, path):
    compressor = Sums(at_length)
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.history("k")
        outcome = await runtime.compress("k")
        assert isinstance(outcome, Skipped)
        assert "smaller" in outcome.reason
        assert await runtime.history("k") == before
    assert lineage(path) == [parent]
    assert sound(path) == []


async def test_a_summary_that_shrinks_by_too_little_is_refused(small, path):
    async def nearly(_):
        return "n" * 4 * 290

    async with small(compressor=Sums(nearly)) as runtime:
        await talk(runtime)
        outcome = await runtime.compress("k")
        assert isinstance(outcome, Skipped), outcome
    assert len(lineage(path)) == 1


async def test_two_useless_passes_open_the_breaker_until_a_command_succeeds(small, path):
    compressor = Sums(at_length)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await talk(runtime, 4, first=10)
        assert len(compressor) == 2
        assert (await runtime.status("k")).compression_note is not None
    async with small(compressor=compressor) as runtime:
        await talk(runtime, 2, first=14)
        assert len(compressor) == 2
        assert "did not make it smaller" in (await runtime.ask("k", "/status")).text
        compressor.then = None
        await runtime.ask("k", asked(16))
        assert len(compressor) == 2
        assert "Compressed" in (await runtime.ask("k", "/compress")).text
        assert (await runtime.status("k")).compression_note is None
        assert "smaller" not in (await runtime.ask("k", "/status")).text
        assert len(compressor) == 3
        await talk(runtime, 9, first=17)
        assert len(compressor) == 4
    assert len(lineage(path)) == 3
    assert sound(path) == []


async def test_a_long_first_message_does_not_end_automatic_compression(small, path):
    """It cannot be summed up while it is the last message, and can be two messages later."""
    compressor = Sums()
    agent = Recorder(TurnResult(text="I see"))
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        await runtime.ask("k", "z" * 4 * OVER)
        await talk(runtime, 4)
        assert len(compressor) == 1
        assert (await runtime.status("k")).context_tokens < OVER
    assert len(lineage(path)) == 2


async def test_compressions_before_a_restart_are_not_taken_for_useless(small, path):
    """Each is made after a turn, and the conversation goes on in another process."""
    compressor = Sums()

    async def short(turn):
        return TurnResult(text="y" * 80, usage=[Usage(input_tokens=100)])

    for number in range(4):
        agent = Recorder(*[short] * 5)
        agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        async with small(compressor=compressor, agent=lambda _, agent=agent: agent) as runtime:
            await talk(runtime, 6, first=6 * number)
            assert (await runtime.status("k")).compression_note is None
    assert len(compressor) == 4
    assert len(lineage(path)) == 5


async def test_compressions_of_two_conversations_in_turn_are_not_taken_for_useless(small, path):
    """Each is made at the end of a visit, and the next visit is to the other conversation."""
    compressor = Sums()

    async def short(turn):
        return TurnResult(text="y" * 80, usage=[Usage(input_tokens=100)])

    agent = Recorder()
    visited = []
    async with small(compressor=compressor, agent=lambda _: agent) as runtime:
        for number in range(8):
            if number >= 2:
                await runtime.switch("k", visited[number % 2])
            else:
                await runtime.new_session("k")
            agent.script += [short] * 5
            agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
            visited.append((await talk(runtime, 6, first=6 * number))[0].session_id)
            assert (await runtime.status("k")).compression_note is None
    assert len(compressor) == 8
    assert len(lineage(path)) == 5


async def test_compression_can_be_switched_off_and_asked_for(small, path):
    compressor = Sums()
    agent = Recorder()
    async with small(
        compressor=compressor, compression={"enabled": False}, agent=lambda _: agent
    ) as runtime:
        await talk(runtime, 12)
        agent.script.append(ContextOverflow("too long"))
        assert "context window" in (await runtime.ask("k", asked(12))).text
        assert len(compressor) == 0
        assert isinstance(await runtime.compress("k"), Compressed)
    assert len(lineage(path)) == 2


async def test_without_a_compressor_the_conversation_goes_on(small, path):
    async with small(compressor=None) as runtime:
        replies = await talk(runtime, 12)
        assert isinstance(await runtime.compress("k"), Skipped)
        assert "no compressor" in (await runtime.ask("k", "/compress")).text
    assert {reply.status for reply in replies} == {"complete"}
    assert len(lineage(path)) == 1


# Taking an answer back


async def test_a_retry_of_a_conversation_that_has_become_too_long_answers_it_again(small, path):
    """The first answer failed; meanwhile the window is smaller, so that room must be made."""
    agent = Recorder()
    async with small(agent=lambda _: agent, compressor=None) as runtime:
        await talk(runtime, 11)
        agent.script.append(TurnResult(failed=True, error="503: overloaded"))
        await runtime.ask("k", asked(11))
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "/retry")
    assert (reply.status, reply.text) == ("complete", f"echo: {asked(11)}")
    assert numbers(text for _, text in agent.shown[-1])[-1] == 10
    assert agent.sizes[-1] < OVER
    tip = lineage(path)[-1]
    assert numbers(contents(path, tip)).count(11) == 1
    assert contents(path, tip)[-2:] == [asked(11), f"echo: {asked(11)}"]
    assert sound(path) == []


async def test_a_retry_that_overflows_is_tried_once_more_and_taken_down_once(small, path):
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        await talk(runtime, 7)
        agent.script.append(ContextOverflow("too long"))
        reply = await runtime.ask("k", "/retry")
    assert (reply.status, reply.text) == ("complete", f"echo: {asked(6)}")
    assert numbers(text for _, text in agent.shown[-1])[-1] == 5
    tip = lineage(path)[-1]
    assert numbers(contents(path, tip)).count(6) == 1
    assert sound(path) == []


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_a_retry_during_which_another_process_rotates_is_answered(small, path, world, key):
    gate = Gate()
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        parent = (await talk(runtime, 4))[-1].session_id
        agent.script.append(gate)
        async with meanwhile(gate, runtime.ask, "k", "/retry") as replies:
            winner = elsewhere(path, world, KEEP_TAIL + ROTATE, session_id=parent, key=key)
    (reply,) = replies
    assert (reply.status, reply.text) == ("complete", f"echo: {asked(3)}")
    assert reply.session_id == winner
    summary, older, *retried = contents(path, winner)
    assert (summary, older) == ("the summary of another", f"echo: {asked(2)}")
    assert retried == [asked(3), f"echo: {asked(3)}"]
    assert sound(path) == []


async def test_a_retry_after_a_compression_answers_again_in_the_child(small, path):
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        await talk(runtime, 11)
        parent, child = lineage(path)
        before = rows_in(path, parent)
        agent.script.append(TurnResult(text="better"))
        reply = await runtime.ask("k", "/retry")
    assert (reply.text, reply.session_id) == ("better", child)
    assert agent.shown[-1] == agent.shown[-2]
    assert contents(path, child)[-2:] == [asked(10), "better"]
    assert rows_in(path, parent) == before
    assert lineage(path) == [parent, child]


async def test_taking_back_after_a_compression_takes_back_the_last_exchange(small, path):
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        await talk(runtime, 11)
        await runtime.ask("k", "/undo")
        await runtime.ask("k", asked(20))
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9]
    assert sound(path) == []


# What stays


async def test_the_rows_of_the_parent_stay_and_are_found(small, path):
    async with small() as runtime:
        parent = (await talk(runtime))[-1].session_id
        before = await runtime.history("k")
        await talk(runtime, 25, first=10)
    line = lineage(path)
    assert len(line) > 2
    assert rows_in(path, parent) == before
    with SessionStore(path) as store:
        for number in range(35):
            hits = store.search_messages(f'"question {number:03}"')
            assert [hit for hit in hits if hit.role == "user"], number
            assert {hit.session_id for hit in hits} <= set(line)
    assert sound(path) == []


async def test_no_agent_is_rebuilt_for_a_rotation(small, path):
    agents = []

    def build(_):
        agents.append(Recorder())
        return agents[-1]

    async with small(agent=build) as runtime:
        with runtime.events("k") as events:
            replies = await talk(runtime, 25)
        started = [e.event.build_reason async for e in events if isinstance(e.event, TurnStarted)]
        snapshot = runtime.snapshot("k")
        assert runtime.statistics().builds == {"cold": 1}
        assert snapshot.agent is agents[0]
        assert snapshot.session_id == lineage(path)[-1]
        assert snapshot.message_count == len(await runtime.history("k"))
        shown = sum(len(row.content) for row in await runtime.history("k"))
        assert runtime.statistics().transcript_bytes < shown + 300 * snapshot.message_count
        assert agents[0].closed == 0
    assert started == ["cold"] + [None] * 24
    assert [reply.build_reason for reply in replies] == started
    assert len(agents) == 1
    assert agents[0].closed == 1
    assert len(lineage(path)) > 2


async def test_who_goes_back_to_the_parent_comes_to_its_tip(small, path):
    async with small() as runtime:
        parent = (await talk(runtime))[-1].session_id
        await talk(runtime, 2, first=10)
        tip = lineage(path)[-1]
        await runtime.new_session("k")
        await runtime.ask("k", "hello")
        assert (await runtime.switch("k", parent)).session_id == tip
        assert (await runtime.ask("k", asked(12))).session_id == tip
        assert numbers(contents(path, tip)) == [8, 9, 10, 11, 12]
        assert len(await runtime.sessions("k")) == 2
    assert sound(path) == []


async def test_a_branch_and_its_origin_are_compressed_each_for_itself(small, path):
    builder = CountingBuilder(lambda _: Recorder())
    async with small(agent=builder) as runtime:
        origin = (await talk(runtime, 9))[-1].session_id
        branch = await runtime.branch("k")
        await talk(runtime, 4, first=20)
        of_branch = lineage(path)
        await runtime.switch("k", origin)
        await talk(runtime, 4, first=30)
        of_origin = lineage(path)
    assert (of_branch[0], len(of_branch)) == (branch, 2)
    assert (of_origin[0], len(of_origin)) == (origin, 2)
    assert numbers(contents(path, of_branch[-1]))[-1] == 23
    assert numbers(contents(path, of_origin[-1]))[-1] == 33
    assert len(builder) == 1
    assert sound(path) == []


async def test_an_agent_that_rotates_by_itself_and_a_compression_after_it_make_one_line(
    small, path
):
    agent = Recorder()
    async with small(agent=lambda _: agent) as runtime:
        parent = (await talk(runtime, 6))[-1].session_id
        usage = [Usage(input_tokens=OVER)]
        agent.script.append(TurnResult(text="moved", session_id="mine", usage=usage))
        assert (await runtime.ask("k", asked(6))).session_id == "mine"
        last = await runtime.ask("k", asked(7))
    line = lineage(path)
    assert line[:2] == [parent, "mine"]
    assert last.session_id == line[-1]
    assert numbers(contents(path, line[-1]))[-2:] == [6, 7]
    assert sound(path) == []


@threads_only
async def test_a_foreign_write_to_the_child_is_still_noticed(small, path, world):
    agent = Recorder()
    builder = CountingBuilder(lambda _: agent)
    async with small(agent=builder) as runtime:
        await talk(runtime, 11)
        child = lineage(path)[-1]
        code = "store.append_message(session_id, 'user', 'question 050')"
        elsewhere(path, world, code, session_id=child)
        reply = await runtime.ask("k", asked(11))
    assert reply.build_reason == "foreign-write"
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9, 10, 50]


async def test_the_title_gets_its_number(small, path):
    async with small() as runtime:
        await runtime.ask("k", asked(0))
        await runtime.set_title("k", "Plan")
        await talk(runtime, 20, first=1)
        status = await runtime.status("k")
    line = lineage(path)
    with SessionStore(path) as store:
        titles = [store.get_session(session_id).title for session_id in line]
    assert len(line) > 2
    assert titles == ["Plan", *[f"Plan #{number}" for number in range(2, len(line) + 1)]]
    assert status.title == titles[-1]


async def test_the_child_is_about_the_same_chat(small, path):
    source = Source("memory", chat_id="c", chat_type="group", thread_id="t", user_id="u")
    async with small() as runtime:
        for number in range(12):
            await runtime.ask("k", asked(number), source=source)
        assert [listed.session.id for listed in await runtime.sessions("k")] == [lineage(path)[-1]]
    with SessionStore(path) as store:
        parent, child = (store.get_session(each) for each in lineage(path))
    described = lambda s: (  # noqa: E731
        s.source, s.session_key, s.chat_id, s.chat_type, s.thread_id, s.user_id
    )  # fmt: skip
    assert described(child) == described(parent) == ("memory", "k", "c", "group", "t", "u")
    assert child.parent_session_id == parent.id


async def test_what_a_summary_cost_is_on_the_bill(small, path):
    async def paid(_):
        return Summary(SUMMARY, [Usage("turn", "cheap", input_tokens=400, output_tokens=9)])

    async with small(compressor=Sums(paid)) as runtime:
        await talk(runtime, 11)
        child = lineage(path)[-1]
        assert "409" not in (await runtime.ask("k", "/usage")).text
    with SessionStore(path) as store:
        calls = store.get_usage(child)
    assert [(call.purpose, call.model, call.input_tokens) for call in calls] == [
        ("summary", "cheap", 400)
    ]


def rich(number):
    """An exchange with everything a row can have."""
    call = ToolCall(f"call{number}", "search", f'{{"q": "{number}",  "n": 1.0}}')
    return TurnResult(
        rows=[
            Message(
                "assistant",
                None,
                tool_calls=(call, ToolCall(f"second{number}", "read")),
                reasoning=f"I think {number}\n",
                reasoning_details=({"type": "text", "signature": "s" * number},),
                finish_reason="tool_calls",
                provider_data={"id": number, "nested": {"ü": [1, None]}},
            ),
            Message("tool", "found", tool_call_id=f"call{number}", tool_name="search"),
            Message("tool", "", tool_call_id=f"second{number}", tool_name="read"),
            Message(
                "assistant",
                f"answer {number} — \u200b\U0001f600 ",
                1_234_567.125 + number,
                parts=({"type": "text", "text": "a"}, {"type": "x", "y": [0.1]}),
                finish_reason="stop",
                token_count=7,
            ),
        ]
    )


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.3])
async def test_the_tail_is_the_same_row_by_row(small, path, world, budget):
    agent = Recorder(*[rich(number) for number in range(8)])
    parts = ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},)
    compression = {"tail_share": budget, "window": 40_000}
    async with small(agent=lambda _: agent, compression=compression) as runtime:
        for number in range(8):
            world.pass_time(1.5)
            await runtime.submit(
                Inbound("k", f"e{number}", asked(number), Source("memory", user_id="u"),
                        parts=parts if number % 2 else None, platform_message_id=f"m{number}")
            )  # fmt: skip
            await runtime.set_title("k", f"waits for turn {number}")
        before = await runtime.history("k")
        assert len(before) == 40
        world.pass_time(500)
        assert isinstance(await runtime.compress("k"), Compressed)
        after = await runtime.history("k")
        assert same(await runtime.history("k"), after)
    assert [is_summary(row) for row in after] == [True] + [False] * (len(after) - 1)
    tail = after[1:]
    assert len(tail) >= 6
    assert same(tail, before[-len(tail) :])
    assert tail[0].role != "tool"
    with SessionStore(path) as store:
        assert store.get_session(lineage(path)[-1]).message_count == len(after)


async def test_the_head_is_the_same_row_by_row(small, path):
    async with small(compression={"protect_first": 3}) as runtime:
        await talk(runtime)
        before = await runtime.history("k")
        await runtime.compress("k")
        after = await runtime.history("k")
    assert same(after[:3], before[:3])
    assert is_summary(after[3])
    assert same(after[4:], before[-len(after[4:]) :])


async def test_the_next_summary_is_told_what_the_last_one_said(small, path):
    compressor = Sums()
    async with small(compressor=compressor) as runtime:
        await talk(runtime, 25)
        summaries = [row for row in await runtime.history("k") if is_summary(row)]
    assert [request.previous for request in compressor.requests[:2]] == [None, SUMMARY]
    assert [summary_text(row) for row in summaries] == [SUMMARY]


# For a long time


class Chatty(Recorder):
    """An agent of few and many words, with tools; its provider counts what it is shown, or not."""

    def __init__(self, seed, *, counts):
        super().__init__()
        self.chance = random.Random(seed)
        self.counts = counts

    async def run(self, turn, /):
        await super().run(turn)
        prompt = 40
        usage = [Usage(input_tokens=self.sizes[-1] + prompt)] if self.counts else []
        if self.chance.random() < 0.2:
            return replace(rich(len(self.turn_ids) % 50), usage=usage)
        return TurnResult(text="y" * self.chance.choice((1, 50, 300)), usage=usage)


async def at_full_length(request):
    """A summary that takes all the room it may."""
    return " ".join(["word"] * (request.max_tokens * 4 // 5))


@inline_only
@pytest.mark.parametrize(
    "counts",
    [
        True,
        False,
    ],
)
async def test_four_hundred_turns_stay_within_the_window_and_lose_nothing(
    small, path, counts, caplog
):
    turns, window = 400, 4000
    chance = random.Random(4)
    agent, compressor = Chatty(4, counts=counts), Sums(at_full_length)
    builder = CountingBuilder(lambda _: agent)
    options = {"compressor": compressor, "agent": builder, "compression": {"window": window}}
    with caplog.at_level(logging.WARNING):
        async with small(**options) as runtime:
            for number in range(turns):
                text = f"question {number:03} ".ljust(chance.choice((13, 80, 400)), "x")
                assert (await runtime.ask("k", text)).status == "complete"
            status = await runtime.status("k")
    assert caplog.records == []
    assert len(agent.turn_ids) == turns
    assert max(agent.sizes) < status.compress_at + 200 < window
    assert status.context_tokens < status.compress_at + 200
    assert status.compression_note is None
    assert turns / 20 < len(compressor) < turns / 4
    assert len(builder) == 1
    assert_nothing_is_lost(path, range(turns), rotations=len(compressor))
    assert sound(path) == []


def assert_nothing_is_lost(path, expected, *, rotations):
    """Every message is in the line, each session begins where the one before it was cut."""
    line = lineage(path)
    assert len(line) == rotations + 1
    said = [numbers(contents(path, each)) for each in line]
    assert {number for each in said for number in each} == set(expected)
    for older, newer in itertools.pairwise(said):
        assert newer == list(range(newer[0], newer[-1] + 1))
        assert newer[0] <= older[-1] <= newer[-1]
    assert said[-1][-1] == expected[-1]


# What is too long at the ends


def tool_turn(text, size):
    """A turn whose tool says very much."""

    async def run(turn):
        turn.emit(ToolStarted(ToolCall("1", "read", "{}")))
        turn.emit(ToolFinished("1", "word " * size))
        return TurnResult(text=text)

    return run


async def test_a_last_turn_that_is_too_long_is_compressed_before_the_next_one(small, path):
    """Its own reply stays; what its tool said does not have to wait for another exchange."""
    agent = Recorder(None, tool_turn("read", 2000))
    compressor = Sums()
    async with small(agent=lambda _: agent, compressor=compressor) as runtime:
        await talk(runtime, 2)
        await runtime.ask("k", asked(2))
    assert len(compressor) == 1
    assert agent.sizes[-1] < OVER
    kept = contents(path, lineage(path)[-1])
    assert kept[1:] == ["read", asked(2), f"echo: {asked(2)}"]
    assert sound(path) == []


async def test_an_overflow_by_the_last_turn_is_compressed_and_tried_again(small, path):
    agent = Recorder(tool_turn("read", 50), ContextOverflow("too long"))
    async with small(agent=lambda _: agent) as runtime:
        await runtime.ask("k", asked(0))
        reply = await runtime.ask("k", asked(1))
    assert (reply.status, reply.text) == ("complete", f"echo: {asked(1)}")
    assert len(lineage(path)) == 2


async def test_a_protected_head_that_is_too_long_is_summed_up_all_the_same(small, path):
    agent = Recorder(tool_turn("read", 2000))
    async with small(agent=lambda _: agent, compression={"protect_first": 4}) as runtime:
        await talk(runtime, 3)
    assert len(lineage(path)) == 2
    assert agent.sizes[-1] < OVER


@pytest.mark.parametrize(("later", "calls"), [(0, 1), (7200, 2)])
async def test_an_overflow_does_not_ask_a_compressor_that_has_just_failed(
    small, path, world, later, calls
):
    compressor = Sums(failing(RuntimeError("no")))
    overflow = ContextOverflow("too long")
    agent = Recorder(*[None] * 7, overflow, overflow)
    async with small(agent=lambda _: agent, compressor=compressor) as runtime:
        await talk(runtime, 8)
        assert len(compressor) == 1
        world.pass_time(later)
        reply = await runtime.ask("k", asked(8))
    assert reply.status == "failed"
    assert len(compressor) == calls
    assert len(lineage(path)) == 1


async def test_an_overflow_that_is_dealt_with_is_no_error_in_the_log(small, caplog):
    agent = Recorder(*[None] * 7, ContextOverflow("too long"))
    async with small(agent=lambda _: agent) as runtime:
        await talk(runtime, 7)
        assert (await runtime.ask("k", asked(7))).status == "complete"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_the_answer_to_the_command_is_written_with_the_rotation(path, world, workers):
    """A process that is killed right after it leaves nothing to be asked again."""
    seen = []

    class Watching(Through):
        async def rotate(self, rotation):
            done = await self.store.rotate(rotation)
            seen.append(await self.store.open_inbox())
            return done

    async with over(path, world, workers, Watching, compressor=Sums()) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", "/compress")
    assert seen == [[]]
    assert told(path)[-1] == ("command", reply.text)
    assert [kind for kind, _ in told(path)].count("command") == 1
    with SessionStore(path) as store:
        body = store.snapshot(lambda tx: tx.one("SELECT body FROM outbox ORDER BY id DESC"))[0]
    assert json.loads(body)["session_id"] == lineage(path)[-1]


async def test_notes_about_a_session_are_forgotten_with_it(small, path):
    async with small(compressor=Sums(failing(RuntimeError("no")))) as runtime:
        session_id = (await talk(runtime, FULL + 1))[-1].session_id
    with SessionStore(path) as store:
        noted = "SELECT count(*) FROM meta WHERE key LIKE 'compression:%'"
        assert store.snapshot(lambda tx: tx.one(noted))[0] == 1
        store.delete_session(session_id)
        assert store.snapshot(lambda tx: tx.one(noted))[0] == 0


@inline_only
async def test_a_lease_is_given_back_though_the_store_is_busy_at_first(
    path, world, workers, autojump_clock
):
    class BusyOnce(Through):
        async def release_compression_lock(self, session_id, holder):
            if self.busy:
                raise self.busy.pop()
            return await self.store.release_compression_lock(session_id, holder)

    errors = [StoreBusy("another process holds the write lock")]
    wrap = lambda store: BusyOnce(store, busy=errors)  # noqa: E731
    async with over(path, world, workers, wrap, compressor=Sums(at_length)) as runtime:
        await talk(runtime)
        assert isinstance(await runtime.compress("k"), Skipped)
    assert errors == []
    assert sound(path) == []
