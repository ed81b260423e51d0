"""Input during a compression, and retry and undo after one."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes.config import Config
from hermes.errors import ContextOverflow
from hermes.messages import (
    TurnResult,
)
from hermes.store import SessionStore
from tests.support.compression import (
    KEEP_TAIL,
    OVER,
    ROTATE,
    SMALL,
    Gate,
    RecordingAgent,
    ScriptedCompressor,
    collect,
    contents,
    during_compression,
    elsewhere,
    lineage,
    numbers,
    problems,
    question,
    rows_in,
    talk,
)
from tests.support.runtime import threads_only, with_threads

# Input during a compression


@with_threads
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
    compressor = ScriptedCompressor(gate)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, runtime.ask, "k", question(10)) as first:
                second = []
                ask = lambda: runtime.ask("k", question(11), when_busy=busy)  # noqa: E731
                nursery.start_soon(collect, second, ask)
                await wait_all_tasks_blocked()
    assert [reply.status for reply in first + second] == statuses
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, *stored]
    assert problems(path) == []


async def test_input_during_a_requested_compression_is_answered_in_the_child(small, path):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, runtime.ask, "k", "/compress") as commands:
                replies = []
                ask = lambda: runtime.ask("k", question(10), when_busy="interrupt")  # noqa: E731
                nursery.start_soon(collect, replies, ask)
                await wait_all_tasks_blocked()
                assert not await runtime.conversation("k").interrupt()
    (command,), (reply,) = commands, replies
    assert "Compressed" in command.text
    assert (reply.status, reply.session_id) == ("complete", lineage(path)[-1])
    assert len(compressor) == 1
    assert problems(path) == []


@with_threads
async def test_an_interrupt_during_a_compression_stops_the_turn_and_not_the_compression(
    small, path
):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    agent = RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        await talk(runtime)
        async with during_compression(gate, runtime.ask, "k", question(10)) as replies:
            assert await runtime.conversation("k").interrupt()
            await wait_all_tasks_blocked()
            assert replies == []
        assert [reply.status for reply in replies] == ["interrupted"]
        assert len(agent.turn_ids) == 10
        assert (await runtime.ask("k", question(11))).status == "complete"
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, 10, 11]
    assert problems(path) == []


async def test_a_turn_interrupted_before_its_agent_starts_gets_a_reply(small):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        await talk(runtime)
        async with during_compression(gate, runtime.ask, "k", question(10)) as replies:
            await runtime.conversation("k").interrupt()
    assert "send it again" in replies[0].text


async def test_an_interrupt_during_the_compression_of_an_overflow_stops_the_second_try(small, path):
    gate = Gate()
    agent = RecordingAgent()
    async with small(compressor=ScriptedCompressor(gate), build_agent=lambda _: agent) as runtime:
        await talk(runtime, 6)
        agent.script.append(ContextOverflow("too long"))
        async with during_compression(gate, runtime.ask, "k", question(6)) as replies:
            assert await runtime.conversation("k").interrupt()
    assert [reply.status for reply in replies] == ["interrupted"]
    assert len(agent.turn_ids) == 7
    assert numbers(contents(path, lineage(path)[-1])) == [4, 5, 6]
    assert problems(path) == []


async def test_a_new_session_during_a_compression_waits_for_it(small, path):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, runtime.ask, "k", question(10)) as first:
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
    assert problems(path) == []


async def test_an_agent_that_compresses_its_own_conversation_is_refused(
    small, path, autojump_clock
):
    """It would wait for its own turn. A tool may try that."""

    async def compress(_):
        await runtime.conversation("k").compress()

    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        await talk(runtime, 5)
        agent.script.append(compress)
        begin = trio.current_time()
        reply = await runtime.ask("k", question(5))
        assert trio.current_time() - begin < 1
    assert reply.status == "failed"
    assert len(lineage(path)) == 1
    assert problems(path) == []


async def test_an_actor_is_not_passivated_while_it_compresses(small, path, autojump_clock):
    """Otherwise a second actor of the same key would run turns at the same time."""

    async def slowly(_):
        await trio.sleep(100)

    compressor = ScriptedCompressor(slowly)
    changes = []
    config = Config(compression=SMALL, idle_timeout=20.0)
    async with small(compressor=compressor, config=config) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, changes, runtime.conversation("k").compress)
            await trio.sleep(50)
            assert (await runtime.admin.statistics()).actors == 1
            await runtime.ask("k", question(10))
            assert compressor.together == 0
    assert [change.changed for change in changes] == [True]
    assert problems(path) == []


async def test_leaving_the_runtime_waits_for_a_compression(small, path, autojump_clock):
    async def slowly(_):
        await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        async with small(compressor=ScriptedCompressor(slowly)) as runtime:
            await talk(runtime)
            changes = []
            nursery.start_soon(collect, changes, runtime.conversation("k").compress)
            await trio.sleep(1)
    assert [change.changed for change in changes] == [True]
    assert problems(path) == []


# Retry and undo


async def test_a_retry_of_a_conversation_that_has_become_too_long_answers_it_again(small, path):
    """The first answer failed. The window is smaller now, so that it has to be compressed."""
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent, compressor=None) as runtime:
        await talk(runtime, 11)
        agent.script.append(TurnResult(failed=True, error="503: overloaded"))
        await runtime.ask("k", question(11))
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        reply = await runtime.ask("k", "/retry")
    assert (reply.status, reply.text) == ("complete", f"echo: {question(11)}")
    assert numbers(text for _, text in agent.shown[-1])[-1] == 10
    assert agent.sizes[-1] < OVER
    tip = lineage(path)[-1]
    assert numbers(contents(path, tip)).count(11) == 1
    assert contents(path, tip)[-2:] == [question(11), f"echo: {question(11)}"]
    assert problems(path) == []


async def test_a_retry_that_overflows_is_run_again_and_stored_once(small, path):
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        await talk(runtime, 7)
        agent.script.append(ContextOverflow("too long"))
        reply = await runtime.ask("k", "/retry")
    assert (reply.status, reply.text) == ("complete", f"echo: {question(6)}")
    assert numbers(text for _, text in agent.shown[-1])[-1] == 5
    tip = lineage(path)[-1]
    assert numbers(contents(path, tip)).count(6) == 1
    assert problems(path) == []


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_a_retry_during_which_another_process_rotates_is_answered(small, path, world, key):
    gate = Gate()
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        parent = (await talk(runtime, 4))[-1].session_id
        agent.script.append(gate)
        async with during_compression(gate, runtime.ask, "k", "/retry") as replies:
            winner = elsewhere(path, world, KEEP_TAIL + ROTATE, session_id=parent, key=key)
    (reply,) = replies
    assert (reply.status, reply.text) == ("complete", f"echo: {question(3)}")
    assert reply.session_id == winner
    summary, older, *retried = contents(path, winner)
    assert (summary, older) == ("the summary of another", f"echo: {question(2)}")
    assert retried == [question(3), f"echo: {question(3)}"]
    assert problems(path) == []


async def test_a_retry_after_a_compression_answers_again_in_the_child(small, path):
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        await talk(runtime, 11)
        parent, child = lineage(path)
        before = rows_in(path, parent)
        agent.script.append(TurnResult(text="better"))
        reply = await runtime.ask("k", "/retry")
    assert (reply.text, reply.session_id) == ("better", child)
    assert agent.shown[-1] == agent.shown[-2]
    assert contents(path, child)[-2:] == [question(10), "better"]
    assert rows_in(path, parent) == before
    assert lineage(path) == [parent, child]


async def test_undo_after_a_compression_takes_back_the_last_exchange(small, path):
    agent = RecordingAgent()
    async with small(build_agent=lambda _: agent) as runtime:
        await talk(runtime, 11)
        await runtime.ask("k", "/undo")
        await runtime.ask("k", question(20))
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9]
    assert problems(path) == []
