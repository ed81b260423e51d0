"""The operator's verbs: `runtime.admin`."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel

from hermes.errors import UnknownSession
from hermes.events import TextDelta
from hermes.messages import Inbound, RunningTurnInfo
from hermes.testing import DeterministicCompressor
from tests.support.held_turns import HeldAgent
from tests.support.runtime import SECONDS, reply_to, with_threads


async def test_find_by_id_prefix_and_title(start):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "hello")).session_id
        await runtime.conversation("k").set_title("Plans")
        for name in (session_id, session_id[:-1], "Plans"):
            found = await runtime.admin.find(name)
            assert (found.session_id, found.session.id) == (session_id, session_id)
            assert found.lineage == (session_id,)
            assert found.session_keys == ("k",)
        assert await runtime.admin.find("nothing") is None
        assert await runtime.admin.find("") is None


async def test_find_a_session_whose_first_turn_is_running(start):
    agent = HeldAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime:
            agent.release(0)
            session_id = (await runtime.ask("k", "hello")).session_id
            receipt = await runtime.submit(Inbound("other", "e", "hello"))
            await agent.wait_started(1)
            found = await runtime.admin.find(receipt.session_id)
            assert (found.session, found.session_keys) == (None, ("other",))
            assert (await runtime.admin.find(receipt.session_id[:-1])).session_id == session_id
            agent.release(1)


async def test_an_old_id_finds_the_current_session_and_deletes_the_lineage(start):
    async with start(compressor=DeterministicCompressor()) as runtime:
        first = (await runtime.ask("k", "word " * 300)).session_id
        for _ in range(8):
            await runtime.ask("k", "word " * 300)
        await runtime.conversation("k").compress(keep_exchanges=1)
        found = await runtime.admin.find(first)
        assert found.lineage[0] == first
        assert len(found.lineage) == 2
        assert found.session_keys == ("k",)
        rows = sum([len(await runtime.admin.messages(each)) for each in found.lineage])
        with pytest.raises(UnknownSession):
            await runtime.admin.delete(first[:-1])
        assert await runtime.admin.delete(first) == rows
        assert await runtime.admin.find(found.session_id) is None
        assert await runtime.admin.sessions() == []
        with pytest.raises(UnknownSession):
            await runtime.admin.delete(first)
        with pytest.raises(UnknownSession):
            await runtime.admin.messages(first)
        assert (await runtime.ask("k", "again")).session_id not in found.lineage


async def test_sessions_lists_all_keys(start):
    async with start() as runtime:
        ids = [(await runtime.ask(key, "hello")).session_id for key in ("a", "b", "c")]
        assert {each.session.id for each in await runtime.admin.sessions()} == set(ids)
        assert len(await runtime.admin.sessions(limit=2, offset=2)) == 1


async def test_messages_can_include_rewound_rows(start):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        await runtime.conversation("k").undo()
        assert await runtime.admin.messages(session_id) == []
        assert len(await runtime.admin.messages(session_id, include_rewound=True)) == 2


@with_threads
async def test_running_turns_shows_the_text_so_far(start):
    async def speak(turn):
        turn.emit(TextDelta("one "))
        turn.emit(TextDelta("two"))
        spoke.set()
        await release.wait()
        return "one two"

    spoke, release = trio.Event(), trio.Event()
    with trio.fail_after(SECONDS):
        async with start(agent=speak) as runtime:
            assert runtime.admin.running_turns() == {}
            receipt = await runtime.submit(Inbound("k", "e", "hello"))
            await spoke.wait()
            info = RunningTurnInfo(receipt.inbox_id, "one two")
            assert runtime.admin.running_turns() == {"k": info}
            assert not await runtime.is_answered(receipt)
            with runtime.subscribe("k") as events:
                release.set()
                await reply_to(events, receipt)
            assert runtime.admin.running_turns() == {}
            assert await runtime.is_answered(receipt)


async def test_statistics_count_turns_and_include_the_store(start):
    agent = HeldAgent()
    agent.release(0)
    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime:
            await runtime.ask("a", "hello")
            await runtime.submit(Inbound("b", "e", "hello"))
            await agent.wait_started(1)
            statistics = await runtime.admin.statistics()
            assert (statistics.actors, statistics.running) == (2, 1)
            assert statistics.turns == {"complete": 1}
            assert statistics.store.inbox_open == 1
            agent.release(1)
