"""The verbs of one conversation: `runtime.conversation(key)`."""

from __future__ import annotations

import pytest
import trio

from hermes.errors import ActorStopped, UnknownSession
from hermes.events import SessionMoved, TitleChanged
from hermes.messages import SessionChange, Source, Title
from hermes.testing import DeterministicCompressor, texts_of
from tests.support.held_turns import HeldAgent
from tests.support.recording import LONG
from tests.support.runtime import SECONDS, with_threads


def moves(published):
    """The events about changes of the session."""
    events = [envelope.event for envelope in published]
    return [
        (event.old, event.new, event.reason) for event in events if isinstance(event, SessionMoved)
    ]


# Changes of the session


@with_threads
async def test_new_starts_another_session(start):
    async with start() as runtime:
        conversation, published = runtime.conversation("k"), []
        runtime.subscribe("k", callback=published.append)
        first = await conversation.new("Plans")
        old = (await conversation.ask("hello")).session_id
        change = await conversation.new()
        assert (first.old_session_id, first.session_id, first.changed) == (None, old, True)
        assert change == SessionChange(
            session_key="k", reason="new", old_session_id=old, session_id=change.session_id
        )
        assert await conversation.history() == []
        assert (await conversation.ask("hello")).session_id == change.session_id
        assert (await runtime.admin.find("Plans")).session_id == old
    assert moves(published) == [
        (None, old, "session_reset"),
        (old, change.session_id, "session_reset"),
    ]


async def test_switch_continues_with_another_session(start):
    async with start() as runtime:
        conversation, published = runtime.conversation("k"), []
        first = (await conversation.ask("one")).session_id
        second = (await conversation.new()).session_id
        runtime.subscribe("k", callback=published.append)
        change = await conversation.switch(first)
        assert change == SessionChange(
            session_key="k", reason="switch", old_session_id=second, session_id=first
        )
        assert not (await conversation.switch(first)).changed
        with pytest.raises(UnknownSession):
            await conversation.switch("nothing")
        assert (await conversation.ask("two")).session_id == first
    assert moves(published) == [(second, first, "session_switch")]


async def test_branch_continues_in_a_copy(start):
    async with start() as runtime:
        conversation, published = runtime.conversation("k"), []
        runtime.subscribe("k", callback=published.append)
        original = (await conversation.ask("one")).session_id
        change = await conversation.branch("A copy")
        copy = change.session_id
        assert change == SessionChange(
            session_key="k", reason="branch", old_session_id=original, session_id=copy
        )
        assert (await conversation.ask("two")).session_id == copy
        assert (await conversation.title()).text == "A copy"
        assert len(await runtime.admin.messages(original)) == 2
        assert len(await conversation.history()) == 4
    assert moves(published) == [(original, copy, "branch")]


async def test_branch_to_another_key_leaves_this_one_unchanged(start):
    async with start() as runtime:
        other = runtime.conversation("other")
        original = (await runtime.ask("k", "hello")).session_id
        change = await runtime.conversation("k").branch("A copy", to="other")
        copy = change.session_id
        assert change == SessionChange(
            session_key="other", reason="branch", old_session_id=None, session_id=copy
        )
        assert (await other.ask("there")).session_id == copy
        assert (await runtime.ask("k", "here")).session_id == original
        assert texts_of(await other.history())[2:] == [
            ("user", "there"), ("assistant", "echo: there"),
        ]  # fmt: skip
        assert [each.session.id for each in await other.sessions()] == [copy]
        assert (await other.title()).text == "A copy"


async def test_undo_takes_back_exchanges_and_counts_rows(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        for text in ("one", "two", "three"):
            session_id = (await conversation.ask(text)).session_id
        assert (await conversation.undo(0)).removed == 0
        assert await conversation.undo(2) == SessionChange(
            session_key="k",
            reason="undo",
            old_session_id=session_id,
            session_id=session_id,
            removed=4,
        )
        assert len(await conversation.history(include_rewound=True)) == 6
        assert (await conversation.undo(5)).removed == 2
        nothing = await conversation.undo()
        assert (nothing.changed, nothing.removed) == (False, 0)
        assert nothing.detail == "There is nothing to take back."
        assert (await conversation.ask("four")).build_reason is None


async def test_compress_continues_in_a_child_session(start):
    async with start(compressor=DeterministicCompressor()) as runtime:
        conversation = runtime.conversation("k")
        for _ in range(4):
            parent = (await conversation.ask(LONG)).session_id
        change = await conversation.compress(keep_exchanges=1)
        assert (change.reason, change.old_session_id, change.changed) == ("compress", parent, True)
        assert change.detail.startswith("Compressed")
        assert (await conversation.ask("on")).session_id == change.session_id != parent


async def test_compress_says_why_nothing_was_compressed(start):
    async with start(compressor=DeterministicCompressor()) as runtime:
        conversation = runtime.conversation("k")
        session_id = (await conversation.ask("hello")).session_id
        change = await conversation.compress()
        assert (change.changed, change.session_id) == (False, session_id)
        assert change.detail == "Not compressed: there is nothing to summarize yet."


async def test_close_ends_the_session(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        nothing = await conversation.close()
        assert (nothing.changed, nothing.old_session_id, nothing.session_id) == (False, None, None)
        session_id = (await conversation.ask("hello")).session_id
        change = await conversation.close(reason="done")
        assert (change.reason, change.old_session_id, change.changed) == ("close", session_id, True)
        assert change.session_id not in {None, session_id}
        assert (await runtime.admin.find(session_id)).session.end_reason == "done"
        assert (await conversation.ask("hello")).session_id == change.session_id


async def test_changes_are_refused_after_a_drain(start):
    async with start() as runtime:
        await runtime.drain()
        conversation = runtime.conversation("k")
        for verb in (conversation.new, conversation.undo, conversation.close):
            with pytest.raises(ActorStopped):
                await verb()
        with pytest.raises(ActorStopped):
            await conversation.set_title("x")
        with pytest.raises(ActorStopped):
            await conversation.ask("hello")


# Information


async def test_the_source_of_a_handle_is_the_default_of_its_messages(start):
    alice, bob = Source(user_id="alice"), Source(user_id="bob")
    sources = []

    async def reply(turn):
        sources.append(turn.source)
        return "done"

    async with start(agent=reply) as runtime:
        conversation = runtime.conversation("k", source=alice)
        await conversation.ask("one")
        await conversation.ask("two", source=bob)
        await conversation.retry()
        async with conversation.stream("three") as stream:
            assert [event async for event in stream]
        await runtime.conversation("k").ask("four")
    assert sources == [alice, bob, alice, alice, Source()]


async def test_sessions_and_search_see_only_their_own_key(start):
    async with start() as runtime:
        mine, other = runtime.conversation("mine"), runtime.conversation("other")
        old = (await mine.ask("the oak")).session_id
        new = (await mine.new()).session_id
        await mine.ask("the beech")
        await other.ask("the oak")
        assert {each.session.id for each in await mine.sessions()} == {old, new}
        assert len(await mine.sessions(limit=1, offset=1)) == 1
        assert {hit.session_id for hit in await mine.search("oak")} == {old}
        assert [hit.role for hit in await mine.search("oak", role="user")] == ["user"]


async def test_history_and_status_of_an_unused_key_are_empty(start):
    async with start() as runtime:
        conversation = runtime.conversation("k")
        assert await conversation.history() == []
        assert await conversation.sessions() == []
        status = await conversation.status()
        assert (status.session_id, status.message_count, status.busy) == (None, 0, False)
        assert conversation.snapshot() is None


async def test_a_title_is_set_and_read_during_a_turn(start):
    agent = HeldAgent()
    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime, trio.open_nursery() as nursery:
            conversation = runtime.conversation("k")
            assert await conversation.title() == Title(None)
            with runtime.subscribe("k") as events:
                nursery.start_soon(conversation.ask, "hello")
                await agent.wait_started()
                await conversation.set_title(" Plans ")
                assert await conversation.title() == Title("Plans", pending=True)
                agent.release(0)
                changed = [each.event async for each in until(events, TitleChanged)][-1]
            assert changed.title == "Plans"
            assert await conversation.title() == Title("Plans")
            with pytest.raises(ValueError, match="too long"):
                await conversation.set_title("x" * 200)


async def until(events, kind):
    async for each in events:
        yield each
        if isinstance(each.event, kind):
            return


@pytest.mark.parametrize(
    ("verb", "detail"),
    [
        ("undo", "There is nothing to take back."),
        ("compress", "Not compressed: there is nothing to summarize yet."),
        ("branch", "There is nothing to copy yet."),
        ("close", "There is no conversation to end."),
    ],
)
async def test_a_verb_on_a_conversation_without_a_session_changes_nothing(start, verb, detail):
    async with start() as runtime:
        changed = await getattr(runtime.conversation("fresh"), verb)()
        assert (changed.changed, changed.detail) == (False, detail)
        assert (changed.old_session_id, changed.session_id) == (None, None)


async def test_branching_to_another_key_names_the_session_that_it_had(start):
    async with start() as runtime:
        await runtime.ask("k", "one")
        before = (await runtime.ask("other", "two")).session_id
        assert (await runtime.conversation("k").branch(to="new")).old_session_id is None
        assert (await runtime.conversation("k").branch(to="other")).old_session_id == before


async def test_a_switch_to_the_current_session_says_so(start):
    async with start() as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        changed = await runtime.conversation("k").switch(session_id)
        detail = "This is the current conversation already."
        assert (changed.changed, changed.detail) == (False, detail)
