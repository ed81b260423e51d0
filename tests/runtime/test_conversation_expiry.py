"""Conversations that expire: by the sweep, or at a late message."""

from __future__ import annotations

from datetime import datetime

import pytest
import trio

from hermes.config import Config
from hermes.events import Notice
from hermes.messages import ExpiryPolicy, Inbound
from hermes.store import SessionStore
from hermes.testing import (
    MemoryAdapter,
    inspect,
)
from tests.support.boundaries import (
    FINALIZE,
    HOUR,
    IDLE,
    RESET,
    SWITCH,
    TELEGRAM,
    hooks_of,
)
from tests.support.conversations import scripted
from tests.support.runtime import with_threads


def stored(path, session_id):
    with SessionStore(path) as store:
        return store.get_session(session_id)


def tomorrow(world):
    """Return the next full hour of the local clock."""
    return (datetime.fromtimestamp(world.now).astimezone().hour + 1) % 24


def policy_of(mode, world):
    if mode == "idle":
        return ExpiryPolicy(mode="idle", idle_minutes=60)
    if mode == "daily":
        return ExpiryPolicy(mode="daily", at_hour=tomorrow(world))
    return ExpiryPolicy(mode="both", idle_minutes=60, at_hour=(tomorrow(world) + 5) % 24)


@pytest.mark.parametrize("mode", ["idle", "daily", "both"])
async def test_a_sweep_finalizes_an_expired_session_exactly_once(
    start_with_store, world, recorder, mode
):
    config = Config(expiry=policy_of(mode, world))
    async with start_with_store(hooks=hooks_of(recorder), config=config) as (store, runtime):
        old = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        assert await store.sweep_once() == []
        world.pass_time(HOUR + 1)
        assert await store.sweep_once() == [old]
        assert await store.sweep_once() == []
        await runtime.wait_hooks()
        new = (await store.get_route("k")).session_id
        assert recorder.calls == [(FINALIZE, old), (RESET, new)]
        assert recorder.platforms == ["telegram", "telegram"]
        assert recorder.contexts == [old, new]
        ended = await store.get_session(old)
        assert (ended.end_reason, ended.ended_at) == ("session_expired", world.now)
        assert await store.get_session(new) is None
        recorder.calls.clear()
    recorder.calls.clear()  # of the shutdown
    world.pass_time(48 * HOUR)
    async with start_with_store(hooks=hooks_of(recorder), config=config) as (store, runtime):
        assert await store.sweep_once() == []
        await runtime.wait_hooks()
        assert recorder.calls == []


async def test_the_sweep_runs_periodically(start, path, world, recorder, autojump_clock):
    async with start(hooks=hooks_of(recorder), config=IDLE, sweep_interval=10) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        await trio.sleep(25)
        await runtime.wait_hooks()
        assert recorder.calls == []
        world.pass_time(2 * HOUR)
        await trio.sleep(25)
        await runtime.wait_hooks()
        assert [call for call in recorder.calls if call[0] == FINALIZE] == [(FINALIZE, old)]
    assert stored(path, old).end_reason == "session_expired"


@with_threads
@pytest.mark.parametrize("mode", ["idle", "daily"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_late_message_starts_a_new_conversation(
    start, path, world, recorder, mode, restarted
):
    config = Config(expiry=policy_of(mode, world))
    async with start(config=config) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        if restarted:
            world.pass_time(2 * HOUR)
    agent, build = scripted()
    async with start(build_agent=build, hooks=hooks_of(recorder), config=config) as runtime:
        world.pass_time(2 * HOUR)
        new = (await runtime.ask("k", "again")).session_id
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, old), (RESET, new)]
        assert (await runtime.ask("k", "more")).session_id == new
        await runtime.wait_hooks()
        assert len(recorder.calls) == 2
        assert len(agent.turns[0].history) == 2 * 2  # of this conversation only
    assert stored(path, old).end_reason == "session_expired"


async def test_a_message_in_time_keeps_the_conversation_alive(start_with_store, world, recorder):
    async with start_with_store(hooks=hooks_of(recorder), config=IDLE) as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        for _ in range(3):
            world.pass_time(HOUR - 1)
            assert await store.sweep_once() == []
            assert (await runtime.ask("k", "more")).session_id == first
        await runtime.wait_hooks()
        assert recorder.calls == []


@with_threads
async def test_a_conversation_does_not_expire_during_a_turn(start_with_store, world, recorder):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    _, build = scripted("first", [wait, "second"])
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", "slow"))

    async with start_with_store(hooks=hooks_of(recorder), config=IDLE, build=build) as (
        store,
        runtime,
    ):
        old = (await runtime.ask("k", "hello")).session_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await begun.wait()
            world.pass_time(3 * HOUR)
            assert await store.sweep_once() == []
            receipt = await runtime.submit(Inbound("k", "e", "meanwhile"))
            assert receipt.session_id == old
            world.pass_time(3 * HOUR)
            release.set()
        assert replies[0].session_id == old
        await inspect(runtime).wait_idle("k")
        assert [row.content for row in await store.get_messages(old)][-2] == "meanwhile"
        assert await store.sweep_once() == []  # an hour from the answer on
        world.pass_time(HOUR + 1)
        assert await store.sweep_once() == [old]
        await runtime.wait_hooks()
        assert [event for event, _ in recorder.calls] == [FINALIZE, RESET]


async def test_each_platform_has_its_own_policy_and_without_one_nothing_expires(
    start_with_store, world
):
    config = Config(expiry_by={"telegram": ExpiryPolicy(mode="idle", idle_minutes=1)})
    async with start_with_store(config=config) as (store, runtime):
        short = (await runtime.ask("t", "hello", source=TELEGRAM)).session_id
        long = (await runtime.ask("e", "hello")).session_id
        world.pass_time(1000 * HOUR)
        assert await store.sweep_once() == [short]
        assert (await runtime.ask("e", "more")).session_id == long


@pytest.mark.parametrize("how", ["sweep", "message"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_expiry_is_announced_once_at_the_next_message(
    start_with_store, world, how, restarted
):
    adapter = MemoryAdapter("embedded")
    told = []

    async def talk(runtime):
        with runtime.subscribe("k") as events:
            await runtime.ask("k", "/status")  # is not the message, and does not use it up
            await runtime.ask("k", "again")
            await runtime.ask("k", "more")
            await inspect(runtime).wait_idle("k")
        told.extend([each.event.text async for each in events if isinstance(each.event, Notice)])

    async with start_with_store(config=IDLE, adapters=[adapter]) as (store, runtime):
        await runtime.ask("k", "hello")
        world.pass_time(2 * HOUR)
        if how == "sweep":
            await store.sweep_once()
        if not restarted:
            await talk(runtime)
    if restarted:
        async with start_with_store(config=IDLE, adapters=[adapter]) as (_, runtime):
            await talk(runtime)
    notices = [row.body["text"] for row in adapter.sent if row.body["kind"] == "notice"]
    assert len(notices) == 1
    assert "/resume" in notices[0]
    assert told == notices
    said = adapter.texts
    assert said.index(notices[0]) == said.index("echo: again") - 1


async def test_switching_back_to_an_expired_conversation_reopens_it(
    start_with_store, world, recorder
):
    async with start_with_store(hooks=hooks_of(recorder), config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        new = (await runtime.ask("k", "again")).session_id
        assert "Back in" in (await runtime.ask("k", f"/resume {old}")).text
        assert (await runtime.ask("k", "more")).session_id == old
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, old), (RESET, new), (SWITCH, old)]
        assert (await store.get_session(old)).ended_at is None


async def test_a_key_without_a_conversation_does_not_expire(start_with_store, world, recorder):
    adapter = MemoryAdapter("embedded")
    async with start_with_store(hooks=hooks_of(recorder), config=IDLE, adapters=[adapter]) as (
        store,
        runtime,
    ):
        await runtime.ask("k", "/title Plans")
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == []
        await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        await runtime.wait_hooks()
        assert recorder.calls == []
        assert [listed.session.title for listed in await runtime.conversation("k").sessions()] == [
            "Plans"
        ]
    assert [row.body["text"] for row in adapter.sent if row.body["kind"] == "notice"] == []


async def test_a_title_after_an_expiry_is_for_the_next_conversation(start_with_store, world):
    async with start_with_store(config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == [old]
        await runtime.conversation("k").set_title("Plans")
        assert (await store.get_session(old)).title is None
        new = (await runtime.ask("k", "again")).session_id
        await inspect(runtime).wait_idle("k")
        assert (await store.get_session(new)).title == "Plans"


async def test_the_status_after_an_expiry_is_that_of_the_next_conversation(start_with_store, world):
    async with start_with_store(config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == [old]
        status = await runtime.conversation("k").status()
        assert status.session_id == (await store.get_route("k")).session_id
        assert status.message_count == 0
