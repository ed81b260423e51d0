"""The cached agent of a key: reused across sessions, rebuilt only for a named reason.

"Another process" is one: it opens the file with `SessionStore`, changes it, and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import attrs
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings, strategies as st
from msgspec.structs import replace

from hermes import open_runtime
from hermes.actors.compression.compressor import Compressed
from hermes.actors.runtime import running
from hermes.actors.session.policy import Baseline, guard
from hermes.actors.session.route_state import RouteState
from hermes.config import CompressionConfig, Config
from hermes.errors import ContextOverflow
from hermes.events import TurnEnded
from hermes.messages import (
    AgentSpec,
    Delivery,
    Head,
    Inbound,
    Receipt,
    Snapshot,
    Source,
)
from hermes.store import SessionStore, inline, open_store
from hermes.testing import CountingBuilder, DeterministicCompressor, ScriptedAgent, texts_of
from tests.conftest import World
from tests.runtime.conftest import Through

LONG = "a sentence that is long enough to be worth a summary, " * 3
SMALL = Config(compression=CompressionConfig(window=1000, max_output=0, share=0.5))


@attrs.define
class Witness(ScriptedAgent):
    """Remembers what it was shown, as it was then."""

    shown: list = attrs.Factory(list)

    async def run(self, turn):
        self.shown.append(texts_of(turn.history))
        return await super().run(turn)


def witnesses(*script):
    return CountingBuilder(lambda _: Witness(script))


def builds(runtime):
    return dict(runtime.statistics().builds)


NEIGHBOUR = """
import json, sys
from hermes.messages import Message, Usage
from hermes.store import Rotation, SessionStore

for line in sys.stdin:
    path, sid, code = json.loads(line)
    with SessionStore(path) as store:
        rows = [] if store.get_session(sid) is None else store.get_messages(sid)
        exec(code)
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def neighbour():
    """Another process, which does what it is told, each time on a file that it opens anew."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR], stdin=pipe, stdout=pipe, text=True, bufsize=1
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def elsewhere(path, neighbour):
    """Change a session from another process: `store`, `sid` and its `rows` are at hand there."""

    def run(session_id, code):
        neighbour.stdin.write(json.dumps([str(path), session_id, code]) + "\n")
        assert neighbour.stdout.readline() == "done\n"

    return run


APPEND = "store.append_message(sid, 'user', 'theirs')"
CHANGES = {
    "append": "store.append_message(sid, 'assistant', 'news')",
    "edit": "store.edit_message(sid, rows[0].id, 'news')",
    "rewind": "store.rewind(sid, rows[-1].id)",
    "rewrite of equal length": "store.replace_messages(sid, [Message(m.role, 'n') for m in rows])",
    "row that came and went": "store.rewind(sid, store.append_message(sid, 'user').message_id)",
}
NO_CHANGES = {
    "title": "store.set_session_title(sid, 'A title')",
    "automatic title": "assert store.set_auto_title_if_empty(sid, 'An automatic title')",
    "usage": "store.update_token_counts(sid, Usage(input_tokens=5, cost=0.1))",
    "lease": "assert store.try_acquire_compression_lock(sid, 'somebody')",
    "end and reopening": "store.end_session(sid, 'closed'); store.reopen_session(sid)",
    "end by accident": "store.end_session(sid, 'agent_close')",
    "system prompt": "store.set_system_prompt(sid, 'be brief')",
    "another session": "store.append_message(store.create_session('other'), 'user', 'hi')",
}


@pytest.fixture(params=CHANGES)
def change(request):
    return CHANGES[request.param]


async def reply_to(heard, receipt):
    """Wait for the end of the turn that began with this message."""
    async for envelope in heard:
        event = envelope.event
        if isinstance(event, TurnEnded) and event.reply.turn_id == receipt.inbox_id:
            return event.reply
    raise AssertionError("the runtime ended")


# The decision itself

SIGNATURES = st.sampled_from(["sig", "other"])
SESSIONS = st.sampled_from(["A", "B"])
NUMBERS = st.integers(0, 4)
HEADS = st.builds(Head, SESSIONS, NUMBERS, NUMBERS, NUMBERS)
BASELINES = st.none() | st.builds(Baseline, NUMBERS, NUMBERS)
SNAPSHOTS = st.builds(
    Snapshot, st.just(object()), SIGNATURES, st.none() | NUMBERS, st.none() | SESSIONS
)


@given(SIGNATURES, HEADS, BASELINES)
def test_without_an_agent_a_cold_one_is_built(signature, head, baseline):
    assert guard(None, signature, head, baseline) == "cold"


@given(SNAPSHOTS, HEADS, BASELINES)
def test_another_signature_rebuilds_whatever_else_is_known(snapshot, head, baseline):
    assert guard(snapshot, "a third", head, baseline) == "signature"


@given(SNAPSHOTS, HEADS, BASELINES)
def test_a_snapshot_of_another_session_is_always_reused(snapshot, head, baseline):
    snapshot = replace(snapshot, session_id="the other")
    assert guard(snapshot, snapshot.signature, head, baseline) is None


@given(SNAPSHOTS, HEADS, BASELINES)
def test_an_unknown_count_is_not_guarded(snapshot, head, baseline):
    snapshot = replace(snapshot, message_count=None)
    assert guard(snapshot, snapshot.signature, head, baseline) is None


@given(NUMBERS, HEADS, st.builds(Baseline, NUMBERS, NUMBERS))
def test_where_a_baseline_is_known_only_a_newer_revision_rebuilds(count, head, baseline):
    snapshot = Snapshot(object(), "sig", count, head.session_id)
    decision = guard(snapshot, "sig", head, baseline)
    assert (decision == "foreign-write") is (head.revision > baseline.revision)
    assert decision in {None, "foreign-write"}


@given(st.none() | st.just("A"), NUMBERS, NUMBERS, NUMBERS)
def test_where_only_a_count_is_known_another_count_rebuilds(session_id, count, live, revision):
    snapshot = Snapshot(object(), "sig", count, session_id)
    decision = guard(snapshot, "sig", Head("A", live, revision), None)
    assert decision == (None if live == count else "foreign-write")


@given(NUMBERS, HEADS)
def test_what_our_own_turn_left_behind_is_no_news(count, head):
    snapshot = Snapshot(object(), "sig", count, head.session_id)
    assert guard(snapshot, "sig", head, Baseline.of(head)) is None


def delivered(epoch, head):
    receipt = Receipt(1, "k", head.session_id, epoch, 0.0)
    return Delivery(receipt, Inbound("k", "e", "text"), head)


@given(st.lists(st.tuples(st.integers(1, 3), NUMBERS), min_size=1), st.randoms())
def test_an_actor_keeps_the_newest_head_in_whatever_order_they_arrive(tales, random):
    place = RouteState("k", None)
    for epoch, revision in tales:
        place.learn(delivered(epoch, Head(f"session {epoch}", revision, revision)))
    expected = max(tales)
    assert (place.epoch, place.head.revision) == expected
    random.shuffle(tales)
    again = RouteState("k", None)
    for epoch, revision in tales:
        again.learn(delivered(epoch, Head(f"session {epoch}", revision, revision)))
    assert (again.epoch, again.head) == (place.epoch, place.head)


# Switching


async def test_a_hundred_switches_between_two_sessions_reuse_one_agent(start):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        told = {}
        for name in ("A", "B"):
            session_id = (await runtime.ask("k", f"I am {name}")).session_id
            told[session_id] = [("user", f"I am {name}"), ("assistant", f"echo: I am {name}")]
            await runtime.new_session("k")
        agent = runtime.snapshot("k").agent
        for number in range(100):
            session_id = list(told)[number % 2]
            await runtime.switch("k", session_id)
            reply = await runtime.ask("k", f"{number}")
            assert (reply.session_id, reply.build_reason) == (session_id, None)
            assert agent.shown[-1] == told[session_id]
            assert runtime.snapshot("k") == Snapshot(
                agent, agent_signature(), len(told[session_id]) + 2, session_id
            )
            told[session_id] += [("user", f"{number}"), ("assistant", f"echo: {number}")]
        assert builds(runtime) == {"cold": 1}
    assert (len(builder), agent.closed) == (1, 1)


def agent_signature():
    return AgentSpec(session_key="k").signature


async def test_new_resume_branch_and_compression_by_command_reuse_one_agent(start):
    builder = witnesses()
    async with start(agent=builder, compressor=DeterministicCompressor()) as runtime:
        first = (await runtime.ask("k", LONG)).session_id
        visited = [first]
        for command in ("/new", f"/resume {first}", "/branch a copy", "/new", "/resume a copy"):
            assert (await runtime.ask("k", command)).status == "command"
            visited.append((await runtime.ask("k", LONG)).session_id)
        for _ in range(3):
            await runtime.ask("k", LONG)
        copy = visited[-1]
        assert visited[1] not in {first, copy}
        assert visited == [first, visited[1], first, copy, visited[4], copy]
        compressed = await runtime.ask("k", "/compress here 1")
        assert compressed.text.startswith("Compressed from")
        child = await runtime.ask("k", "after it")
        assert (child.session_id, child.build_reason) == (compressed.session_id, None)
        assert child.session_id not in visited
        await runtime.ask("k", f"/resume {first}")
        assert (await runtime.ask("k", "back")).build_reason is None
        await runtime.ask("k", f"/resume {child.session_id}")
        assert (await runtime.ask("k", "and forth")).session_id == child.session_id
        assert builds(runtime) == {"cold": 1}
    assert (len(builder), builder.agents[0].closed) == (1, 1)


async def test_a_rotation_by_itself_rebuilds_nothing_before_and_after(start):
    builder = witnesses()
    async with start(agent=builder, compressor=DeterministicCompressor(), config=SMALL) as runtime:
        sessions = Counter([(await runtime.ask("k", LONG)).session_id for _ in range(20)])
        assert len(sessions) > 2, "it was compressed more than once"
        assert builds(runtime) == {"cold": 1}
    assert len(builder) == 1


async def test_more_sessions_than_are_remembered_still_rebuild_nothing(start):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        visited = []
        for number in range(20):
            visited.append((await runtime.ask("k", f"of {number}")).session_id)
            await runtime.new_session("k")
        for _ in range(2):
            for number, session_id in enumerate(visited):
                await runtime.switch("k", session_id)
                assert (await runtime.ask("k", "again")).build_reason is None
                assert builder.agents[0].shown[-1][0] == ("user", f"of {number}")
        assert builds(runtime) == {"cold": 1}


async def test_a_turn_on_b_leaves_what_is_known_of_a_as_it_was(start):
    async with start() as runtime:
        a = (await runtime.ask("k", "on A")).session_id
        await runtime.new_session("k")
        cache = runtime._supervisor.find("k").cache
        known = cache.baseline(a)
        assert known == Baseline(2, 1)
        b = (await runtime.ask("k", "on B")).session_id
        await runtime.ask("k", "on B again")
        assert cache.baseline(a) is known
        assert cache.baseline(b) == Baseline(4, 2)
        assert runtime.snapshot("k").session_id == b
        await runtime.switch("k", a)
        assert cache.baseline(a) is known
        assert runtime.snapshot("k").session_id == b, "a switch is no turn"


@pytest.mark.parametrize("harmless", NO_CHANGES)
async def test_same_session_turns_reuse_whatever_else_changes_about_the_session(
    start, elsewhere, harmless
):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        agent = runtime.snapshot("k").agent
        elsewhere(session_id, NO_CHANGES[harmless])
        for number in range(3):
            reply = await runtime.ask("k", f"{number}")
            assert (reply.session_id, reply.build_reason) == (session_id, None)
        assert runtime.snapshot("k").agent is agent
        assert builds(runtime) == {"cold": 1}


async def test_turns_that_fail_or_are_interrupted_rebuild_nothing(start):
    running = trio.Event()
    shown = []

    async def reply(turn):
        shown.append(texts_of(turn.history))
        if turn.text == "fail":
            raise RuntimeError("no")
        if turn.text == "hang":
            running.set()
            await trio.sleep_forever()
        return "fine"

    async with start(agent=reply) as runtime:
        await runtime.ask("k", "begin")
        assert (await runtime.ask("k", "fail")).status == "failed"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "hang")
            await running.wait()
            await runtime.interrupt("k")
        assert (await runtime.ask("k", "end")).build_reason is None
        assert shown[-1] == [
            ("user", "begin"), ("assistant", "fine"), ("user", "fail"), ("user", "hang"),
        ]  # fmt: skip
        assert builds(runtime) == {"cold": 1}


async def test_a_turn_that_is_tried_twice_tells_why_its_agent_was_built(start):
    keep_little = Config(compression=CompressionConfig(tail_share=0.001, protect_first=0))
    options = {"compressor": DeterministicCompressor(), "config": keep_little}
    async with start(**options) as runtime:
        for _ in range(5):
            await runtime.ask("k", LONG)
    async with start(agent=witnesses(ContextOverflow("too much"), "fine"), **options) as runtime:
        reply = await runtime.ask("k", "hello")
        assert (reply.text, builds(runtime)) == ("fine", {"cold": 1})
        assert reply.build_reason == "cold"


ODD = {
    "plain": {"text": "hello"},
    "half a character": {"text": "hello \ud800"},
    "parts": {"text": "", "parts": [{"type": "text", "text": "hello"}]},
}


@pytest.mark.parametrize("odd", ODD)
async def test_what_an_agent_is_shown_does_not_depend_on_where_it_was_kept(start, odd):
    shown = []

    async def reply(turn):
        shown.append([(m.role, m.content, m.timestamp, m.parts) for m in turn.history])
        return "fine"

    async with start(agent=reply, config=Config(transcript_bytes=0)) as runtime:
        await runtime.ask("k", **ODD[odd])
        await runtime.ask("k", "from memory")
        runtime.passivate()
        await runtime.ask("k", "from the file")
    assert shown[1] == shown[2][:2]


async def test_titles_undo_and_retry_of_our_own_are_no_news(start):
    builder = witnesses("one", "two", "two again", "three")
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "1")
        await runtime.set_title("k", "mine")
        await runtime.ask("k", "2")
        assert (await runtime.retry("k")).build_reason is None
        await runtime.undo("k")
        assert (await runtime.ask("k", "3")).build_reason is None
        assert builder.agents[0].shown[-1] == [("user", "1"), ("assistant", "one")]
        assert builds(runtime) == {"cold": 1}


# Another process writes


async def test_a_foreign_change_to_the_current_session_costs_exactly_one_rebuild(
    start, elsewhere, change
):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        assert (await runtime.ask("k", "two")).build_reason is None
        elsewhere(session_id, change)
        live = texts_of(await runtime.history("k"))
        reply = await runtime.ask("k", "three")
        assert (reply.session_id, reply.build_reason) == (session_id, "foreign-write")
        old, new = builder.agents
        assert new.shown == [live], "it is shown what is there, and nothing that was taken back"
        for number in range(3):
            assert (await runtime.ask("k", f"{number}")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}
        assert runtime.snapshot("k").agent is new
        assert (old.closed, new.closed) == (1, 0)
    assert (old.closed, new.closed) == (1, 1)


class CountingStore(Through):
    """The real store, which transcripts were loaded from it, and what happens just before."""

    def __init__(self, store):
        super().__init__(store, loads=[], before_load=[])

    def load(self, session_id):
        self.loads.append(session_id)
        if self.before_load:
            self.before_load.pop()(session_id)
        return self.store.load(session_id)


@pytest.fixture
async def counted(path, world, workers):
    """A runtime whose loads are counted, and its builder."""
    builder = witnesses()
    worker = {"open_worker": inline()} if workers == "inline" else {}
    async with open_store(path, clock=world.clock, **worker) as store:
        counting = CountingStore(store)
        async with running(
            counting,
            build=builder,
            describe=lambda key, source: AgentSpec(session_key=key),
            config=Config(transcript_bytes=0),
        ) as runtime:
            await runtime._supervisor._recovered.wait()
            yield runtime, builder, counting


async def test_a_foreign_change_to_a_session_visited_earlier_costs_one_reload_and_no_rebuild(
    counted, elsewhere, change
):
    runtime, builder, store = counted
    loads = store.loads
    a = (await runtime.ask("k", "on A")).session_id
    await runtime.ask("k", "more on A")
    await runtime.ask("k", "/branch")
    b = (await runtime.ask("k", "on B")).session_id
    loads.clear()
    elsewhere(a, change)
    await runtime.ask("k", "still on B")
    await runtime.switch("k", a)
    live = texts_of(await runtime.history("k"))
    assert loads == []
    assert (await runtime.ask("k", "back on A")).build_reason is None
    assert builder.agents[0].shown[-1] == live
    assert loads == [a]
    await runtime.ask("k", "and once more")
    await runtime.switch("k", b)
    await runtime.ask("k", "on B, which nobody else has touched")
    assert loads == [a]
    assert builds(runtime) == {"cold": 1}


async def test_a_session_is_guarded_again_once_a_turn_has_gone_back_to_it(start, elsewhere, change):
    async with start() as runtime:
        a = (await runtime.ask("k", "on A")).session_id
        await runtime.new_session("k")
        await runtime.ask("k", "on B")
        await runtime.switch("k", a)
        await runtime.ask("k", "back")
        elsewhere(a, change)
        assert (await runtime.ask("k", "now")).build_reason == "foreign-write"
        assert (await runtime.ask("k", "then")).build_reason is None


async def test_without_foreign_writes_nothing_is_ever_loaded_twice(counted):
    runtime, _, store = counted
    loads = store.loads
    a = (await runtime.ask("k", "on A")).session_id
    await runtime.new_session("k")
    b = (await runtime.ask("k", "on B")).session_id
    for number in range(10):
        await runtime.switch("k", (a, b)[number % 2])
        await runtime.ask("k", f"{number}")
    assert loads == []


async def test_a_transcript_that_was_given_up_is_loaded_once_and_the_agent_stays(counted):
    runtime, builder, store = counted
    loads = store.loads
    a = (await runtime.ask("k", "one")).session_id
    runtime.passivate()
    assert runtime.statistics().transcript_bytes == 0
    assert (await runtime.ask("k", "two")).build_reason is None
    assert builder.agents[0].shown[-1] == [("user", "one"), ("assistant", "echo: one")]
    await runtime.ask("k", "three")
    assert loads == [a]


async def test_a_foreign_change_between_the_message_and_its_turn_is_seen_by_that_turn(
    counted, elsewhere, change
):
    runtime, builder, store = counted
    await runtime.ask("k", "one")
    await runtime.ask("k", "two")
    runtime.passivate()
    store.before_load.append(lambda session_id: elsewhere(session_id, change))
    assert (await runtime.ask("k", "three")).build_reason == "foreign-write"
    assert builder.agents[1].shown == [texts_of((await runtime.history("k"))[:-2])]
    assert (await runtime.ask("k", "four")).build_reason is None


async def test_a_look_at_the_status_during_a_turn_disturbs_nothing(start, elsewhere):
    seen, receipts = [], []

    async def look(turn):
        seen.append((await runtime.status("k")).message_count)
        elsewhere(turn.session_id, APPEND)
        receipts.append(await runtime.submit(Inbound("k", "e", "3")))
        seen.append((await runtime.status("k")).message_count)

    builder = witnesses("one", [look, "two"], "three")
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "1")
        with runtime.events("k") as heard:
            assert (await runtime.ask("k", "2")).text == "two"
            assert (await reply_to(heard, receipts[0])).build_reason == "foreign-write"
        assert seen == [2, 3]
        assert builder.agents[1].shown == [
            [("user", "1"), ("assistant", "one"), ("user", "theirs"), ("user", "2"),
             ("assistant", "two")],
        ]  # fmt: skip
        assert (await runtime.ask("k", "4")).build_reason is None


async def test_a_foreign_change_during_a_turn_is_seen_by_the_next_with_one_rebuild(
    start, elsewhere, change
):
    async def meanwhile(turn):
        elsewhere(turn.session_id, change)

    builder = witnesses("one", [meanwhile, "two"], "three")
    async with start(agent=builder) as runtime:
        session_id = (await runtime.ask("k", "1")).session_id
        during = await runtime.ask("k", "2")
        assert (during.text, during.build_reason) == ("two", None)
        live = texts_of(await runtime.history("k"))
        assert live[-2:] == [("user", "2"), ("assistant", "two")], (
            "our rows are a block after theirs"
        )
        after = await runtime.ask("k", "3")
        assert (after.session_id, after.build_reason) == (session_id, "foreign-write")
        assert builder.agents[1].shown == [live]
        assert (await runtime.ask("k", "4")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


async def test_a_foreign_write_during_the_first_turn_of_all_is_seen_by_the_second(start, elsewhere):
    async def meanwhile(turn):
        elsewhere(turn.session_id, f"store.create_session(sid); {APPEND}")

    builder = witnesses([meanwhile, "ours"])
    async with start(agent=builder) as runtime:
        assert (await runtime.ask("k", "1")).build_reason == "cold"
        assert (await runtime.ask("k", "2")).build_reason == "foreign-write"
        assert builder.agents[1].shown == [
            [("user", "theirs"), ("user", "1"), ("assistant", "ours")]
        ]
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


async def test_a_foreign_change_during_a_turn_on_a_session_gone_back_to_is_guarded_too(
    start, elsewhere
):
    async def meanwhile(turn):
        elsewhere(turn.session_id, APPEND)

    async with start(agent=witnesses("one", "two", [meanwhile, "three"])) as runtime:
        a = (await runtime.ask("k", "on A")).session_id
        await runtime.new_session("k")
        await runtime.ask("k", "on B")
        await runtime.switch("k", a)
        await runtime.ask("k", "back on A")
        assert runtime.snapshot("k").session_id == a, "the session of the last turn"
        assert (await runtime.ask("k", "still on A")).build_reason == "foreign-write"


async def test_a_foreign_write_during_a_retry_is_not_taken_back_with_the_old_answer(
    start, elsewhere
):
    async def meanwhile(turn):
        elsewhere(turn.session_id, APPEND)

    builder = witnesses("one", [meanwhile, "one again"])
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "1")
        assert (await runtime.retry("k")).text == "one again"
        await runtime.ask("k", "2")
        shown = builder.agents[-1].shown[-1]
        assert ("user", "theirs") in shown
        assert ("assistant", "one") not in shown
        assert ("assistant", "one again") in shown


async def test_an_undo_does_not_hide_an_earlier_foreign_change_from_the_guard(start, elsewhere):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        await runtime.ask("k", "two")
        elsewhere(session_id, "store.edit_message(sid, rows[0].id, 'edited')")
        await runtime.undo("k")
        reply = await runtime.ask("k", "three")
        assert builder.agents[-1].shown[-1] == [("user", "edited"), ("assistant", "echo: one")]
        assert reply.build_reason == "foreign-write"


async def test_another_key_that_shares_the_session_is_a_foreign_writer(start):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        shared = (await runtime.ask("k1", "from one")).session_id
        await runtime.switch("k2", shared)
        assert (await runtime.ask("k2", "from two")).build_reason == "cold"
        assert (await runtime.ask("k1", "one again")).build_reason == "foreign-write"
        assert (await runtime.ask("k1", "and again")).build_reason is None
        assert (await runtime.ask("k2", "two again")).build_reason == "foreign-write"
        assert [text for _, text in builder.agents[-1].shown[-1]] == [
            "from one", "echo: from one", "from two", "echo: from two",
            "one again", "echo: one again", "and again", "echo: and again",
        ]  # fmt: skip
        assert builds(runtime) == {"cold": 2, "foreign-write": 2}


COMPRESS = (
    "store.rotate(Rotation(session_id=sid, messages=[Message('user', 'summary')], "
    "rotation_id='r', rewrites=0, upto=rows[-1].id))"
)


async def test_a_compression_by_another_process_is_followed_without_a_rebuild(start, elsewhere):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        parent = (await runtime.ask("k", "one")).session_id
        elsewhere(parent, COMPRESS)
        reply = await runtime.ask("k", "two")
        assert (reply.session_id != parent, reply.build_reason) == (True, None)
        assert builder.agents[0].shown[-1] == [("user", "summary")]
        again = await runtime.ask("k", "three")
        assert (again.session_id, again.build_reason) == (reply.session_id, None)


async def test_a_compression_by_another_process_during_a_turn_loses_nothing(start, elsewhere):
    async def meanwhile(turn):
        elsewhere(turn.session_id, COMPRESS)

    builder = witnesses("one", [meanwhile, "two"], "three")
    async with start(agent=builder) as runtime:
        parent = (await runtime.ask("k", "1")).session_id
        reply = await runtime.ask("k", "2")
        assert (reply.text, reply.session_id != parent) == ("two", True)
        after = await runtime.ask("k", "3")
        assert after.session_id == reply.session_id
        assert builder.agents[-1].shown[-1] == [
            ("user", "summary"), ("user", "2"), ("assistant", "two"),
        ]  # fmt: skip


@attrs.define
class Interrupted(DeterministicCompressor):
    """Something happens while it sums up."""

    meanwhile: object = None

    async def summarize(self, request):
        self.meanwhile(request.session_id)
        return await super().summarize(request)


async def test_what_another_process_says_during_a_compression_is_carried_along(start, elsewhere):
    builder = witnesses()
    compressor = Interrupted(meanwhile=lambda session_id: elsewhere(session_id, APPEND))
    async with start(agent=builder, compressor=compressor) as runtime:
        for _ in range(4):
            await runtime.ask("k", LONG)
        outcome = await runtime.compress("k", keep_exchanges=1)
        reply = await runtime.ask("k", "go on")
        assert (reply.session_id, reply.build_reason) == (outcome.rotated.session_id, None)
        assert builder.agents[0].shown[-1][-1] == ("user", "theirs")
        assert builds(runtime) == {"cold": 1}


async def test_a_compression_gives_way_to_another_process_that_rewrites_meanwhile(start, elsewhere):
    builder = witnesses()
    compressor = Interrupted(meanwhile=lambda session_id: elsewhere(session_id, CHANGES["edit"]))
    async with start(agent=builder, compressor=compressor) as runtime:
        for _ in range(4):
            session_id = (await runtime.ask("k", LONG)).session_id
        assert not isinstance(await runtime.compress("k", keep_exchanges=1), Compressed)
        reply = await runtime.ask("k", "go on")
        assert (reply.session_id, reply.build_reason) == (session_id, "foreign-write")
        assert builder.agents[1].shown[-1][0] == ("user", "news")
        assert (await runtime.ask("k", "and on")).build_reason is None


async def test_a_session_deleted_by_another_process_is_never_shown_again(start, elsewhere):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        deleted = (await runtime.ask("k", "secret")).session_id
        elsewhere(deleted, "store.delete_session(sid)")
        reply = await runtime.ask("k", "hello")
        assert reply.session_id != deleted
        assert builder.agents[-1].shown[-1] == []


# Messages that wait


async def test_a_message_that_waited_travels_with_an_old_head_and_rebuilds_nothing(start):
    receipts = []

    async def more(turn):
        receipts.append(await runtime.submit(Inbound("k", f"e{len(receipts)}", "queued")))

    builder = witnesses("one", [more, "two"], [more, "three"], "four")
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "1")
        with runtime.events("k") as heard:
            await runtime.ask("k", "2")
            replies = [await reply_to(heard, receipts[0]), await reply_to(heard, receipts[1])]
        assert [(reply.text, reply.build_reason) for reply in replies] == [
            ("three", None), ("four", None),
        ]  # fmt: skip
        assert len(builder.agents[0].shown[-1]) == 6
        assert builds(runtime) == {"cold": 1}


async def test_a_message_that_waited_needs_no_second_look_at_the_transcript(counted):
    runtime, builder, store = counted
    receipts = []

    async def more(turn):
        receipts.append(await runtime.submit(Inbound("k", "e", "2")))

    builder.make = lambda _: Witness([[more, "one"], "two"])
    with runtime.events("k") as heard:
        await runtime.ask("k", "1")
        await reply_to(heard, receipts[0])
    assert builder.agents[0].shown == [[], [("user", "1"), ("assistant", "one")]]
    assert store.loads == []


async def test_a_foreign_write_that_a_waiting_message_brings_along_rebuilds_exactly_once(
    start, elsewhere
):
    receipts = []

    async def more(turn):
        elsewhere(turn.session_id, APPEND)
        receipts.append(await runtime.submit(Inbound("k", "e", "queued")))

    builder = witnesses("one", [more, "two"], "three")
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "1")
        with runtime.events("k") as heard:
            await runtime.ask("k", "2")
            reply = await reply_to(heard, receipts[0])
        assert reply.build_reason == "foreign-write"
        assert builder.agents[1].shown == [
            [("user", "1"), ("assistant", "one"), ("user", "theirs"), ("user", "2"),
             ("assistant", "two")],
        ]  # fmt: skip
        assert (await runtime.ask("k", "4")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


async def test_a_route_that_went_and_came_back_during_a_turn_discards_it(start, elsewhere):
    async def meanwhile(turn):
        elsewhere(turn.session_id, f"store.switch('k', {other!r}); store.switch('k', sid)")
        await runtime.submit(Inbound("k", "e", "queued"))

    builder = witnesses("one", "two", [meanwhile, "discarded"], "both")
    async with start(agent=builder) as runtime:
        session_id = (await runtime.ask("k", "1")).session_id
        await runtime.new_session("k")
        other = (await runtime.ask("k", "2")).session_id
        await runtime.switch("k", session_id)
        assert (await runtime.ask("k", "3")).text == "both"
        assert ("assistant", "discarded") not in texts_of(await runtime.history("k"))


# Signature, eviction, restart


async def test_another_signature_rebuilds_exactly_once_and_closes_the_old_agent_once(start):
    prompt = ["old"]

    def describe(key, source):
        return AgentSpec(session_key=key, system_prompt=prompt[-1])

    builder = witnesses()
    async with start(agent=builder, describe=describe) as runtime:
        a = (await runtime.ask("k", "one")).session_id
        prompt.append("new")
        replies = [await runtime.ask("k", f"{number}") for number in range(3)]
        assert [reply.build_reason for reply in replies] == ["signature", None, None]
        assert {reply.session_id for reply in replies} == {a}
        old, new = builder.agents
        assert new.shown[0] == [("user", "one"), ("assistant", "echo: one")]
        assert runtime.snapshot("k").signature == builder.specs[1].signature
        assert (old.closed, len(old.turns), len(new.turns)) == (1, 1, 3)
        await runtime.new_session("k")
        prompt.append("newest")
        assert (await runtime.ask("k", "on B")).build_reason == "signature"
        assert builds(runtime) == {"cold": 1, "signature": 2}
    assert [agent.closed for agent in builder.agents] == [1, 1, 1]


async def test_another_person_at_the_same_key_is_another_signature(start):
    async with start() as runtime:
        build_reason = [
            (await runtime.ask("k", "hi", source=Source(user_id=user))).build_reason
            for user in ("ann", "ann", "bob", "bob")
        ]
        assert build_reason == ["cold", None, "signature", None]


async def test_what_may_change_with_every_turn_is_no_signature(start):
    async with start() as runtime:
        for number in range(3):
            source = Source(chat_id=f"{number}", thread_id=f"{number}", user_name=f"{number}")
            await runtime.ask("k", "hi", source=source)
        assert builds(runtime) == {"cold": 1}


async def test_an_evicted_agent_is_rebuilt_with_that_reason_and_closed_once(start):
    builder = witnesses()
    async with start(agent=builder, config=Config(max_agents=1)) as runtime:
        await runtime.ask("k1", "one")
        await runtime.ask("k2", "two")
        runtime.passivate()
        assert runtime.snapshot("k1") is None, "the one that was used least lately"
        assert (await runtime.ask("k2", "stays")).build_reason is None
        reply = await runtime.ask("k1", "comes back")
        assert reply.build_reason == "evicted"
        assert builder.agents[2].shown == [[("user", "one"), ("assistant", "echo: one")]]
        assert builder.agents[0].closed == 1
        assert (await runtime.ask("k1", "stays")).build_reason is None
        assert builds(runtime) == {"cold": 2, "evicted": 1}
    assert [agent.closed for agent in builder.agents] == [1, 1, 1]


async def test_no_agent_is_evicted_or_closed_under_its_turn(start):
    async def evict(turn):
        runtime.passivate()
        closed.append(builder.agents[0].closed)

    closed = []
    builder = witnesses([evict, "one"])
    async with start(agent=builder, config=Config(max_agents=0)) as runtime:
        await runtime.ask("k", "1")
        assert closed == [0]
        assert runtime.snapshot("k").agent is builder.agents[0]


async def test_an_idle_actor_ends_and_the_next_one_starts_cold(start):
    builder = witnesses()
    async with start(agent=builder, config=Config(idle_timeout=0)) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        runtime.passivate()
        assert runtime.snapshot("k") is None
        reply = await runtime.ask("k", "two")
        assert (reply.session_id, reply.build_reason) == (session_id, "cold")
        assert builder.agents[1].shown == [[("user", "one"), ("assistant", "echo: one")]]
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def test_an_actor_that_works_on_a_request_is_not_passivated(start):
    begun, go_on = trio.Event(), trio.Event()

    @attrs.define
    class Slow(DeterministicCompressor):
        async def summarize(self, request):
            begun.set()
            await go_on.wait()
            return await super().summarize(request)

    builder = witnesses()
    async with start(agent=builder, compressor=Slow(), config=Config(idle_timeout=3600)) as runtime:
        for _ in range(5):
            await runtime.ask("k", LONG)
        actor = runtime._supervisor.find("k")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: runtime.compress("k", keep_exchanges=1))
            await begun.wait()
            idle = actor.idle
            go_on.set()
        assert not idle


async def test_a_restart_is_cold_once(start):
    async with start() as runtime:
        await runtime.ask("k", "one")
    async with start() as runtime:
        assert [(await runtime.ask("k", "x")).build_reason for _ in range(3)] == [
            "cold",
            None,
            None,
        ]


# Agents that the host has built


def adopted(count=None, session_id=None):
    agent = Witness()
    return agent, Snapshot(agent, agent_signature(), count, session_id)


async def test_an_adopted_agent_of_which_nothing_is_known_is_reused_unguarded(start, elsewhere):
    agent, snapshot = adopted()
    builder = witnesses()
    async with start(agent=builder) as runtime:
        await runtime.adopt("k", snapshot)
        session_id = (await runtime.ask("k", "one")).session_id
        for number in range(3):
            elsewhere(session_id, f"store.append_message(sid, 'user', 'theirs {number}')")
            assert (await runtime.ask("k", f"{number}")).build_reason is None
            assert ("user", f"theirs {number}") in agent.shown[-1], "the history is right anyway"
        assert runtime.snapshot("k").message_count is None
        assert builds(runtime) == {}
    assert (len(builder), agent.closed) == (0, 1)


async def test_an_adopted_agent_with_a_session_but_no_count_is_reused_unguarded(start, elsewhere):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
    agent, snapshot = adopted(None, session_id)
    async with start() as runtime:
        await runtime.adopt("k", snapshot)
        elsewhere(session_id, APPEND)
        assert (await runtime.ask("k", "two")).build_reason is None
        assert runtime.snapshot("k").agent is agent


@pytest.mark.parametrize("known", [True, False], ids=["session known", "session unknown"])
async def test_an_adopted_count_that_is_right_is_reused_and_guarded_from_then_on(
    start, elsewhere, known
):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
    agent, snapshot = adopted(2, session_id if known else None)
    async with start() as runtime:
        await runtime.adopt("k", snapshot)
        assert (await runtime.ask("k", "two")).build_reason is None
        assert runtime.snapshot("k") == Snapshot(agent, agent_signature(), 4, session_id)
        elsewhere(session_id, CHANGES["rewrite of equal length"])
        assert (await runtime.ask("k", "three")).build_reason == "foreign-write"
        assert agent.closed == 1


@pytest.mark.parametrize("known", [True, False], ids=["session known", "session unknown"])
async def test_an_adopted_count_that_is_stale_is_rebuilt_at_once(start, known):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
    _, snapshot = adopted(0, session_id if known else None)
    async with start() as runtime:
        await runtime.adopt("k", snapshot)
        assert (await runtime.ask("k", "two")).build_reason == "foreign-write"
        assert (await runtime.ask("k", "three")).build_reason is None


@pytest.mark.parametrize("known", [True, False], ids=["session known", "session unknown"])
async def test_an_adopted_count_is_what_counts_although_another_agent_had_turns_here(start, known):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        _, snapshot = adopted(0, session_id if known else None)
        await runtime.adopt("k", snapshot)
        assert (await runtime.ask("k", "two")).build_reason == "foreign-write"


async def test_an_adopted_agent_of_another_session_is_reused(start):
    agent, snapshot = adopted(7, "another session")
    async with start() as runtime:
        await runtime.adopt("k", snapshot)
        session_id = (await runtime.ask("k", "one")).session_id
        assert runtime.snapshot("k") == Snapshot(agent, agent_signature(), 2, session_id)
        assert builds(runtime) == {}


async def test_an_adopted_agent_with_another_signature_is_rebuilt(start):
    agent = Witness()
    async with start() as runtime:
        await runtime.adopt("k", Snapshot(agent, "of another model"))
        assert (await runtime.ask("k", "one")).build_reason == "signature"
    assert agent.closed == 1


async def test_adopting_closes_the_agent_that_was_there_once(start):
    agent, snapshot = adopted()
    builder = witnesses()
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "one")
        await runtime.adopt("k", snapshot)
        assert (await runtime.ask("k", "two")).build_reason is None
        assert builder.agents[0].closed == 1
    assert (builder.agents[0].closed, agent.closed) == (1, 1)


async def test_adopting_the_agent_that_is_there_does_not_close_it(start):
    builder = witnesses()
    async with start(agent=builder) as runtime:
        await runtime.ask("k", "one")
        await runtime.adopt("k", replace(runtime.snapshot("k"), message_count=None))
        assert (await runtime.ask("k", "two")).build_reason is None
        assert builder.agents[0].closed == 0


# An agent that is still being built


@attrs.define
class SlowBuilder:
    """Builds when it is told to."""

    begun: trio.Event = attrs.Factory(trio.Event)
    go_on: trio.Event = attrs.Factory(trio.Event)
    agents: list = attrs.Factory(list)

    async def __call__(self, spec: AgentSpec):
        self.begun.set()
        await self.go_on.wait()
        self.agents.append(Witness())
        return self.agents[-1]


async def test_an_agent_that_is_still_being_built_is_left_alone(start):
    builder = SlowBuilder()
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", "1"))

    async with start(agent=builder, config=Config(max_agents=0, idle_timeout=0)) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await builder.begun.wait()
            actor = runtime._supervisor.find("k")
            runtime.passivate()
            status = await runtime.status("k")
            receipt = await runtime.submit(Inbound("k", "e", "2"))
            assert runtime._supervisor.find("k") is actor
            assert runtime.snapshot("k") is None
            assert actor.cache.baseline(status.session_id) is None
            assert builds(runtime) == {}
            with runtime.events("k") as heard:
                builder.go_on.set()
                replies.append(await reply_to(heard, receipt))
        assert [reply.build_reason for reply in sorted(replies, key=lambda r: r.turn_id)] == [
            "cold", None,
        ]  # fmt: skip
        assert len(builder.agents) == 1


async def test_a_foreign_write_while_the_agent_is_built_is_seen_by_the_next_turn(start, elsewhere):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "0")).session_id
    builder = SlowBuilder()
    async with start(agent=builder) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "1")
            await builder.begun.wait()
            elsewhere(session_id, APPEND)
            builder.go_on.set()
        assert runtime.snapshot("k").message_count == 2
        assert (await runtime.ask("k", "2")).build_reason == "foreign-write"
        assert ("user", "theirs") in builder.agents[1].shown[0]
        assert (await runtime.ask("k", "3")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


async def test_an_interrupted_build_is_begun_again_for_the_same_reason(start):
    builder = SlowBuilder()
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", "1"))

    async with start(agent=builder) as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await builder.begun.wait()
            assert await runtime.interrupt("k")
        assert (replies[0].status, builds(runtime)) == ("interrupted", {})
        builder.go_on.set()
        assert (await runtime.ask("k", "2")).build_reason == "cold"
        assert builds(runtime) == {"cold": 1}


async def test_a_builder_that_fails_is_asked_again_for_the_same_reason(start, elsewhere):
    broken = [False]

    def make(spec):
        if broken[0]:
            raise OSError("no model today")
        return Witness()

    builder = CountingBuilder(make)
    async with start(agent=builder) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        elsewhere(session_id, APPEND)
        broken[0] = True
        assert (await runtime.ask("k", "two")).status == "failed"
        broken[0] = False
        assert (await runtime.ask("k", "three")).build_reason == "foreign-write"
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}
        assert builder.agents[0].closed == 1


# Any number of these things in any order

OPERATIONS = (
    "turn", "turn", "turn", "meanwhile", "new", "close", "switch", "switch", "branch", "append",
    "edit", "rewind", "rewrite", "title", "undo", "retry", "retry_meanwhile", "compress", "rotate",
    "rotate_meanwhile", "evict", "sign", "status",
)  # fmt: skip


@attrs.define
class Desk:
    """What the agents of a walk share."""

    prompt: int = 0
    meanwhile: object = None
    goes_on_in: str | None = None


@attrs.define
class Shared(Witness):
    """Lets somebody else write while it answers, if that is wanted."""

    desk: Desk = attrs.field(kw_only=True)

    async def run(self, turn):
        reply = await super().run(turn)
        if self.desk.meanwhile is not None:
            self.desk.meanwhile(turn.session_id)
        return replace(reply, session_id=self.desk.goes_on_in)


class Walk:
    """A conversation partner, somebody else at the same file, and what must come of both."""

    def __init__(self, runtime, store, builder, desk):
        self.runtime, self.store, self.builder, self.desk = runtime, store, builder, desk
        self.rows = {}
        self.stored = []  # sessions that can be switched to
        self.ended = set()
        self.here = None
        self.last = None  # the session of the last turn
        self.lost = "cold"  # why there is no agent
        self.signature = 0
        self.news = set()
        self.number = 0

    def text(self):
        self.number += 1
        return f"{self.number} {LONG}"

    def expected(self):
        if self.lost is not None:
            return self.lost
        if self.signature != self.desk.prompt:
            return "signature"
        return "foreign-write" if self.last == self.here and self.here in self.news else None

    def turned(self, reply, expected, shown):
        assert (reply.session_id, reply.status) == (self.here, "complete")
        assert reply.build_reason == expected
        assert self.builder.agents[-1].shown[-1] == shown
        if self.here not in self.stored:
            self.stored.append(self.here)
        self.last, self.lost, self.signature = self.here, None, self.desk.prompt
        self.news.discard(self.here)
        self.ended.discard(self.here)

    async def turn(self, meanwhile=False):
        expected, text = self.expected(), self.text()
        theirs = self.text()
        if meanwhile:
            self.desk.meanwhile = lambda sid: self.store.append_message(sid, "assistant", theirs)
        reply = await self.runtime.ask("k", text)
        self.desk.meanwhile = None
        self.here = self.here or reply.session_id
        rows = self.rows.setdefault(self.here, [])
        self.turned(reply, expected, rows)
        if meanwhile:
            rows.append(("assistant", theirs))
            self.news.add(self.here)
        self.rows[self.here] = [*rows, ("user", text), ("assistant", f"echo: {text}")]

    async def meanwhile(self):
        if self.here in self.stored:
            await self.turn(meanwhile=True)

    async def rotate(self, meanwhile=False):
        """The agent goes on in a session of its own making."""
        expected, text, theirs = self.expected(), self.text(), self.text()
        self.desk.goes_on_in = child = f"made {self.number}"
        if meanwhile:
            self.desk.meanwhile = lambda sid: self.store.append_message(sid, "assistant", theirs)
        reply = await self.runtime.ask("k", text)
        self.desk.goes_on_in = self.desk.meanwhile = None
        parent, self.here = self.here, child
        self.turned(reply, expected, self.rows[parent])
        self.last = parent if meanwhile else child
        self.stored = [each for each in self.stored if each != parent]
        self.ended.add(parent)
        carried = [("assistant", theirs)] if meanwhile else []
        self.rows[child] = [*carried, ("user", text), ("assistant", f"echo: {text}")]

    async def rotate_meanwhile(self):
        if self.here in self.stored:
            await self.rotate(meanwhile=True)

    def question(self, rows):
        """Where the last thing that was asked begins and ends."""
        asked = [place for place, (role, _) in enumerate(rows) if role == "user"]
        if not asked or any(text.startswith("[CONTEXT") for _, text in rows):
            return None
        first = last = asked[-1]
        while first > 0 and rows[first - 1][0] == "user":
            first -= 1
        return first, last

    async def retry(self, meanwhile=False):
        rows = self.rows[self.here]
        if (question := self.question(rows)) is None:
            return
        first, last = question
        expected, theirs = self.expected(), self.text()
        if meanwhile:
            self.desk.meanwhile = lambda sid: self.store.append_message(sid, "assistant", theirs)
        reply = await self.runtime.retry("k")
        self.desk.meanwhile = None
        self.turned(reply, expected, rows[:first])
        said = "\n\n".join(text for _, text in rows[first : last + 1])
        news = [("assistant", theirs)] if meanwhile else []
        self.rows[self.here] = [
            *rows[:first], *news, *rows[first : last + 1], ("assistant", f"echo: {said}"),
        ]  # fmt: skip
        self.news |= {self.here} if meanwhile else set()

    async def undo(self):
        rows = self.rows[self.here]
        if (question := self.question(rows)) is not None:
            await self.runtime.undo("k")
            self.rows[self.here] = rows[: question[1]]

    async def new(self):
        self.ended.add(self.here)
        self.here = (await self.runtime.new_session("k")).session_id
        self.rows[self.here] = []

    async def close(self):
        self.ended.add(self.here)
        assert await self.runtime.close("k") == self.here
        self.here = self.store.get_route("k").session_id
        self.rows[self.here] = []

    async def switch(self, choice):
        self.here = self.stored[choice % len(self.stored)]
        assert (await self.runtime.switch("k", self.here)).session_id == self.here
        self.ended.discard(self.here)

    async def branch(self):
        if self.here in self.stored:
            rows = self.rows[self.here]
            self.here = await self.runtime.branch("k")
            self.stored.append(self.here)
            self.rows[self.here] = list(rows)

    async def compress(self):
        outcome = await self.runtime.compress("k", keep_exchanges=1)
        if isinstance(outcome, Compressed):
            self.stored.remove(self.here)
            self.ended.add(self.here)
            self.here = outcome.rotated.session_id
            self.stored.append(self.here)
            self.rows[self.here] = texts_of(self.store.get_messages(self.here))

    def change(self, operation, choice):
        """Somebody else changes a transcript."""
        session_id = self.stored[choice % len(self.stored)]
        rows, text = self.rows[session_id], self.text()
        if session_id in self.ended or not rows:
            return
        ids = [row.id for row in self.store.get_messages(session_id)]
        if operation == "append":
            self.store.append_message(session_id, "assistant", text)
            rows = [*rows, ("assistant", text)]
        elif operation == "edit":
            self.store.edit_message(session_id, ids[0], text)
            rows = [(rows[0][0], text), *rows[1:]]
        elif operation == "rewind":
            self.store.rewind(session_id, ids[-1])
            rows = rows[:-1]
        else:
            self.store.rewind(session_id, self.store.append_message(session_id, "user").message_id)
        self.rows[session_id] = rows
        self.news.add(session_id)

    async def retry_meanwhile(self):
        await self.retry(meanwhile=True)

    async def title(self):
        self.store.set_session_title(self.here, self.text()[:20])

    async def evict(self):
        self.runtime.passivate()
        self.lost = self.lost or "evicted"

    async def sign(self):
        self.desk.prompt += 1

    async def status(self):
        assert (await self.runtime.status("k")).session_id == self.here

    async def step(self, operation, choice):
        if operation in {"append", "edit", "rewind", "rewrite"}:
            self.change(operation, choice)
        elif operation == "switch":
            await self.switch(choice)
        else:
            await getattr(self, operation)()


async def walk(path, steps):
    desk = Desk()
    builder = CountingBuilder(lambda _: Shared(desk=desk))
    async with open_runtime(
        path,
        agent=builder,
        describe=lambda key, _: AgentSpec(session_key=key, system_prompt=f"{desk.prompt}"),
        config=Config(max_agents=0),
        compressor=DeterministicCompressor(),
        clock=World().clock,
        open_worker=inline(),
    ) as runtime:
        with SessionStore(path) as store:
            walked = Walk(runtime, store, builder, desk)
            await walked.turn()
            for operation, choice in steps:
                await walked.step(operation, choice)
            await walked.turn()
    assert all(agent.closed == 1 for agent in builder.agents)


STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5)), min_size=6, max_size=30)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=40)
@given(steps=STEPS)
@example(steps=[("new", 0), ("turn", 0), ("append", 0), ("switch", 0), ("turn", 0), ("turn", 0)])
@example(steps=[("branch", 0), ("meanwhile", 0), ("turn", 0)])
@example(steps=[("rotate", 0), ("append", 0), ("turn", 0)])
@example(steps=[("retry_meanwhile", 0), ("turn", 0)])
@example(steps=[("turn", 0), ("edit", 0), ("undo", 0), ("turn", 0)])
def test_any_walk_is_shown_the_right_history_and_rebuilt_for_the_right_reasons(
    tmp_path_factory, steps
):
    trio.run(walk, tmp_path_factory.mktemp("walk") / "state.db", steps)
