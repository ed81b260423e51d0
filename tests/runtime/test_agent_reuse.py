"""The cached agent of a conversation: it is reused, and rebuilt for a few reasons only."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes.config import CompressionConfig, Config
from hermes.errors import ContextOverflow
from hermes.messages import (
    AgentSpec,
    Head,
    Snapshot,
    Source,
)
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    ScriptedAgent,
    inspect,
    texts_of,
)

# Reuse
from tests.support.conversations import release_transcripts
from tests.support.other_process import every_other_change
from tests.support.recording import DEFAULT_SIGNATURE, LONG, SMALL_WINDOW, builds, recording_builder
from tests.support.runtime import with_threads


@with_threads
async def test_a_hundred_switches_between_two_sessions_use_one_agent(start):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        expected = {}
        for name in ("A", "B"):
            session_id = (await runtime.ask("k", f"I am {name}")).session_id
            expected[session_id] = [("user", f"I am {name}"), ("assistant", f"echo: I am {name}")]
            await runtime.conversation("k").new()
        agent = runtime.conversation("k").snapshot().agent
        for number in range(100):
            session_id = list(expected)[number % 2]
            await runtime.conversation("k").switch(session_id)
            reply = await runtime.ask("k", f"{number}")
            assert (reply.session_id, reply.build_reason) == (session_id, None)
            assert agent.shown[-1] == expected[session_id]
            assert runtime.conversation("k").snapshot() == Snapshot(
                agent, DEFAULT_SIGNATURE, len(expected[session_id]) + 2, session_id
            )
            expected[session_id] += [("user", f"{number}"), ("assistant", f"echo: {number}")]
        assert builds(runtime) == {"cold": 1}
    assert (len(builder), agent.closed) == (1, 1)


async def test_commands_that_change_the_session_keep_the_agent(start):
    builder = recording_builder()
    async with start(build_agent=builder, compressor=DeterministicCompressor()) as runtime:
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


async def test_automatic_compression_keeps_the_agent(start):
    builder = recording_builder()
    async with start(
        build_agent=builder, compressor=DeterministicCompressor(), config=SMALL_WINDOW
    ) as runtime:
        sessions = Counter([(await runtime.ask("k", LONG)).session_id for _ in range(20)])
        assert len(sessions) > 2, "it was compressed more than once"
        assert builds(runtime) == {"cold": 1}
    assert len(builder) == 1


async def test_more_sessions_than_the_cache_holds_keep_the_agent(start):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        visited = []
        for number in range(20):
            visited.append((await runtime.ask("k", f"of {number}")).session_id)
            await runtime.conversation("k").new()
        for _ in range(2):
            for number, session_id in enumerate(visited):
                await runtime.conversation("k").switch(session_id)
                assert (await runtime.ask("k", "again")).build_reason is None
                assert builder.agents[0].shown[-1][0] == ("user", f"of {number}")
        assert builds(runtime) == {"cold": 1}


async def test_a_turn_on_one_session_leaves_the_baseline_of_another(start):
    async with start() as runtime:
        a = (await runtime.ask("k", "on A")).session_id
        await runtime.conversation("k").new()
        known = inspect(runtime).baseline("k", a)
        assert known == Head(a, 2, 1)
        b = (await runtime.ask("k", "on B")).session_id
        await runtime.ask("k", "on B again")
        assert inspect(runtime).baseline("k", a) is known
        assert inspect(runtime).baseline("k", b) == Head(b, 4, 2)
        assert runtime.conversation("k").snapshot().session_id == b
        await runtime.conversation("k").switch(a)
        assert inspect(runtime).baseline("k", a) is known
        assert runtime.conversation("k").snapshot().session_id == b, (
            "a switch does not change the snapshot"
        )


@every_other_change
async def test_changes_outside_the_transcript_keep_the_agent(start, in_other_process, change):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        agent = runtime.conversation("k").snapshot().agent
        in_other_process(session_id, change)
        for number in range(3):
            reply = await runtime.ask("k", f"{number}")
            assert (reply.session_id, reply.build_reason) == (session_id, None)
        assert runtime.conversation("k").snapshot().agent is agent
        assert builds(runtime) == {"cold": 1}


async def test_failed_and_interrupted_turns_keep_the_agent(start):
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
            await runtime.conversation("k").interrupt()
        assert (await runtime.ask("k", "end")).build_reason is None
        assert shown[-1] == [
            ("user", "begin"), ("assistant", "fine"), ("user", "fail"), ("user", "hang"),
        ]  # fmt: skip
        assert builds(runtime) == {"cold": 1}


async def test_a_turn_that_runs_twice_reports_why_its_agent_was_built(start):
    keep_little = Config(compression=CompressionConfig(tail_share=0.001, protect_first=0))
    options = {"compressor": DeterministicCompressor(), "config": keep_little}
    async with start(**options) as runtime:
        for _ in range(5):
            await runtime.ask("k", LONG)
    async with start(
        build_agent=recording_builder(ContextOverflow("too much"), "fine"), **options
    ) as runtime:
        reply = await runtime.ask("k", "hello")
        assert (reply.text, builds(runtime)) == ("fine", {"cold": 1})
        assert reply.build_reason == "cold"


ODD = {
    "plain": {"text": "hello"},
    "unpaired surrogate": {"text": "hello \ud800"},
    "parts": {"text": "", "parts": [{"type": "text", "text": "hello"}]},
}


@pytest.mark.parametrize("odd", ODD)
async def test_the_history_is_the_same_from_memory_and_from_the_file(start, odd):
    shown = []

    async def reply(turn):
        shown.append([(m.role, m.content, m.timestamp, m.parts) for m in turn.history])
        return "fine"

    async with start(agent=reply, config=Config(transcript_bytes=50_000)) as runtime:
        await runtime.ask("k", **ODD[odd])
        await runtime.ask("k", "from memory")
        await release_transcripts(runtime)
        await runtime.ask("k", "from the file")
    assert shown[1] == shown[3][:2]


async def test_titles_undo_and_retry_keep_the_agent(start):
    builder = recording_builder("one", "two", "two again", "three")
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "1")
        await runtime.conversation("k").set_title("mine")
        await runtime.ask("k", "2")
        assert (await runtime.conversation("k").retry()).build_reason is None
        await runtime.conversation("k").undo()
        assert (await runtime.ask("k", "3")).build_reason is None
        assert builder.agents[0].shown[-1] == [("user", "1"), ("assistant", "one")]
        assert builds(runtime) == {"cold": 1}


# Rebuilds: signature, eviction, restart


async def test_another_signature_rebuilds_once_and_closes_the_old_agent_once(start):
    prompt = ["old"]

    def describe(key, source):
        return AgentSpec(session_key=key, system_prompt=prompt[-1])

    builder = recording_builder()
    async with start(build_agent=builder, agent_spec=describe) as runtime:
        a = (await runtime.ask("k", "one")).session_id
        prompt.append("new")
        replies = [await runtime.ask("k", f"{number}") for number in range(3)]
        assert [reply.build_reason for reply in replies] == ["signature", None, None]
        assert {reply.session_id for reply in replies} == {a}
        old, new = builder.agents
        assert new.shown[0] == [("user", "one"), ("assistant", "echo: one")]
        assert runtime.conversation("k").snapshot().signature == builder.specs[1].signature
        assert (old.closed, len(old.turns), len(new.turns)) == (1, 1, 3)
        await runtime.conversation("k").new()
        prompt.append("newest")
        assert (await runtime.ask("k", "on B")).build_reason == "signature"
        assert builds(runtime) == {"cold": 1, "signature": 2}
    assert [agent.closed for agent in builder.agents] == [1, 1, 1]


async def test_another_user_has_another_signature(start):
    async with start() as runtime:
        build_reason = [
            (await runtime.ask("k", "hi", source=Source(user_id=user))).build_reason
            for user in ("ann", "ann", "bob", "bob")
        ]
        assert build_reason == ["cold", None, "signature", None]


async def test_chat_thread_and_user_name_are_not_part_of_the_signature(start):
    async with start() as runtime:
        for number in range(3):
            source = Source(chat_id=f"{number}", thread_id=f"{number}", user_name=f"{number}")
            await runtime.ask("k", "hi", source=source)
        assert builds(runtime) == {"cold": 1}


@with_threads
async def test_an_evicted_agent_is_closed_once_and_rebuilt(start):
    builder = recording_builder()
    async with start(build_agent=builder, config=Config(max_agents=1)) as runtime:
        await runtime.ask("k1", "one")
        await runtime.ask("k2", "two")
        await inspect(runtime).wait_idle("k1")
        assert runtime.conversation("k1").snapshot() is None, "the least recently used"
        assert (await runtime.ask("k2", "stays")).build_reason is None
        reply = await runtime.ask("k1", "comes back")
        assert reply.build_reason == "evicted"
        assert builder.agents[2].shown == [[("user", "one"), ("assistant", "echo: one")]]
        assert builder.agents[0].closed == 1
        assert (await runtime.ask("k1", "stays")).build_reason is None
        assert builds(runtime) == {"cold": 2, "evicted": 1}
    assert [agent.closed for agent in builder.agents] == [1, 1, 1]


async def test_an_agent_is_not_evicted_during_its_turn(start):
    async def evict(turn):
        await runtime.ask("other", "2")
        await inspect(runtime).wait_idle("other")
        await wait_all_tasks_blocked()  # agents are closed in the background
        closed.extend(agent.closed for agent in builder.agents)

    closed = []
    script = {"k": [[evict, "one"]], "other": ["two"]}
    builder = CountingBuilder(lambda spec: ScriptedAgent(script[spec.session_key]))
    async with start(build_agent=builder, config=Config(max_agents=1)) as runtime:
        await runtime.ask("k", "1")
        assert closed == [0, 1]
        await inspect(runtime).wait_idle("k")
        assert runtime.conversation("k").snapshot().agent is builder.agents[0]


async def test_after_passivation_the_agent_is_built_cold(start):
    builder = recording_builder()
    async with start(build_agent=builder, config=Config(idle_timeout=0)) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        runtime.admin.passivate()
        assert runtime.conversation("k").snapshot() is None
        reply = await runtime.ask("k", "two")
        assert (reply.session_id, reply.build_reason) == (session_id, "cold")
        assert builder.agents[1].shown == [[("user", "one"), ("assistant", "echo: one")]]
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def test_an_actor_with_a_running_request_is_not_idle(start):
    started, go_on = trio.Event(), trio.Event()

    @attrs.define
    class Slow(DeterministicCompressor):
        async def summarize(self, request):
            started.set()
            await go_on.wait()
            return await super().summarize(request)

    builder = recording_builder()
    async with start(
        build_agent=builder, compressor=Slow(), config=Config(idle_timeout=3600)
    ) as runtime:
        for _ in range(5):
            await runtime.ask("k", LONG)
        actor = inspect(runtime).actor("k")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: runtime.conversation("k").compress(keep_exchanges=1))
            await started.wait()
            idle = actor.idle
            go_on.set()
        assert not idle


@with_threads
async def test_after_a_restart_the_agent_is_built_once(start):
    async with start() as runtime:
        await runtime.ask("k", "one")
    async with start() as runtime:
        assert [(await runtime.ask("k", "x")).build_reason for _ in range(3)] == [
            "cold",
            None,
            None,
        ]
