"""Another process changes the file of a running runtime."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from hermes.events import SessionMoved
from hermes.messages import Inbound, Title
from hermes.store import SessionStore
from hermes.testing import (
    DeterministicCompressor,
    ScriptedAgent,
    texts_of,
)
from tests.support.conversations import wait_ended
from tests.support.other_process import APPEND, CHANGES, COMPRESS, every_change
from tests.support.recording import LONG, builds, recording_builder
from tests.support.runtime import SECONDS, reply_to, with_threads


@with_threads
@every_change
async def test_a_change_of_the_current_session_causes_one_rebuild(start, in_other_process, change):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        assert (await runtime.ask("k", "two")).build_reason is None
        in_other_process(session_id, change)
        live = texts_of(await runtime.conversation("k").history())
        reply = await runtime.ask("k", "three")
        assert (reply.session_id, reply.build_reason) == (session_id, "foreign-write")
        old, new = builder.agents
        assert new.shown == [live], "the current history, without rewound rows"
        for number in range(3):
            assert (await runtime.ask("k", f"{number}")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}
        assert runtime.conversation("k").snapshot().agent is new
        assert (old.closed, new.closed) == (1, 0)
    assert (old.closed, new.closed) == (1, 1)


@every_change
async def test_a_change_after_switching_back_causes_one_rebuild(start, in_other_process, change):
    async with start() as runtime:
        a = (await runtime.ask("k", "on A")).session_id
        await runtime.conversation("k").new()
        await runtime.ask("k", "on B")
        await runtime.conversation("k").switch(a)
        await runtime.ask("k", "back")
        in_other_process(a, change)
        assert (await runtime.ask("k", "now")).build_reason == "foreign-write"
        assert (await runtime.ask("k", "then")).build_reason is None


async def test_status_during_a_turn_does_not_hide_a_change(start, in_other_process):
    seen, receipts = [], []

    async def look(turn):
        seen.append((await runtime.conversation("k").status()).message_count)
        in_other_process(turn.session_id, APPEND)
        receipts.append(await runtime.submit(Inbound("k", "e", "3")))
        seen.append((await runtime.conversation("k").status()).message_count)

    builder = recording_builder("one", [look, "two"], "three")
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "1")
        with runtime.subscribe("k") as received:
            assert (await runtime.ask("k", "2")).text == "two"
            assert (await reply_to(received, receipts[0])).build_reason == "foreign-write"
        assert seen == [2, 3]
        assert builder.agents[1].shown == [
            [("user", "1"), ("assistant", "one"), ("user", "theirs"), ("user", "2"),
             ("assistant", "two")],
        ]  # fmt: skip
        assert (await runtime.ask("k", "4")).build_reason is None


@every_change
async def test_a_change_during_a_turn_causes_a_rebuild_in_the_next(start, in_other_process, change):
    async def meanwhile(turn):
        in_other_process(turn.session_id, change)

    builder = recording_builder("one", [meanwhile, "two"], "three")
    async with start(build_agent=builder) as runtime:
        session_id = (await runtime.ask("k", "1")).session_id
        during = await runtime.ask("k", "2")
        assert (during.text, during.build_reason) == ("two", None)
        live = texts_of(await runtime.conversation("k").history())
        assert live[-2:] == [("user", "2"), ("assistant", "two")], (
            "the rows of the turn follow those of the other process"
        )
        after = await runtime.ask("k", "3")
        assert (after.session_id, after.build_reason) == (session_id, "foreign-write")
        assert builder.agents[1].shown == [live]
        assert (await runtime.ask("k", "4")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


async def test_a_change_during_the_first_turn_causes_a_rebuild_in_the_second(
    start, in_other_process
):
    async def meanwhile(turn):
        in_other_process(turn.session_id, f"store.create_session(sid); {APPEND}")

    builder = recording_builder([meanwhile, "ours"])
    async with start(build_agent=builder) as runtime:
        assert (await runtime.ask("k", "1")).build_reason == "cold"
        assert (await runtime.ask("k", "2")).build_reason == "foreign-write"
        assert builder.agents[1].shown == [
            [("user", "theirs"), ("user", "1"), ("assistant", "ours")]
        ]
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


async def test_a_change_during_a_turn_after_switching_back_causes_a_rebuild(
    start, in_other_process
):
    async def meanwhile(turn):
        in_other_process(turn.session_id, APPEND)

    async with start(build_agent=recording_builder("one", "two", [meanwhile, "three"])) as runtime:
        a = (await runtime.ask("k", "on A")).session_id
        await runtime.conversation("k").new()
        await runtime.ask("k", "on B")
        await runtime.conversation("k").switch(a)
        await runtime.ask("k", "back on A")
        assert runtime.conversation("k").snapshot().session_id == a, "the session of the last turn"
        assert (await runtime.ask("k", "still on A")).build_reason == "foreign-write"


async def test_a_row_added_during_a_retry_is_not_taken_back(start, in_other_process):
    async def meanwhile(turn):
        in_other_process(turn.session_id, APPEND)

    builder = recording_builder("one", [meanwhile, "one again"])
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "1")
        assert (await runtime.conversation("k").retry()).text == "one again"
        await runtime.ask("k", "2")
        shown = builder.agents[-1].shown[-1]
        assert ("user", "theirs") in shown
        assert ("assistant", "one") not in shown
        assert ("assistant", "one again") in shown


@pytest.mark.parametrize(
    ("change", "question"),
    [
        ("store.edit_message(sid, rows[0].id, 'edited')", "edited"),
        ("store.edit_message(sid, rows[1].id, 'edited')", "1"),
        ("store.replace_messages(sid, [Message('user', 'other')])", "other"),
    ],
    ids=["question", "answer", "all"],
)
async def test_a_retry_during_an_edit_answers_the_edited_conversation(
    start, in_other_process, change, question
):
    async def meanwhile(turn):
        in_other_process(turn.session_id, change)

    builder = recording_builder("rebuilt", [meanwhile, "discarded"])
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "1")
        reply = await runtime.conversation("k").retry()
        assert (reply.text, reply.build_reason) == ("rebuilt", "foreign-write")
        rows = await runtime.conversation("k").history()
        assert [(row.role, row.content) for row in rows] == [
            ("user", question),
            ("assistant", "rebuilt"),
        ]


async def test_undo_does_not_hide_an_earlier_change(start, in_other_process):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        session_id = (await runtime.ask("k", "one")).session_id
        await runtime.ask("k", "two")
        in_other_process(session_id, "store.edit_message(sid, rows[0].id, 'edited')")
        await runtime.conversation("k").undo()
        reply = await runtime.ask("k", "three")
        assert builder.agents[-1].shown[-1] == [("user", "edited"), ("assistant", "echo: one")]
        assert reply.build_reason == "foreign-write"


async def test_another_key_on_the_same_session_counts_as_another_writer(start):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        shared = (await runtime.ask("k1", "from one")).session_id
        await runtime.admin.switch("k2", shared)
        assert (await runtime.ask("k2", "from two")).build_reason == "cold"
        assert (await runtime.ask("k1", "one again")).build_reason == "foreign-write"
        assert (await runtime.ask("k1", "and again")).build_reason is None
        assert (await runtime.ask("k2", "two again")).build_reason == "foreign-write"
        assert [text for _, text in builder.agents[-1].shown[-1]] == [
            "from one", "echo: from one", "from two", "echo: from two",
            "one again", "echo: one again", "and again", "echo: and again",
        ]  # fmt: skip
        assert builds(runtime) == {"cold": 2, "foreign-write": 2}


# Compression and deletion


async def test_a_compression_by_another_process_keeps_the_agent(start, in_other_process):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        parent = (await runtime.ask("k", "one")).session_id
        in_other_process(parent, COMPRESS)
        reply = await runtime.ask("k", "two")
        assert (reply.session_id != parent, reply.build_reason) == (True, None)
        assert builder.agents[0].shown[-1] == [("user", "summary")]
        again = await runtime.ask("k", "three")
        assert (again.session_id, again.build_reason) == (reply.session_id, None)


COMPRESS_IN_TWO = (
    "store.rotate(Rotation(session_id=sid, child_session_id='middle', messages=[], "
    "rotation_id='r', rewrites=0, upto=rows[-1].id)); "
    "store.rotate(Rotation(session_id='middle', child_session_id='tip', messages=["
    "Message('user', 'summary'), Message('assistant', 'yes')], "
    "rotation_id='s', rewrites=0, upto=0))"
)


@pytest.fixture
def compressed(start, in_other_process):
    """Start a runtime whose conversation was then compressed twice by another process."""

    @asynccontextmanager
    async def opened():
        async with start() as runtime:
            conversation = runtime.conversation("k")
            parent = (await conversation.ask("one")).session_id
            await conversation.set_title("Plans")
            in_other_process(parent, COMPRESS_IN_TWO)
            yield runtime, conversation, parent

    return opened


async def test_reading_verbs_read_the_tip_of_a_compression_by_another_process(compressed, path):
    async with compressed() as (runtime, conversation, parent):
        status = await conversation.status()
        assert (status.session_id, status.title, status.message_count) == ("tip", "Plans #3", 2)
        assert texts_of(await conversation.history()) == [("user", "summary"), ("assistant", "yes")]
        assert await conversation.title() == Title("Plans #3")
        assert (await runtime.admin.find(parent)).session_keys == ("k",)
        with SessionStore(path) as store:
            assert store.get_route("k").session_id == parent, "reads write nothing"


async def test_a_title_set_after_a_compression_by_another_process_goes_to_the_tip(compressed):
    async with compressed() as (runtime, conversation, _):
        await conversation.set_title("Plans")
        assert await conversation.title() == Title("Plans")
        reply = await conversation.ask("two")
        assert (reply.session_id, await conversation.title()) == ("tip", Title("Plans"))
        assert (await runtime.admin.find("tip")).session.title == "Plans"


CHANGING = {
    "branch": lambda conversation: conversation.branch(),
    "branch to": lambda conversation: conversation.branch(to="other"),
    "undo": lambda conversation: conversation.undo(),
    "new": lambda conversation: conversation.new(),
    "close": lambda conversation: conversation.close(),
    "switch": lambda conversation: conversation.switch("old"),
    "compress": lambda conversation: conversation.compress(),
}


@pytest.mark.parametrize("verb", CHANGING)
async def test_changing_verbs_use_the_tip_of_a_compression_by_another_process(
    compressed, path, verb
):
    async with compressed() as (runtime, conversation, parent):
        with SessionStore(path) as store:
            store.create_session("old", session_key="k")
        with runtime.subscribe("k") as events, trio.fail_after(SECONDS):
            change = await CHANGING[verb](conversation)
            moved = (await anext(events)).event
        assert moved == SessionMoved(parent, "tip", "compression")
        with SessionStore(path) as store:
            sessions = {i: store.get_session(i) for i in (parent, "tip", change.session_id)}
            texts = [row.content for row in store.get_messages("tip")]
            copies = [each for each in sessions.values() if each is not None]
            [copy] = [each for each in copies if each.kind == "branch"] or [None]
        assert sessions[parent].end_reason == "compression"
        match verb:
            case "branch" | "branch to":
                assert (copy.parent_session_id, copy.title) == ("tip", "Plans #4")
                assert copy.message_count == 2
            case "undo":
                assert (change.session_id, change.removed, texts) == ("tip", 2, [])
            case "compress":
                assert (change.old_session_id, change.changed) == ("tip", False)
            case _:
                assert change.old_session_id == "tip"
        if verb in {"new", "close"}:
            assert sessions["tip"].end_reason is not None


@pytest.mark.parametrize("command", ["/status", "/usage", "/title", "/undo", "/retry", "/branch"])
async def test_commands_use_the_tip_of_a_compression_by_another_process(compressed, command):
    async with compressed() as (runtime, conversation, _):
        reply = await conversation.ask(command)
        match command:
            case "/status":
                assert "Session tip: Plans #3" in reply.text
            case "/title":
                assert "Plans #3" in reply.text
            case "/undo":
                assert "summary" in reply.text
                assert await conversation.history() == []
            case "/retry":
                assert (reply.text, reply.session_id) == ("echo: summary", "tip")
            case "/branch":
                copy = (await runtime.admin.find(reply.session_id)).session
                assert copy.parent_session_id == "tip"
            case _:
                assert reply.session_id == "tip"


@with_threads
async def test_a_compression_by_another_process_during_a_turn_loses_nothing(
    start, in_other_process
):
    async def meanwhile(turn):
        in_other_process(turn.session_id, COMPRESS)

    builder = recording_builder("one", [meanwhile, "two"], "three")
    async with start(build_agent=builder) as runtime:
        parent = (await runtime.ask("k", "1")).session_id
        reply = await runtime.ask("k", "2")
        assert (reply.text, reply.session_id != parent) == ("two", True)
        after = await runtime.ask("k", "3")
        assert after.session_id == reply.session_id
        assert builder.agents[-1].shown[-1] == [
            ("user", "summary"), ("user", "2"), ("assistant", "two"),
        ]  # fmt: skip


COMPRESS_WITH_KEY = COMPRESS.removesuffix("))") + (
    ", session_key='k', epoch=store.get_route('k').epoch))"
)


@with_threads
@pytest.mark.parametrize("compress", [COMPRESS, COMPRESS_WITH_KEY], ids=["session", "route"])
async def test_a_message_after_a_compression_during_a_turn_does_not_run_the_turn_again(
    start, in_other_process, compress
):
    receipts = []

    async def meanwhile(turn):
        in_other_process(turn.session_id, compress)
        receipts.append(await runtime.submit(Inbound("k", "e", "3")))

    builder = recording_builder("one", [meanwhile, "two"], "three")
    async with start(build_agent=builder) as runtime:
        parent = (await runtime.ask("k", "1")).session_id
        with runtime.subscribe("k") as received, trio.fail_after(SECONDS):
            reply = await runtime.ask("k", "2")
            third = await reply_to(received, receipts[0])
        assert (reply.text, third.text) == ("two", "three")
        assert reply.session_id == third.session_id != parent
        [agent] = builder.agents
        assert len(agent.shown) == 3
        assert agent.shown[-1] == [("user", "summary"), ("user", "2"), ("assistant", "two")]
        assert (await runtime.ask("k", "4")).build_reason is None


@attrs.define
class InterruptedCompressor(DeterministicCompressor):
    """A compressor that calls a function before it summarizes."""

    meanwhile: object = None

    async def summarize(self, request):
        self.meanwhile(request.session_id)
        return await super().summarize(request)


async def test_rows_added_during_a_compression_are_carried_over(start, in_other_process):
    builder = recording_builder()
    compressor = InterruptedCompressor(
        meanwhile=lambda session_id: in_other_process(session_id, APPEND)
    )
    async with start(build_agent=builder, compressor=compressor) as runtime:
        for _ in range(4):
            await runtime.ask("k", LONG)
        outcome = await runtime.conversation("k").compress(keep_exchanges=1)
        reply = await runtime.ask("k", "go on")
        assert (reply.session_id, reply.build_reason) == (outcome.session_id, None)
        assert builder.agents[0].shown[-1][-1] == ("user", "theirs")
        assert builds(runtime) == {"cold": 1}


async def test_a_compression_is_skipped_if_the_transcript_is_rewritten_meanwhile(
    start, in_other_process
):
    builder = recording_builder()
    compressor = InterruptedCompressor(
        meanwhile=lambda session_id: in_other_process(session_id, CHANGES["edit"])
    )
    async with start(build_agent=builder, compressor=compressor) as runtime:
        for _ in range(4):
            session_id = (await runtime.ask("k", LONG)).session_id
        assert not (await runtime.conversation("k").compress(keep_exchanges=1)).changed
        reply = await runtime.ask("k", "go on")
        assert (reply.session_id, reply.build_reason) == (session_id, "foreign-write")
        assert builder.agents[1].shown[-1][0] == ("user", "news")
        assert (await runtime.ask("k", "and on")).build_reason is None


async def test_a_session_deleted_by_another_process_is_not_used_again(start, in_other_process):
    builder = recording_builder()
    async with start(build_agent=builder) as runtime:
        deleted = (await runtime.ask("k", "secret")).session_id
        in_other_process(deleted, "store.delete_session(sid)")
        reply = await runtime.ask("k", "hello")
        assert reply.session_id != deleted
        assert builder.agents[-1].shown[-1] == []


# Queued messages


async def test_a_queued_message_with_an_old_head_keeps_the_agent(start):
    receipts = []

    async def more(turn):
        receipts.append(await runtime.submit(Inbound("k", f"e{len(receipts)}", "queued")))

    builder = recording_builder("one", [more, "two"], [more, "three"], "four")
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "1")
        with runtime.subscribe("k") as received:
            await runtime.ask("k", "2")
            replies = [await reply_to(received, receipts[0]), await reply_to(received, receipts[1])]
        assert [(reply.text, reply.build_reason) for reply in replies] == [
            ("three", None), ("four", None),
        ]  # fmt: skip
        assert len(builder.agents[0].shown[-1]) == 6
        assert builds(runtime) == {"cold": 1}


async def test_a_change_before_a_queued_message_causes_one_rebuild(start, in_other_process):
    receipts = []

    async def more(turn):
        in_other_process(turn.session_id, APPEND)
        receipts.append(await runtime.submit(Inbound("k", "e", "queued")))

    builder = recording_builder("one", [more, "two"], "three")
    async with start(build_agent=builder) as runtime:
        await runtime.ask("k", "1")
        with runtime.subscribe("k") as received:
            await runtime.ask("k", "2")
            reply = await reply_to(received, receipts[0])
        assert reply.build_reason == "foreign-write"
        assert builder.agents[1].shown == [
            [("user", "1"), ("assistant", "one"), ("user", "theirs"), ("user", "2"),
             ("assistant", "two")],
        ]  # fmt: skip
        assert (await runtime.ask("k", "4")).build_reason is None
        assert builds(runtime) == {"cold": 1, "foreign-write": 1}


@with_threads
async def test_a_turn_is_discarded_if_its_route_was_moved_away_and_back(start, in_other_process):
    async def meanwhile(turn):
        in_other_process(turn.session_id, f"store.switch('k', {other!r}); store.switch('k', sid)")
        await runtime.submit(Inbound("k", "e", "queued"))

    builder = recording_builder("one", "two", [meanwhile, "discarded"], "both")
    async with start(build_agent=builder) as runtime:
        session_id = (await runtime.ask("k", "1")).session_id
        await runtime.conversation("k").new()
        other = (await runtime.ask("k", "2")).session_id
        await runtime.conversation("k").switch(session_id)
        assert (await runtime.ask("k", "3")).text == "both"
        assert ("assistant", "discarded") not in texts_of(await runtime.conversation("k").history())


@with_threads
async def test_a_message_whose_turns_are_discarded_again_and_again_is_parked(
    start, in_other_process, sql
):
    turns = []

    async def agent(turn):
        if turn.text == "3":
            turns.append(turn.turn_id)
            away_and_back = f"store.switch('k', {other!r}); store.switch('k', sid)"
            in_other_process(turn.session_id, away_and_back)
        return "done"

    async with start(agent=agent) as runtime:
        session_id = (await runtime.ask("k", "1")).session_id
        await runtime.conversation("k").new()
        other = (await runtime.ask("k", "2")).session_id
        await runtime.conversation("k").switch(session_id)
        reply = await runtime.ask("k", "3")
        assert (reply.status, len(turns)) == ("refused", 3)
        assert (await runtime.ask("k", "4")).text == "done"
    assert sql("SELECT state, attempts FROM inbox ORDER BY id")[2] == ["parked", 3]


ACCEPT = """
from hermes.messages import Inbound
store.accept(Inbound(sid, "theirs", "from another process"))
"""


@pytest.mark.parametrize("key", ["new", "k"])
async def test_a_message_that_another_process_accepts_is_answered_soon(
    start, in_other_process, autojump_clock, key
):
    agent = ScriptedAgent()
    async with start(build_agent=lambda _: agent) as runtime:
        await runtime.ask("k", "hello")
        with runtime.subscribe(key) as events:
            in_other_process(key, ACCEPT)
            with trio.fail_after(2):
                await wait_ended(events, 1)
    assert agent.turns[-1].text == "from another process"


async def test_a_message_that_another_process_accepts_during_a_turn_follows_it(
    start, in_other_process, autojump_clock
):
    async def meanwhile(turn):
        in_other_process("k", ACCEPT)
        await trio.sleep(5)

    async with start(build_agent=recording_builder([meanwhile, "first"], "second")) as runtime:
        with runtime.subscribe("k") as events:
            await runtime.ask("k", "hello")
            with trio.fail_after(2):
                await wait_ended(events, 2)
        rows = await runtime.conversation("k").history()
    said = ["hello", "first", "from another process", "second"]
    assert [row.content for row in rows] == said
