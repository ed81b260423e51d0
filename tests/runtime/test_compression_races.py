"""Compressions that race with each other, with other processes and with other changes."""

from __future__ import annotations

import functools

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes.actors.session.inbox import CAPACITY
from hermes.config import Config
from hermes.errors import CompressorFailed
from hermes.messages import (
    Inbound,
    Reply,
    SessionChange,
)
from hermes.store import Clock, SessionStore
from hermes.testing import CountingBuilder
from tests.support.compression import (
    FULL,
    ROTATE,
    SMALL,
    Gate,
    RecordingAgent,
    ScriptedCompressor,
    at_length,
    collect,
    contents,
    during_compression,
    elsewhere,
    failing,
    lineage,
    numbers,
    problems,
    question,
    rows_in,
    same,
    talk,
)
from tests.support.racing import racing
from tests.support.runtime import threads_only, with_threads

# Two compressions of one session


async def test_a_request_and_a_concurrent_turn_over_the_threshold_rotate_once(small, path):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            await runtime.submit(Inbound("k", "over", question(10)))
        last = await runtime.ask("k", question(11))
    assert [change.changed for change in changes] == [True]
    assert len(compressor) == 1
    assert problems(path) == []
    parent, child = lineage(path)
    assert last.session_id == child
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, child)) == [8, 9, 10, 11]


async def test_a_turn_over_the_threshold_and_a_concurrent_request_leave_one_lineage(small, path):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    changes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        await runtime.submit(Inbound("k", "over", question(10)))
        await gate.reached()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, changes, runtime.conversation("k").compress)
            await wait_all_tasks_blocked()
            gate.go.set()
    assert compressor.most_together == 1
    assert problems(path) == []
    line = lineage(path)
    assert len(line) == 1 + len(compressor)
    assert numbers(contents(path, line[0])) == list(range(10))
    assert numbers(contents(path, line[-1]))[-2:] == [9, 10]


@with_threads
async def test_two_requests_at_once_rotate_once_and_pay_for_one_summary(small, path):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    changes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, changes, runtime.conversation("k").compress)
            nursery.start_soon(collect, changes, runtime.conversation("k").compress)
            await gate.reached()
            await wait_all_tasks_blocked()
            gate.go.set()
        await runtime.ask("k", question(10))
    assert sorted(change.changed for change in changes) == [False, True]
    assert len(compressor) == 1
    assert len(lineage(path)) == 2
    assert problems(path) == []


async def test_a_second_request_says_what_came_first(small, path, world):
    """It would find something to summarize, since it keeps less."""
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    seconds = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        conversation = runtime.conversation("k")
        first = functools.partial(conversation.compress, keep_exchanges=4)
        second = functools.partial(conversation.compress, keep_exchanges=1)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, first) as firsts:
                nursery.start_soon(collect, seconds, second)
                nursery.start_soon(collect, seconds, runtime.ask, "k", "/compress here 1")
                await wait_all_tasks_blocked()
                world.pass_time(1)
        child = lineage(path)[-1]
        (change,) = [each for each in seconds if isinstance(each, SessionChange)]
        (reply,) = [each for each in seconds if isinstance(each, Reply)]
        assert [each.changed for each in firsts] == [True]
        assert (change.changed, change.session_id) == (False, child)
        assert change.detail == "Not compressed: already compressed by another request."
        assert reply.text == change.detail
        assert len(compressor) == 1
        world.pass_time(1)
        assert (await second()).changed
    assert len(lineage(path)) == 3
    assert problems(path) == []


@pytest.mark.parametrize(("then", "reason"), [
    (at_length, "the summary would not make it smaller"),
    (failing(CompressorFailed("it is out")), "it is out"),
])  # fmt: skip
async def test_a_second_request_does_not_pay_for_what_the_first_tried_in_vain(
    small, world, then, reason
):
    gate = Gate()

    async def wait_and_fail(request):
        await gate(request)
        return await then(request)

    compressor = ScriptedCompressor(wait_and_fail)
    changes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        compress = runtime.conversation("k").compress
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, compress):
                nursery.start_soon(collect, changes, compress)
                await wait_all_tasks_blocked()
                world.pass_time(1)
    assert len(compressor) == 1
    assert [each.changed for each in changes] == [False]
    assert changes[0].detail == (
        f"Not compressed: another request has just tried it without success ({reason})."
    )


async def test_calls_are_ordered_although_the_clock_is_set_back(small, world):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    changes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        compress = functools.partial(runtime.conversation("k").compress, keep_exchanges=1)
        first = functools.partial(runtime.conversation("k").compress, keep_exchanges=4)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, first):
                nursery.start_soon(collect, changes, compress)
                await wait_all_tasks_blocked()
                world.now -= 60
        assert [each.changed for each in changes] == [False], "it was asked for before"
        world.now -= 60
        assert (await compress()).changed, "it was asked for later"
    assert len(compressor) == 2


@pytest.mark.parametrize("jump", [-3600, 0, 3600])
@pytest.mark.parametrize("first", ["/compress here 4", question(10)])
async def test_commands_are_ordered_although_the_clock_jumps(small, path, world, first, jump):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    seconds = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, runtime.ask, "k", first):
                nursery.start_soon(collect, seconds, runtime.ask, "k", "/compress here 1")
                await wait_all_tasks_blocked()
                world.now += jump
        what = "a turn" if first == question(10) else "another request"
        done = f"Not compressed: already compressed by {what}."
        assert [reply.text for reply in seconds] == [done], "it was asked for before"
        assert len(compressor) == 1
        world.now += jump
        await runtime.ask("k", "/compress here 1")
        assert len(compressor) == 2, "it was asked for later"
    assert problems(path) == []


async def test_a_command_that_found_the_queue_full_is_ordered_as_it_was_accepted(small, path):
    """It is fetched from the store after the compression."""
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    replies = []
    config = Config(compression=SMALL, max_queued=2 * CAPACITY)
    async with small(compressor=compressor, config=config) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, runtime.ask, "k", "/compress here 4"):
                for number in range(CAPACITY):
                    await runtime.submit(Inbound("k", f"status {number}", "/usage", command=True))
                nursery.start_soon(collect, replies, runtime.ask, "k", "/compress here 1")
                await wait_all_tasks_blocked()
    done = "Not compressed: already compressed by another request."
    assert [reply.text for reply in replies] == [done]
    assert len(compressor) == 1


async def test_a_command_of_an_earlier_process_is_skipped_after_a_turn_that_compressed(small, path):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
    with SessionStore(path) as store:
        store.accept(Inbound("k", "turn", question(10)))
        receipt = store.accept(Inbound("k", "e", "/compress here 1", command=True)).receipt
    async with small(compressor=compressor) as runtime:
        reply = await runtime.wait(receipt, timeout=20)
    assert reply.text == "Not compressed: already compressed by a turn."
    assert len(compressor) == 1


async def test_a_request_during_a_turn_that_compresses_says_so(small, path, world):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    changes = []
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        compress = functools.partial(runtime.conversation("k").compress, keep_exchanges=1)
        async with trio.open_nursery() as nursery:
            async with during_compression(gate, runtime.ask, "k", question(10)):
                nursery.start_soon(collect, changes, compress)
                await wait_all_tasks_blocked()
                world.pass_time(1)
    assert len(compressor) == 1
    assert changes[0].detail == "Not compressed: already compressed by a turn."
    assert changes[0].session_id == lineage(path)[-1]


async def test_late_requests_do_not_end_automatic_compression(small, path):
    """A request right after a compression does not count as a useless compression."""
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await talk(runtime)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(runtime.conversation("k").compress)
        assert (await runtime.conversation("k").status()).compression_note is None
        await talk(runtime, 10, first=10)
    assert len(compressor) == 2
    assert len(lineage(path)) == 3


async def test_asking_twice_in_a_short_conversation_does_not_end_automatic_compression(small):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        await runtime.ask("k", question(0))
        for _ in range(2):
            assert "nothing to summarize" in (await runtime.ask("k", "/compress")).text
        await talk(runtime, FULL, first=1)
        assert len(compressor) == 1


async def two_keys_on_one_session(runtime):
    """Start a conversation, and point a background key at its session."""
    parent = (await talk(runtime))[-1].session_id
    await runtime.admin.switch("k:background:1", parent)
    return parent


@with_threads
async def test_two_keys_that_compress_one_session_at_once_leave_one_child(small, path):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    changes = []
    async with small(compressor=compressor) as runtime:
        parent = await two_keys_on_one_session(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, changes, runtime.conversation("k").compress)
            nursery.start_soon(collect, changes, runtime.conversation("k:background:1").compress)
            await gate.reached()
            await wait_all_tasks_blocked()
            gate.go.set()
        replies = [await runtime.ask(key, question(10)) for key in ("k", "k:background:1")]
    assert sorted(change.changed for change in changes) == [False, True]
    first, child = lineage(path)
    assert first == parent
    assert [reply.session_id for reply in replies] == [child, child]
    assert numbers(contents(path, child)) == [8, 9, 10, 10]
    assert problems(path) == []


async def test_two_keys_that_compress_one_session_at_once_pay_for_one_summary(small):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    async with small(compressor=compressor) as runtime:
        await two_keys_on_one_session(runtime)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.conversation("k").compress)
            nursery.start_soon(runtime.conversation("k:background:1").compress)
            await gate.reached()
            await wait_all_tasks_blocked()
            gate.go.set()
    assert len(compressor) == 1


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_another_process_that_rotates_during_our_summary_wins(small, path, world, key):
    gate = Gate()
    compressor = ScriptedCompressor(gate)
    agent = RecordingAgent()
    builder = CountingBuilder(lambda _: agent)
    async with small(compressor=compressor, build_agent=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            winner = elsewhere(path, world, ROTATE, session_id=parent, key=key)
        reply = await runtime.ask("k", question(10))
    (change,) = changes
    assert (change.changed, change.detail) == (False, "Not compressed: it was already compressed.")
    assert (change.old_session_id, change.session_id) == (parent, winner)
    assert reply.session_id == winner
    assert reply.build_reason is None
    assert agent.shown[-1] == [("user", "the summary of another")]
    assert agent.sessions[-1] == (winner, winner)
    assert lineage(path) == [parent, winner]
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, winner)) == [10]
    assert len(compressor) == 1
    assert len(builder) == 1
    assert problems(path) == []


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_a_turn_whose_session_was_rotated_elsewhere_is_answered_in_the_winners_child(
    small, path, world, key
):
    gate = Gate()
    agent = RecordingAgent()
    builder = CountingBuilder(lambda _: agent)
    async with small(compressor=ScriptedCompressor(gate), build_agent=builder) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.ask, "k", question(10)) as replies:
            winner = elsewhere(path, world, ROTATE, session_id=parent, key=key)
        await runtime.ask("k", question(11))
    assert [(reply.status, reply.session_id) for reply in replies] == [("complete", winner)]
    assert lineage(path) == [parent, winner]
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, winner)) == [10, 11]
    assert agent.shown[-1][0] == ("user", "the summary of another")
    assert len(agent.turn_ids[10:-1]) == 1
    assert len(builder) == 1
    assert problems(path) == []


@threads_only
@pytest.mark.parametrize("key", ["k", None])
async def test_no_summary_is_paid_for_a_session_that_was_compressed_elsewhere(
    small, path, world, key
):
    compressor = ScriptedCompressor()
    async with small(compressor=compressor) as runtime:
        parent = (await talk(runtime))[-1].session_id
        winner = elsewhere(path, world, ROTATE, session_id=parent, key=key)
        await runtime.conversation("k").compress()
    assert parent not in [request.session_id for request in compressor.requests]
    assert lineage(path) == [parent, winner]


@threads_only
async def test_our_rotations_and_those_of_another_process_never_fork(small, path):
    """Both rotate at the same moment, again and again, without leases."""
    rounds = 12
    changes = []
    with racing(path, ["other"]) as (other,):
        async with small(clock=Clock()) as runtime:
            for number in range(rounds):
                key = f"k{number}"
                parent = (await talk(runtime, 6, key=key))[-1].session_id
                await trio.to_thread.run_sync(lambda p=parent: other.ask("prepare", p))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collect, changes, runtime.conversation(key).compress)
                    other.send("rotate")
                    answer = await trio.to_thread.run_sync(other.receive)
                change = changes[-1]
                assert answer.get("rotated") != change.changed, (answer, change)
                reply = await runtime.ask(key, question(99))
                assert reply.status == "complete"
    for number in range(rounds):
        parent, child = lineage(path, f"k{number}")
        assert numbers(contents(path, parent)) == list(range(6))
        assert numbers(contents(path, child))[-1] == 99
    assert problems(path) == []


# Changes by other processes during the summary


@threads_only
async def test_rows_that_another_process_appends_during_the_summary_are_carried_over(
    small, path, world
):
    gate = Gate()
    agent = RecordingAgent()
    async with small(compressor=ScriptedCompressor(gate), build_agent=lambda _: agent) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            code = """
            for number in (50, 51):
                store.append_message(session_id, "user", f"question {number:03}")
            """
            elsewhere(path, world, code, session_id=parent)
        await runtime.ask("k", question(10))
    assert [change.changed for change in changes] == [True]
    child = lineage(path)[-1]
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9, 50, 51]
    assert numbers(contents(path, child)) == [8, 9, 50, 51, 10]
    assert numbers(contents(path, parent)) == [*range(10), 50, 51]
    assert problems(path) == []


REWRITES = {
    "rewind": "store.rewind(session_id, store.get_messages(session_id)[-2].id)",
    "edit": "store.edit_message(session_id, store.get_messages(session_id)[0].id, 'changed')",
    "replace": "store.replace_messages(session_id, [Message('user', 'question 070')] * 3)",
}


@threads_only
@pytest.mark.parametrize("how", REWRITES)
async def test_a_rewritten_transcript_refuses_the_summary(small, path, world, how):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            elsewhere(path, world, REWRITES[how], session_id=parent)
        now = rows_in(path, parent)
        assert [(each.changed, each.detail) for each in changes] == [
            (False, "Not compressed: the conversation has changed meanwhile.")
        ]
        assert await runtime.conversation("k").history() == now
        assert (await runtime.ask("k", "hello")).session_id == parent
    assert lineage(path) == [parent]
    assert same(rows_in(path, parent)[: len(now)], now)
    assert problems(path) == []


MOVES = {
    "switch": "store.create_session('other', session_key='k'); store.switch('k', 'other')",
    "new session": "store.new_session('k')",
    "end": "store.end_session(session_id, 'closed')",
    "delete": "store.delete_session(session_id)",
}


@threads_only
@pytest.mark.parametrize("how", MOVES)
async def test_a_moved_route_refuses_the_summary(small, path, world, how):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.conversation("k").compress) as changes:
            elsewhere(path, world, MOVES[how], session_id=parent)
        assert [(change.changed, change.failed) for change in changes] == [(False, False)]
        reply = await runtime.ask("k", question(10))
        assert reply.text == f"echo: {question(10)}"
    assert lineage(path) == [reply.session_id]
    assert numbers(contents(path, reply.session_id)) == [10]
    assert reply.session_id != parent
    assert problems(path) == []


@threads_only
@pytest.mark.parametrize("how", MOVES)
async def test_a_turn_is_answered_in_the_session_its_route_was_moved_to_during_the_summary(
    small, path, world, how
):
    gate = Gate()
    async with small(compressor=ScriptedCompressor(gate)) as runtime:
        parent = (await talk(runtime))[-1].session_id
        async with during_compression(gate, runtime.ask, "k", question(10)) as replies:
            elsewhere(path, world, MOVES[how], session_id=parent)
    (reply,) = replies
    assert reply.status == "complete"
    assert lineage(path) == [reply.session_id]
    assert numbers(contents(path, reply.session_id)) == [10]
    assert problems(path) == []
