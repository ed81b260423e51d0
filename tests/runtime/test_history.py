"""`history` in pages and with what waits; archived conversations."""

from __future__ import annotations

import pytest
import trio

from hermes import Config
from hermes.errors import UnknownSession
from hermes.messages import Inbound, Message, StoredMessage, WaitingMessage
from hermes.store import Rotation, SessionStore
from hermes.testing import DeterministicCompressor
from tests.support.held_turns import HeldAgent
from tests.support.runtime import SECONDS


def texts(rows):
    return [row.content for row in rows]


async def test_the_history_is_read_page_by_page(start):
    async with start() as runtime:
        chat = runtime.conversation("k")
        assert await chat.history(limit=2) == []
        for text in ("one", "two", "three"):
            reply = await chat.ask(text)
        whole = await chat.history()
        latest = await chat.history(limit=2)
        assert latest == whole[-2:]
        await chat.ask("four")
        assert await chat.history(limit=3, before=latest[0].id) == whole[1:4]
        assert texts(await chat.history(after=latest[-1].id))[0] == "four"
        messages = runtime.admin.messages
        assert await messages(reply.session_id, limit=2, before=latest[0].id) == whole[2:4]
        assert await messages(reply.session_id, limit=2, after=whole[0].id) == whole[1:3]
        with pytest.raises(ValueError, match="at least 1"):
            await chat.history(limit=0)


async def test_the_history_goes_on_beyond_a_compression(start):
    async with start(compressor=DeterministicCompressor()) as runtime:
        chat = runtime.conversation("k")
        for _ in range(8):
            await chat.ask("word " * 300)
        before = await chat.history()
        change = await chat.compress(keep_exchanges=1)
        assert change.changed
        after = await chat.history()
        assert await chat.history(lineage=True) == before + after
        page = await chat.history(lineage=True, limit=len(after) + 2)
        assert page == before[-2:] + after
        assert await runtime.admin.messages(change.session_id, lineage=True) == before + after


async def test_the_history_is_that_of_the_tip_after_another_process_rotated(start, path):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id

        def rotate():
            with SessionStore(path) as store:
                transcript = store.load(session_id)
                rotation = Rotation(
                    session_id=session_id,
                    messages=[Message("user", "summary")],
                    rotation_id="r",
                    rewrites=transcript.head.rewrites,
                    upto=transcript.messages[-1].id,
                )
                store.rotate(rotation)

        await trio.to_thread.run_sync(rotate)
        assert texts(await runtime.conversation("k").history()) == ["summary"]


async def test_what_is_accepted_but_not_answered_is_part_of_the_history(start):
    agent = HeldAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime, trio.open_nursery() as nursery:
            chat = runtime.conversation("k")
            nursery.start_soon(chat.ask, "one")
            await agent.wait_started(0)
            receipt = await runtime.submit(Inbound("k", "e2", "two"))
            rows = await chat.history()
            assert texts(rows) == ["one", "two"]
            assert [type(row) for row in rows] == [WaitingMessage, WaitingMessage]
            assert rows[1].inbox_id == receipt.inbox_id
            assert await chat.history(limit=1) == rows[1:]
            assert await chat.history(limit=1, before=rows[1].id) == rows[:1]
            assert await chat.history(include_waiting=False) == []
            agent.release(0)
            await agent.wait_started(1)
            rows = await chat.history()
            assert [(row.content, type(row)) for row in rows[::2]] == [
                ("one", StoredMessage),
                ("two", WaitingMessage),
            ]
            agent.release(1)


async def test_the_pages_of_many_waiting_messages_join_to_the_history(start):
    agent, config = HeldAgent(), Config(max_queued=300, drain_timeout=0)
    with trio.fail_after(SECONDS):
        async with start(agent=agent, config=config) as runtime:
            chat = runtime.conversation("k")
            agent.release(0)
            await chat.ask("zero")
            for number in range(1, 201):
                await runtime.submit(Inbound("k", f"e{number}", f"{number}"))
            await agent.wait_started(1)
            rows, page = [], await chat.history(limit=30)
            while page:
                assert len(page) <= 30
                rows = page + rows
                page = await chat.history(limit=30, before=rows[0].id)
            assert texts(rows) == ["zero", "answer 0", *map(str, range(1, 201))]
            assert rows == await chat.history()


async def test_an_archived_conversation_is_hidden_from_all_lists(start):
    async with start() as runtime:
        chat, other = runtime.conversation("k"), runtime.conversation("other")
        first = (await chat.ask("one")).session_id
        await chat.new()
        second = (await chat.ask("two")).session_id
        foreign = (await other.ask("three")).session_id

        async def listed(verb, **options):
            return {each.session.id for each in await verb(**options)}

        await chat.archive(first)
        assert await listed(chat.sessions) == {second}
        assert await listed(chat.sessions, include_archived=True) == {first, second}
        assert await listed(runtime.admin.sessions) == {second, foreign}
        assert await listed(runtime.admin.sessions, include_archived=True) == {
            first, second, foreign,
        }  # fmt: skip
        assert (await chat.ask("/sessions")).text.count("\n") == 1
        for verb in (chat.archive, chat.unarchive):
            with pytest.raises(UnknownSession):
                await verb(foreign)
        await runtime.admin.archive(foreign)
        assert await listed(other.sessions) == set()
        await runtime.admin.unarchive(foreign)
        await chat.unarchive(first)
        assert await listed(chat.sessions) == {first, second}
        with pytest.raises(UnknownSession):
            await runtime.admin.archive("nobody")


async def test_an_archived_conversation_can_still_be_continued(start):
    async with start() as runtime:
        chat = runtime.conversation("k")
        first = (await chat.ask("one")).session_id
        await chat.archive(first)
        assert (await chat.ask("two")).session_id == first
        assert await chat.sessions() == []
        assert len(await chat.search("two")) > 0


async def test_subagents_are_hidden_from_lists_and_deleted_with_their_parent(start_with_store):
    async with start_with_store() as (store, runtime):
        chat = runtime.conversation("k")
        parent = (await chat.ask("one")).session_id
        await store.create_session(
            "sub", "embedded", parent_session_id=parent, kind="subagent", session_key="k"
        )
        await store.append_message("sub", "user", "two")
        assert [each.session.id for each in await chat.sessions()] == [parent]
        assert len(await chat.sessions(include_subagents=True)) == 2
        assert len(await runtime.admin.sessions()) == 1
        assert len(await runtime.admin.sessions(include_subagents=True)) == 2
        assert await runtime.admin.delete(parent) == 3
        assert await store.get_session("sub") is None
