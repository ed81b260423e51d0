"""Compressions that are cut short, retried, or run on a store that fails."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import trio

from hermes.actors.compression.compressor import SessionCompressor
from hermes.actors.compression.types import Compressed, CompressionJob
from hermes.errors import StoreBusy
from hermes.events import (
    TurnEnded,
)
from hermes.messages import (
    Message,
    TurnResult,
    Usage,
)
from hermes.protocols import Summary
from hermes.store import Clock, SessionStore, open_store
from hermes.testing import CountingBuilder, inline
from tests.support.compression import (
    FULL,
    OVER,
    SMALL,
    SUMMARY,
    RecordingAgent,
    ScriptedCompressor,
    contents,
    lineage,
    next_event,
    numbers,
    problems,
    question,
    rows_in,
    talk,
)
from tests.support.racing import ROOT
from tests.support.runtime import threads_only, with_threads
from tests.support.store_proxy import Through


@with_threads
@pytest.mark.parametrize("moment", ["during the summary", "after the summary"])
async def test_a_crash_between_summary_and_rotation_changes_nothing(small, path, moment):
    scope = trio.CancelScope()

    async def crash(_):
        scope.cancel()
        if moment == "during the summary":
            await trio.sleep_forever()

    with scope:
        async with small(compressor=ScriptedCompressor(crash)) as runtime:
            parent = (await talk(runtime))[-1].session_id
            before = await runtime.conversation("k").history()
            await runtime.ask("k", question(10))
    assert lineage(path) == [parent]
    assert rows_in(path, parent) == before
    with SessionStore(path) as store:
        assert store.get_session(parent).end_reason is None
        leases = "SELECT holder FROM leases WHERE holder IS NOT NULL"
        assert store.snapshot(lambda tx: tx.all(leases)) == []
    compressor, agent = ScriptedCompressor(), RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent) as runtime:
        with runtime.subscribe("k") as events:
            await next_event(events, TurnEnded)
        assert len(compressor) == 1
    assert agent.turn_ids == [11]
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, 10]
    assert problems(path) == []


async def test_messages_left_by_a_crash_are_answered_before_later_ones(small, path):
    scope = trio.CancelScope()

    async def crash(_):
        scope.cancel()
        await trio.sleep_forever()

    with scope:
        async with small(compressor=ScriptedCompressor(crash)) as runtime:
            await talk(runtime)
            await runtime.ask("k", question(10))
    async with small() as runtime:
        await runtime.ask("k", question(11))
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9, 10, 11]


@with_threads
async def test_a_crash_between_rotation_and_commit_runs_the_turn_again_in_the_child(small, path):
    scope = trio.CancelScope()

    async def crash(_):
        scope.cancel()
        await trio.sleep_forever()

    agent = RecordingAgent()
    with scope:
        async with small(build_agent=lambda _: agent) as runtime:
            parent = (await talk(runtime))[-1].session_id
            agent.script.append(crash)
            await runtime.ask("k", question(10))
    assert len(lineage(path)) == 2
    assert numbers(contents(path, lineage(path)[-1])) == [8, 9]
    compressor, again = ScriptedCompressor(), RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: again) as runtime:
        with runtime.subscribe("k") as events:
            await next_event(events, TurnEnded)
    assert again.turn_ids == [agent.turn_ids[-1]]
    assert again.shown == [agent.shown[-1]]
    first, child = lineage(path)
    assert first == parent
    assert numbers(contents(path, parent)) == list(range(10))
    assert numbers(contents(path, child)) == [8, 9, 10]
    assert len(compressor) == 0
    assert problems(path) == []


CRASHING = """
import sys, trio
from hermes import open_runtime
from hermes.config import CompressionConfig, Config
from hermes.messages import Inbound
from tests.support.compression import SMALL, question, talk

class Hanging:
    async def summarize(self, request, /):
        print("summarizing", flush=True)
        await trio.sleep_forever()

async def reply(turn):
    return f"echo: {turn.text}"

async def main():
    options = {"agent": reply, "compressor": Hanging(), "config": Config(compression=SMALL)}
    async with open_runtime(sys.argv[1], **options) as runtime:
        await talk(runtime)
        await runtime.submit(Inbound("k", "over", question(10)))
        await trio.sleep_forever()

trio.run(main)
"""


def kill_while_compressing(path):
    """Kill another process while it compresses."""
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "summarizing\n"
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


@threads_only
@pytest.mark.sqlite_only("the lease of a killed node ends with the lease of the node")
async def test_a_process_killed_during_the_summary_leaves_no_lease_that_blocks_others(small, path):
    kill_while_compressing(path)
    with SessionStore(path) as store:
        parent = store.get_route("k").session_id
        assert store.get_compression_lock_holder(parent) is not None
    compressor, agent = ScriptedCompressor(), RecordingAgent()
    async with small(compressor=compressor, build_agent=lambda _: agent, clock=Clock()) as runtime:
        await runtime.ask("k", question(11))
        assert numbers(agent.asked[0].split("\n\n"))[0] == 10
        assert len(compressor) == 1
    line = lineage(path)
    assert line[0] == parent
    assert numbers(contents(path, parent)) == [*range(10)]
    assert numbers(contents(path, line[1]))[-2:] == [10, 11]
    assert problems(path) == []


def job(runtime_key, session_id, epoch):
    return CompressionJob(
        session_key=runtime_key,
        session_id=session_id,
        epoch=epoch,
        rotation_id="the same",
        trigger="asked",
    )


async def test_a_retry_with_the_same_rotation_id_is_a_success(path, world):
    async with open_store(path, clock=world.clock, open_worker=inline()) as store:
        await store.create_session("p", session_key="k")
        await store.append_messages("p", [Message("user", question(n)) for n in range(20)])
        route = await store.switch("k", "p")
        compression = SessionCompressor(store, ScriptedCompressor(), SMALL, world.clock.wall)
        first = await compression.run(job("k", "p", route.epoch))
        again = await compression.run(job("k", "p", route.epoch))
    assert isinstance(first, Compressed)
    assert isinstance(again, Compressed)
    assert again.rotated.session_id == first.rotated.session_id
    assert (first.rotated.repeated, again.rotated.repeated) == (False, True)
    assert lineage(path) == ["p", first.rotated.session_id]
    assert problems(path) == []


class Stuttering(Through):
    """A store whose results get lost, so that each rotation is retried."""

    async def rotate(self, rotation):
        await self.store.append_message(rotation.session_id, "user", "question 060")
        await self.store.rotate(rotation)
        return await self.store.rotate(rotation)


async def test_a_rotation_that_was_requested_twice_shows_all_rows(small_behind, path):
    """Rows that arrived during the summary were carried over by the first attempt."""
    agent = RecordingAgent()
    build = CountingBuilder(lambda _: agent)
    async with small_behind(Stuttering, compressor=ScriptedCompressor(), build=build) as runtime:
        await talk(runtime)
        assert (await runtime.conversation("k").compress()).changed
        await runtime.ask("k", question(10))
    child = lineage(path)[-1]
    assert numbers(contents(path, child)) == [8, 9, 60, 10]
    assert numbers(text for _, text in agent.shown[-1]) == [8, 9, 60]


class Busy(Through):
    """A store that is busy for the first rotations."""

    def __init__(self, store, times):
        super().__init__(store)
        self.__dict__["_times"] = itertools.chain(range(times), itertools.repeat(None))

    async def rotate(self, rotation):
        if next(self._times) is not None:
            raise StoreBusy("another process holds the write lock")
        return await self.store.rotate(rotation)


@pytest.mark.parametrize("trigger", ["before", "after"])
async def test_a_rotation_on_a_busy_store_loses_neither_turn_nor_agent(small_behind, path, trigger):
    agent = RecordingAgent()
    build = CountingBuilder(lambda _: agent)
    wrap = lambda store: Busy(store, 1)  # noqa: E731
    async with small_behind(wrap, compressor=ScriptedCompressor(), build=build) as runtime:
        count = FULL if trigger == "before" else 5
        await talk(runtime, count)
        if trigger == "after":
            agent.script.append(TurnResult(text="long", usage=[Usage(input_tokens=OVER)]))
        reply = await runtime.ask("k", question(count))
        await runtime.ask("k", question(count + 1))
    assert reply.status == "complete"
    assert len(build) == 1
    assert agent.turn_ids == sorted(set(agent.turn_ids))
    assert problems(path) == []


class Unbilled(Through):
    """A store that is busy when the cost of a summary is recorded."""

    async def book(self, session_id, calls):
        raise StoreBusy("another process holds the write lock")


async def test_a_rotation_is_kept_even_if_its_cost_cannot_be_recorded(small_behind, path):
    async def paid(_):
        return Summary(SUMMARY, [Usage("summary", input_tokens=400)])

    agent = RecordingAgent()
    build = CountingBuilder(lambda _: agent)
    async with small_behind(Unbilled, compressor=ScriptedCompressor(paid), build=build) as runtime:
        await talk(runtime)
        reply = await runtime.ask("k", question(10))
        assert len(agent.turn_ids) == 11
        assert (await runtime.conversation("k").compress()).changed
    assert reply.session_id == lineage(path)[1]
    assert problems(path) == []
