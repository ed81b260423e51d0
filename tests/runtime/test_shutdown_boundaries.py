"""The end of a runtime finalizes its active sessions, and ends none.

These tests assert after the block, on what only its end can cause: pytest-trio reports a test as
passed that a stray `Cancelled` ended early.
"""

from __future__ import annotations

import threading

import pytest
import trio

from hermes.config import Config
from hermes.context import set_current_session_id
from hermes.errors import ActorStopped, Draining
from hermes.messages import Inbound, TurnResult
from hermes.store import SessionStore
from hermes.testing import (
    DeterministicCompressor,
    forever,
    inline,
    inspect,
)
from tests.support.boundaries import (
    FINALIZE,
    HOUR,
    IDLE,
    RESET,
    TELEGRAM,
    compress,
    hooks_of,
    rotate_elsewhere,
    talk_at_length,
)
from tests.support.conversations import scripted
from tests.support.runtime import threads_only, with_threads

AT_ONCE = Config(idle_timeout=0)
PATIENCE = 60
"""Seconds after which a test that does not end has failed."""


def stored(path, session_id):
    with SessionStore(path) as store:
        return store.get_session(session_id)


# Leaving the block


@with_threads
async def test_leaving_finalizes_every_active_session_and_ends_none(start, path, recorder):
    keys = [f"k{n}" for n in range(40)]  # more than there are lanes at once
    replies = {}

    async def ask(key):
        replies[key] = await runtime.ask(key, "hello", source=TELEGRAM)

    async with start(hooks=hooks_of(recorder)) as runtime:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask, key)
        await runtime.wait_hooks()
        assert recorder.calls == []
    ids = [reply.session_id for reply in replies.values()]
    assert sorted(recorder.calls) == sorted((FINALIZE, session_id) for session_id in ids)
    assert set(recorder.platforms) == {"telegram"}
    assert recorder.contexts == [session_id for _, session_id in recorder.calls]
    with SessionStore(path) as store:
        assert {store.get_session(session_id).ended_at for session_id in ids} == {None}


async def test_after_leaving_the_next_start_continues_and_leaving_that_finalizes_again(
    start, recorder
):
    async with start(hooks=hooks_of(recorder)) as runtime:
        first = await runtime.ask("k", "hello")
    agent, build = scripted()
    async with start(build_agent=build, hooks=hooks_of(recorder)) as runtime:
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, first.session_id)]
        second = await runtime.ask("k", "more")
        assert second.session_id == first.session_id
        history = [message.content for message in agent.turns[0].history][:2]
        assert history == ["hello", "echo: hello"]
    assert recorder.calls == [(FINALIZE, first.session_id)] * 2


async def test_leaving_after_a_compression_finalizes_the_child(start, path, recorder):
    async with start(hooks=hooks_of(recorder), compressor=DeterministicCompressor()) as runtime:
        parent = await talk_at_length(runtime)
        child = await compress(runtime)
        await runtime.wait_hooks()
        assert recorder.calls == []
    assert recorder.calls == [(FINALIZE, child)]
    assert stored(path, parent).end_reason == "compression"
    assert stored(path, child).ended_at is None


@pytest.mark.parametrize("how", ["result", "context"])
async def test_leaving_after_a_rotation_by_the_agent_finalizes_the_new_id(start, recorder, how):
    async def rotate(_):
        set_current_session_id("child")

    last = TurnResult(text="done", session_id="child") if how == "result" else [rotate, "done"]
    _, build = scripted("first", last)
    async with start(build_agent=build, hooks=hooks_of(recorder)) as runtime:
        await runtime.ask("k", "hello")
        assert (await runtime.ask("k", "more")).session_id == "child"
        await runtime.wait_hooks()
        assert recorder.calls == []
    assert recorder.calls == [(FINALIZE, "child")]


async def test_leaving_after_another_process_rotated_finalizes_the_child(start, path, recorder):
    async with start(hooks=hooks_of(recorder)) as runtime:
        parent = (await runtime.ask("k", "hello")).session_id
        await trio.to_thread.run_sync(rotate_elsewhere, path, parent)
    assert recorder.calls == [(FINALIZE, "child")]


async def test_leaving_after_a_switch_finalizes_only_the_current_session(start, path, recorder):
    async with start(hooks=hooks_of(recorder)) as runtime:
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        second = (await runtime.ask("k", "more")).session_id
        await runtime.conversation("k").switch(first)
        await runtime.wait_hooks()
        recorder.calls.clear()
    assert recorder.calls == [(FINALIZE, first)]
    assert stored(path, first).ended_at is None
    assert stored(path, second).ended_at is None


@pytest.mark.parametrize("how", ["passivated", "nothing", "command", "new", "closed", "last run"])
async def test_leaving_finalizes_no_conversation_that_is_not_active(start, recorder, how):
    if how == "last run":
        async with start() as runtime:
            await runtime.ask("k", "hello")
    async with start(hooks=hooks_of(recorder), config=AT_ONCE) as runtime:
        if how in {"passivated", "new", "closed"}:
            await runtime.ask("k", "hello")
        if how == "passivated":
            await inspect(runtime).wait_idle("k")
            runtime.admin.passivate()
            assert (await runtime.admin.statistics()).actors == 0
        elif how == "command":
            await runtime.ask("k", "/status")
        elif how == "new":
            await runtime.conversation("k").new()
        elif how == "closed":
            await runtime.conversation("k").close()
        await runtime.wait_hooks()
        before = list(recorder.calls)
    assert recorder.calls == before


async def test_leaving_after_an_expiry_does_not_finalize_the_unused_session(
    start_with_store, world, recorder
):
    async with start_with_store(hooks=hooks_of(recorder), config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == [old]
        await runtime.wait_hooks()
        assert [event for event, _ in recorder.calls] == [FINALIZE, RESET]
    assert [event for event, _ in recorder.calls] == [FINALIZE, RESET]


@with_threads
async def test_leaving_by_an_error_finalizes_too_at_the_next_start_at_the_latest(start, recorder):
    with pytest.raises(ZeroDivisionError):
        async with start(hooks=hooks_of(recorder)) as runtime:
            reply = await runtime.ask("k", "hello")
            _ = 1 / 0
    async with start(hooks=hooks_of(recorder)) as runtime:
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, reply.session_id)]
        assert (await runtime.ask("k", "more")).session_id == reply.session_id


@with_threads
async def test_leaving_by_a_cancellation_finalizes_too_at_the_next_start_at_the_latest(
    start, recorder
):
    """Ten conversations, five times: the order in which a cancellation wakes tasks is random."""
    keys = [f"k{n}" for n in range(10)]
    ids = []
    for _ in range(5):
        with trio.CancelScope() as scope:
            async with start(hooks=hooks_of(recorder)) as runtime:
                ids += [(await runtime.ask(key, "hello")).session_id for key in keys]
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    async with start(hooks=hooks_of(recorder)) as runtime:
        await runtime.wait_hooks()
    assert sorted(recorder.calls) == sorted((FINALIZE, session_id) for session_id in ids)


async def test_leaving_waits_for_a_hanging_hook_no_longer_than_for_anything_else(
    start, recorder, autojump_clock
):
    begun = []

    async def hang(session_id, platform, boundary_id):
        begun.append(boundary_id)
        await trio.sleep_forever()

    config = Config(hook_drain_timeout=5)
    async with start(hooks={FINALIZE: [hang]}, hook_timeout=1000, config=config) as runtime:
        reply = await runtime.ask("k", "hello")
        left = trio.current_time()
    assert 4 < trio.current_time() - left < 6
    again = []

    async def note(session_id, platform, boundary_id):
        again.append(boundary_id)

    hooks = {FINALIZE: [note, recorder.named(FINALIZE)]}
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
    assert recorder.calls == [(FINALIZE, reply.session_id)]
    assert again == begun
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
    assert len(recorder.calls) == 1


@threads_only
async def test_leaving_does_not_wait_for_the_thread_of_a_plain_hook(start, recorder):
    release = threading.Event()
    begun = []

    def hang(session_id, platform):
        begun.append(session_id)
        release.wait(PATIENCE)

    try:
        with trio.fail_after(PATIENCE / 2):
            async with start(
                hooks={FINALIZE: [hang]}, config=Config(hook_drain_timeout=0.2)
            ) as runtime:
                reply = await runtime.ask("k", "hello")
    finally:
        release.set()
    assert begun == [reply.session_id]
    async with start(hooks=hooks_of(recorder)) as runtime:
        await runtime.wait_hooks()
    assert recorder.calls == [(FINALIZE, reply.session_id)]


@with_threads
async def test_a_hook_that_asks_while_the_runtime_closes_is_refused_and_delays_nothing(start):
    refused = []

    async def finalize(session_id, platform):
        here = runtime.conversation("k")
        for verb in (lambda: here.ask("more"), here.new, here.close):
            try:
                await verb()
            except Draining as error:
                refused.append(error)

    with trio.fail_after(PATIENCE):
        async with start(hooks={FINALIZE: [finalize]}) as runtime:
            await runtime.ask("k", "hello")
    assert len(refused) == 3


@with_threads
async def test_a_host_may_drain_inside_the_block_and_each_session_is_finalized_once(
    start, recorder
):
    async def body():
        async with start(hooks=hooks_of(recorder)) as runtime:
            reply = await runtime.ask("k", "hello")
            await runtime.drain()
            assert recorder.calls == [(FINALIZE, reply.session_id)]
            with pytest.raises(ActorStopped):
                await runtime.ask("k", "more")
            return reply

    reply, stray = None, None
    try:
        reply = await body()
    except trio.Cancelled as error:  # nothing was cancelled
        stray = error
    assert stray is None
    assert recorder.calls == [(FINALIZE, reply.session_id)]


async def test_leaving_finalizes_although_many_messages_are_waiting(
    start, recorder, autojump_clock
):
    _, build = scripted("first", forever())
    async with start(
        build_agent=build, hooks=hooks_of(recorder), config=Config(drain_timeout=5)
    ) as runtime:
        reply = await runtime.ask("k", "hello")
        for n in range(90):
            await runtime.submit(Inbound("k", f"e{n}", "more"))
    assert recorder.calls == [(FINALIZE, reply.session_id)]


@pytest.mark.parametrize("fault", ["busy", "full"])
@pytest.mark.sqlite_only("makes a COMMIT of SQLite fail")
async def test_leaving_finalizes_although_the_store_was_busy_for_a_moment(
    start, recorder, autojump_clock, fault
):
    faults = []
    worker = inline(lambda: faults.pop() if faults else None)
    async with start(hooks=hooks_of(recorder), open_worker=worker) as runtime:
        reply = await runtime.ask("k", "hello")
        await trio.sleep(10)  # nothing else is written any more
        faults.append(fault)
    assert faults == []
    async with start(hooks=hooks_of(recorder)) as runtime:
        await runtime.wait_hooks()
    assert recorder.calls == [(FINALIZE, reply.session_id)]
