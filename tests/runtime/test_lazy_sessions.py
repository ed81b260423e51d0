"""A session gets its row and its title with its first turn, and ends when it is closed."""

from __future__ import annotations

import functools
import re

import pytest
import trio
import trio.testing

from hermes.config import Config
from hermes.context import set_current_session_id
from hermes.errors import TitleTaken
from hermes.events import TurnEnded
from hermes.messages import Inbound, Title, TurnResult
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    forever,
    inline,
    inspect,
    texts_of,
)
from tests.support.boundaries import compress, rotate_elsewhere, talk_at_length
from tests.support.conversations import outbox_texts, scripted, session_titles
from tests.support.runtime import with_threads
from tests.support.store_proxy import Through

# No row before the first message

COMMANDS = [
    "/status", "/title", "/title Plans", "/new", "/new Plans", "/reset", "/help", "/whoami",
    "/usage", "/sessions", "/resume", "/resume 1", "/resume Plans", "/undo", "/undo 3", "/retry",
    "/stop", "/branch", "/compress", "/compress here 2", "/queue", "/steer", "/background",
    "/approve", "/approve 1", "/deny", "/deny 1",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_is_answered_and_creates_no_session(start_with_store, command):
    async with start_with_store(compressor=DeterministicCompressor()) as (store, runtime):
        reply = await runtime.ask("k", command)
        assert reply.status == "command"
        assert reply.text
        assert "did not work" not in reply.text
        assert await outbox_texts(store, reply.turn_id) == [reply.text]
        assert await session_titles(store) == {}
        assert await store.open_inbox("k") == []


async def test_an_unknown_command_creates_no_session(start_with_store):
    async with start_with_store() as (store, runtime):
        with runtime.subscribe("k") as events:
            await runtime.submit(Inbound("k", "e", "/nonsense", command=True))
            told = await anext(events)
        assert told.event.reply.status == "command"
        assert "/nonsense" in told.event.reply.text
        assert await session_titles(store) == {}


async def test_verbs_of_the_host_create_no_session(start_with_store):
    async with start_with_store() as (store, runtime):
        assert not (await runtime.conversation("k").close()).changed
        assert await runtime.conversation("k").history() == []
        assert await runtime.conversation("k").sessions() == []
        assert await runtime.conversation("k").interrupt() is False
        await runtime.conversation("k").new("Plans")
        assert await runtime.conversation("k").history() == []
        await runtime.conversation("k").status()
        await runtime.conversation("k").close()
        assert await session_titles(store) == {}


@with_threads
async def test_the_first_turn_creates_the_row_with_the_id_that_was_known_before(
    start_with_store,
):
    seen = {}

    async def look(turn):
        seen["during"] = await session_titles(store)
        seen["id"] = turn.session_id

    _, build = scripted([look, "hello"])
    async with start_with_store(build=build) as (store, runtime):
        await runtime.ask("k", "/help")
        before = (await runtime.conversation("k").status()).session_id
        reply = await runtime.ask("k", "hi")
        assert seen == {"during": {}, "id": before}
        assert reply.session_id == before
        assert await session_titles(store) == {before: None}
        assert (await store.get_session(before)).message_count == 2


async def test_after_new_there_is_no_row_until_the_next_message(start_with_store):
    async with start_with_store() as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        new = (await runtime.ask("k", "/new")).session_id
        await runtime.ask("k", "/status")
        assert set(await session_titles(store)) == {first}
        assert (await runtime.ask("k", "more")).session_id == new
        assert set(await session_titles(store)) == {first, new}


@with_threads
async def test_a_first_turn_interrupted_by_the_shutdown_creates_no_row_and_runs_again(
    start_with_store,
):
    _, hanging = scripted(forever())
    async with start_with_store(build=hanging, config=Config(drain_timeout=0)) as (store, runtime):
        receipt = await runtime.submit(Inbound("k", "e", "hello"))
        await trio.testing.wait_all_tasks_blocked()
    async with start_with_store() as (store, runtime):
        await recovered_turn_ended(runtime)
        assert set(await session_titles(store)) == {receipt.session_id}
        said = texts_of(await runtime.conversation("k").history())
        assert said == [("user", "hello"), ("assistant", "echo: hello")]


async def recovered_turn_ended(runtime):
    """Wait for the end of a turn that an earlier runtime left unfinished."""
    with runtime.subscribe("k") as events:
        if await runtime.conversation("k").history(include_waiting=False):
            return
        async for each in events:
            if isinstance(each.event, TurnEnded):
                break
    await inspect(runtime).wait_idle("k")


class SlowToRecover(Through):
    """A store that takes long to find out what an earlier process left unfinished."""

    async def waiting_keys(self, after=0, limit=1000):
        await self.gate.wait()
        return await self.store.waiting_keys(after, limit=limit)


@with_threads
async def test_a_message_after_a_restart_waits_for_the_interrupted_one(start_with_store):
    _, hanging = scripted(forever())
    async with start_with_store(build=hanging, config=Config(drain_timeout=0)) as (_, runtime):
        await runtime.submit(Inbound("k", "e", "first"))
        await trio.testing.wait_all_tasks_blocked()
    gate = trio.Event()
    async with start_with_store(behind=functools.partial(SlowToRecover, gate=gate)) as (_, runtime):
        await runtime.ask("k", "second")
        gate.set()
        await inspect(runtime).wait_idle("k")
        asked = [
            row.content for row in await runtime.conversation("k").history() if row.role == "user"
        ]
        assert asked == ["first", "second"]


async def test_a_host_may_set_a_title_before_the_first_message(start_with_store):
    async with start_with_store() as (store, runtime):
        await runtime.conversation("k").set_title("Plans")
        assert await session_titles(store) == {}
        reply = await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert await session_titles(store) == {reply.session_id: "Plans"}


async def test_a_conversation_without_messages_has_a_status(start_with_store):
    async with start_with_store() as (store, runtime):
        status = await runtime.conversation("k").status()
        assert (status.message_count, status.busy, status.waiting) == (0, False, 0)
        assert await session_titles(store) == {}


# Pending titles


@with_threads
@pytest.mark.parametrize("how", ["/title", "/new", "verb", "twice"])
async def test_a_title_is_pending_until_the_first_turn(start_with_store, how):
    async with start_with_store() as (store, runtime):
        if how == "verb":
            await runtime.ask("k", "/help")
            await runtime.conversation("k").set_title("Plans")
        elif how == "twice":
            await runtime.ask("k", "/title Something else")
            await runtime.ask("k", "/title Plans")
        else:
            await runtime.ask("k", f"{how} Plans")
        assert "Plans" in (await runtime.ask("k", "/title")).text
        assert (await runtime.conversation("k").status()).title == "Plans"
        assert (await store.get_route("k")).pending_title == "Plans"
        reply = await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert await session_titles(store) == {reply.session_id: "Plans"}
        assert (await store.get_route("k")).pending_title is None
        assert (await runtime.conversation("k").status()).title == "Plans"


@with_threads
async def test_a_title_set_during_the_first_turn_is_applied_after_it(start_with_store):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    _, build = scripted([wait, "done"])
    async with start_with_store(build=build) as (store, runtime):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "k", "hello")
            await begun.wait()
            await runtime.ask("k", "/title Plans")
            assert await session_titles(store) == {}
            release.set()
        await inspect(runtime).wait_idle("k")
        assert list((await session_titles(store)).values()) == ["Plans"]


TAKEN = "You already have a conversation called Plans. Use /resume Plans to go back to it."


@pytest.mark.parametrize("how", ["/title Plans", "/new Plans", "set_title", "new"])
async def test_a_title_in_use_is_refused_before_the_first_message(start_with_store, how):
    async with start_with_store() as (store, runtime):
        conversation = runtime.conversation("k")
        holder = (await runtime.ask("k", "hello")).session_id
        await conversation.set_title("Plans")
        fresh = (await conversation.new()).session_id
        if how.startswith("/"):
            assert (await runtime.ask("k", how)).text == TAKEN
        else:
            verb = conversation.set_title if how == "set_title" else conversation.new
            with pytest.raises(TitleTaken, match=f"already in use by session {holder}") as refused:
                await verb("Plans")
            assert (refused.value.title, refused.value.session_id) == ("Plans", holder)
            assert isinstance(refused.value, ValueError)
        assert await conversation.title() == Title(None)
        assert (await runtime.ask("k", "hello")).session_id == fresh
        assert await session_titles(store) == {holder: "Plans", fresh: None}


async def test_a_refused_new_reports_the_messages_that_it_cancelled(start_with_store):
    begun = trio.Event()

    async def wait(_):
        begun.set()
        await trio.sleep_forever()

    _, build = scripted("hello", [wait])
    async with start_with_store(build=build) as (_, runtime):
        holder = (await runtime.ask("k", "hello")).session_id
        await runtime.conversation("k").set_title("Plans")
        await runtime.submit(Inbound("k", "running", "wait"))
        await begun.wait()
        await runtime.submit(Inbound("k", "queued", "and then?"))
        reply = await runtime.ask("k", "/new Plans")
        assert reply.text == f"{TAKEN} 1 queued message was cancelled."
        assert (await runtime.conversation("k").status()).session_id == holder


@pytest.mark.parametrize("title", ["Plans", "1"])
async def test_the_hint_of_a_refused_new_leads_to_the_conversation(start_with_store, title):
    """Also if the title is a number, which `/resume` takes for a place in the list."""
    async with start_with_store() as (_, runtime):
        holder = (await runtime.ask("k", f"/new {title}")).session_id
        await runtime.ask("k", "hello")
        await runtime.ask("k", "/new")
        await runtime.ask("k", "hello")
        refusal = (await runtime.ask("k", f"/new {title}")).text
        hint = re.search(r"Use (/resume .+) to go back", refusal)[1]
        assert (await runtime.ask("k", hint)).session_id == holder


async def test_another_key_may_have_the_same_title(start_with_store):
    async with start_with_store() as (store, runtime):
        for key in ("k1", "k2"):
            await runtime.ask(key, "/title Plans")
            await runtime.ask(key, "hello")
        assert list((await session_titles(store)).values()) == ["Plans", "Plans"]


async def test_a_pending_title_that_is_taken_meanwhile_gets_a_number(start_with_store):
    async with start_with_store() as (store, runtime):
        await runtime.ask("k", "/title Plans")
        await store.create_session("other", "x", session_key="k")
        await store.set_session_title("other", "Plans")
        reply = await runtime.ask("k", "hello")
        assert await session_titles(store) == {"other": "Plans", reply.session_id: "Plans #2"}
        assert await runtime.conversation("k").title() == Title("Plans #2")


async def test_an_invalid_title_is_refused_at_once(start_with_store):
    async with start_with_store() as (store, runtime):
        assert "too long" in (await runtime.ask("k", "/title " + "x" * 200)).text
        assert (await store.get_route("k")).pending_title is None
        reply = await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert await session_titles(store) == {reply.session_id: None}


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_title_that_is_still_pending_is_applied_in_the_next_turn(
    start_with_store, restarted
):
    async with start_with_store() as (store, runtime):
        reply = await runtime.ask("k", "hello")
        await store.set_pending_title("k", "Plans")  # as an earlier version may have left it
        assert await runtime.conversation("k").title() == Title("Plans", pending=True)
        if not restarted:
            assert (await runtime.ask("k", "more")).build_reason is None
            assert await session_titles(store) == {reply.session_id: "Plans"}
    if restarted:
        async with start_with_store() as (store, runtime):
            await runtime.ask("k", "more")
            assert await session_titles(store) == {reply.session_id: "Plans"}


@pytest.mark.parametrize("how", ["command", "verb"])
async def test_a_later_title_is_not_replaced_by_a_pending_one(start_with_store, how):
    async with start_with_store() as (store, runtime):
        reply = await runtime.ask("k", "hello")
        await store.set_pending_title("k", "Plans")
        if how == "command":
            await runtime.ask("k", "/title Better plans")
        else:
            await runtime.conversation("k").set_title("Better plans")
        await runtime.ask("k", "more")
        assert await session_titles(store) == {reply.session_id: "Better plans"}


@pytest.mark.parametrize("fault", ["full", "busy"])
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_a_disk_that_is_full_at_the_first_turn_keeps_the_title(
    start_with_store, autojump_clock, fault
):
    faults = []

    async def arm(_):
        faults.append(fault)  # the COMMIT of the turn, which is repeated

    _, build = scripted([arm, "done"])
    worker = inline(lambda: faults.pop(0) if faults else None)
    async with start_with_store(build=build, open_worker=worker) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        await trio.sleep(10)  # nothing else is written any more
        reply = await runtime.ask("k", "hello")
        assert (reply.text, faults) == ("done", [])
        assert await session_titles(store) == {reply.session_id: "Plans"}


@with_threads
@pytest.mark.parametrize("how", ["restart", "passivation", "cut off"])
async def test_a_title_survives_what_happens_before_the_first_turn_ends(start_with_store, how):
    _, hanging = scripted(forever())
    config = Config(idle_timeout=0, drain_timeout=0)
    async with start_with_store(build=hanging, config=config) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        if how == "cut off":
            await runtime.submit(Inbound("k", "e", "hello"))
            await trio.testing.wait_all_tasks_blocked()
        if how == "passivation":
            runtime.admin.passivate()
            assert (await runtime.admin.statistics()).actors == 0
            await runtime.conversation("other").new()  # something else
            assert (await runtime.conversation("k").status()).title == "Plans"
    async with start_with_store() as (store, runtime):
        if how == "cut off":
            await recovered_turn_ended(runtime)
        else:
            await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert list((await session_titles(store)).values()) == ["Plans"]


@pytest.mark.parametrize("how", ["result", "context"])
async def test_a_title_goes_to_the_tip_if_the_first_turn_rotated(start_with_store, how):
    async def rotate(_):
        set_current_session_id("child")

    last = TurnResult(text="done", session_id="child") if how == "result" else [rotate, "done"]
    _, build = scripted(last)
    async with start_with_store(build=build) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        assert (await runtime.ask("k", "hello")).session_id == "child"
        await inspect(runtime).wait_idle("k")
        [parent] = set(await session_titles(store)) - {"child"}
        assert await session_titles(store) == {parent: None, "child": "Plans"}
        assert (await store.get_session(parent)).end_reason == "compression"
        assert (await runtime.conversation("k").status()).session_id == "child"
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "hello"),
            ("assistant", "done"),
        ]


async def test_a_pending_title_is_not_applied_to_a_session_that_is_switched_to(start_with_store):
    async with start_with_store() as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new Plans")
        await runtime.conversation("k").switch(first)
        await runtime.ask("k", "more")
        await inspect(runtime).wait_idle("k")
        assert await session_titles(store) == {first: None}


async def test_new_drops_the_pending_title(start_with_store):
    async with start_with_store() as (store, runtime):
        await runtime.ask("k", "/title Plans")
        await runtime.ask("k", "/new")
        reply = await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert await session_titles(store) == {reply.session_id: None}


# Closing


@with_threads
@pytest.mark.parametrize("who", ["runtime", "agent", "another process", "nobody"])
async def test_close_finalizes_and_ends_the_current_session_and_not_an_earlier_one(
    start_with_store, path, recorder, who
):
    second = TurnResult(text="done", session_id="child") if who == "agent" else "done"
    _, build = scripted("first", second)
    options = {"build": build, "compressor": DeterministicCompressor(), "finalized": recorder}
    async with start_with_store(**options) as (store, runtime):
        parent = child = (await runtime.ask("k", "hello")).session_id
        if who == "runtime":
            await talk_at_length(runtime)
            child = await compress(runtime)
        elif who == "agent":
            child = (await runtime.ask("k", "more")).session_id
        elif who == "another process":
            await trio.to_thread.run_sync(rotate_elsewhere, path, parent)
            child = "child"
        assert (child == parent) == (who == "nobody")
        closed = await runtime.conversation("k").close(reason="tui_close")
        assert (closed.old_session_id, closed.changed) == (child, True)
        await runtime.wait_hooks()
        assert recorder.calls == [("finalize", child)]
        assert (await store.get_session(child)).end_reason == "tui_close"
        if who != "nobody":
            assert (await store.get_session(parent)).end_reason == "compression"


async def test_close_ends_the_session_of_the_route_even_if_no_agent_was_built(
    start_with_store, recorder, world
):
    async with start_with_store() as (store, runtime):
        reply = await runtime.ask("k", "hello")
    builder = CountingBuilder()
    async with start_with_store(build=builder, finalized=recorder) as (store, runtime):
        assert (await runtime.conversation("k").close()).old_session_id == reply.session_id
        await runtime.wait_hooks()
        assert recorder.calls == [("finalize", reply.session_id)]
        session = await store.get_session(reply.session_id)
        assert (session.end_reason, session.ended_at) == ("closed", world.now)
    assert len(builder) == 0


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_message_after_close_starts_a_new_session(start_with_store, restarted):
    agent, build = scripted()
    async with start_with_store(build=build) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        await runtime.conversation("k").close()
        if not restarted:
            new = await runtime.ask("k", "again")
    if restarted:
        agent, build = scripted()
    async with start_with_store(build=build) as (store, runtime):
        if restarted:
            new = await runtime.ask("k", "again")
        assert new.session_id != old
        assert (await store.get_session(old)).end_reason == "closed"
        assert (await store.get_session(new.session_id)).ended_at is None
        said = texts_of(await runtime.conversation("k").history())
        assert said == [("user", "again"), ("assistant", "echo: again")]
        assert texts_of(agent.turns[-1].history) == said  # and nothing of the old one


@with_threads
async def test_close_waits_for_a_running_turn_and_queued_messages_start_a_new_session(
    start_with_store, recorder
):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    _, build = scripted([wait, "first"], "second")
    got = {}

    async def ask(text):
        got[text] = await runtime.ask("k", text)

    async def close():
        got["closed"] = (await runtime.conversation("k").close()).old_session_id

    async with start_with_store(build=build, finalized=recorder) as (store, runtime):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "one")
            await begun.wait()
            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            receipt = await runtime.submit(Inbound("k", "e", "two"))
            assert receipt.session_id == (await store.get_route("k")).session_id
            assert "closed" not in got
            release.set()
        await inspect(runtime).wait_idle("k")
        assert got["one"].text == "first"
        assert got["closed"] == got["one"].session_id
        said = texts_of(await runtime.conversation("k").history())
        assert said == [("user", "two"), ("assistant", "second")]
        assert len(await session_titles(store)) == 2
        await runtime.wait_hooks()
        assert recorder.calls == [("finalize", got["closed"])]
