"""Boundaries as a runtime makes them: what is finalized, begun and left, when, and told to whom.

Whoever adds a test about leaving the block: pytest-trio takes a test for passed that a stray
`Cancelled` ended early. So assert after the block, on what only its end can have brought.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import get_args

import pytest
import trio

from hermes.actors.compression.compressor import Compressed
from hermes.actors.runtime import running
from hermes.config import Config
from hermes.context import current_session_id, set_current_session_id
from hermes.errors import Draining, HermesError
from hermes.events import Notice
from hermes.messages import AgentSpec, Event, ExpiryPolicy, Inbound, Source, TurnResult
from hermes.store import SessionStore, inline, open_store
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    MemoryAdapter,
    RecordingHook,
    ScriptedAgent,
    forever,
)

ROOT = Path(__file__).parents[2]
FINALIZE, RESET, SWITCH = get_args(Event)
TELEGRAM = Source("telegram", chat_id="c1", user_id="u1")
IDLE = Config(expiry=ExpiryPolicy(mode="idle", idle_minutes=60))
HOUR = 3600.0
PATIENCE = 60
"""Seconds after which a deadlock is called one."""
AT_ONCE = Config(idle_timeout=0)

virtual_time = pytest.mark.parametrize("workers", ["inline"])
real_threads = pytest.mark.parametrize("workers", ["threads"])


@pytest.fixture
def heard():
    """All that the hooks were told, in order."""
    return RecordingHook()


def hearing(heard):
    return {event: [heard.named(event)] for event in get_args(Event)}


@pytest.fixture
def both(path, world, workers):
    """Open a store and a runtime on it: `async with both(hooks=…) as (store, runtime)`."""

    @asynccontextmanager
    async def opened(*, build=None, config=None, adapters=(), **options):
        if workers == "inline":
            options.setdefault("open_worker", inline())
        async with (
            open_store(path, clock=world.clock, **options) as store,
            running(
                store,
                build=build or CountingBuilder(),
                describe=lambda key, source: AgentSpec(session_key=key),
                config=config or Config(),
                adapters=adapters,
                wall=world.clock.wall,
            ) as runtime,
        ):
            yield store, runtime

    return opened


def stored(path, session_id):
    with SessionStore(path) as store:
        return store.get_session(session_id)


async def settled(runtime, key="k"):
    """Wait until an actor has done all that its last turn gave rise to."""
    await runtime.ask(key, "/resume")


def playing(*entries):
    agent = ScriptedAgent(script=entries)
    return agent, lambda _: agent


# A new conversation


@pytest.mark.parametrize("how", ["/new", "/reset", "new_session"])
async def test_new_finalizes_the_old_id_and_then_resets_with_the_new_one(start, path, heard, how):
    async with start(hooks=hearing(heard)) as runtime:
        old = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        if how == "new_session":
            new = (await runtime.new_session("k")).session_id
        else:
            reply = await runtime.ask("k", how, source=TELEGRAM)
            assert "New session" in reply.text
            new = reply.session_id
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, old), (RESET, new)]
        assert heard.platforms == ["telegram", "telegram"]
        assert (await runtime.ask("k", "more", source=TELEGRAM)).session_id == new
    assert old != new
    assert stored(path, old).end_reason == "session_reset"
    assert stored(path, new).ended_at is None


async def test_new_after_a_compression_finalizes_the_child_and_not_the_parent(start, heard):
    async with start(hooks=hearing(heard), compressor=DeterministicCompressor()) as runtime:
        parent = await talk_at_length(runtime)
        child = (await compressed(runtime)).session_id
        new = (await runtime.ask("k", "/new")).session_id
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, child), (RESET, new)]
    assert parent != child


@pytest.mark.parametrize("how", ["/new", "new_session", "sweep", "message"])
async def test_after_another_process_rotated_it_is_the_child_that_is_finalized(
    both, path, world, heard, how
):
    async with both(hooks=hearing(heard), config=IDLE) as (store, runtime):
        parent = (await runtime.ask("k", "hello")).session_id
        await trio.to_thread.run_sync(run_to_its_end, ROTATE, path, parent)
        if how in {"sweep", "message"}:
            world.pass_time(2 * HOUR)
        if how == "new_session":
            await runtime.new_session("k")
        elif how == "sweep":
            assert await store.sweep_once() == ["child"]
        else:
            await runtime.ask("k", "/new" if how == "/new" else "more")
        await runtime.wait_hooks()
        new = (await store.get_route("k")).session_id
        assert heard.calls == [(FINALIZE, "child"), (RESET, new)]
        assert (await store.get_session(parent)).end_reason == "compression"
        ended = "session_reset" if "new" in how else "session_expired"
        assert (await store.get_session("child")).end_reason == ended


async def test_new_during_a_turn_stops_it_and_finalizes_what_it_was_in(start, path, heard):
    begun = trio.Event()

    async def hang(_):
        begun.set()
        await trio.sleep_forever()

    _, build = playing("first", hang)
    replies = {}

    async def ask(text):
        replies[text] = await runtime.ask("k", text)

    async with start(agent=build, hooks=hearing(heard)) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "slow")
            await begun.wait()
            nursery.start_soon(ask, "/new")
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, old), (RESET, replies["/new"].session_id)]
        assert replies["slow"].status == "interrupted"
        assert "New session" in replies["/new"].text
    with SessionStore(path) as store:
        said = [message.content for message in store.get_messages(old)]
    assert said == ["hello", "first", "slow"]


class Trouble:
    """Hooks that do what they should not, each in a way of its own."""

    runtime = None
    again = True

    async def raise_an_error(self, session_id, platform):
        raise RuntimeError("boom")

    def raise_it_plainly(self, session_id, platform):
        raise RuntimeError("boom")

    async def raise_it_in_a_group(self, session_id, platform):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.raise_an_error, session_id, platform)

    async def end_the_program(self, session_id, platform):
        raise SystemExit(3)

    def end_it_plainly(self, session_id, platform):
        sys.exit(3)

    async def hang(self, session_id, platform):
        await trio.sleep_forever()

    async def run_out_of_its_own_time(self, session_id, platform):
        with trio.fail_after(0):
            await trio.sleep_forever()

    async def return_garbage(self, session_id, platform):
        return object()

    def return_what_no_loop_understands(self, session_id, platform):
        class Strange:
            def __await__(self):
                yield object()

        return Strange()

    async def want_what_there_is_not(self, session_id, platform, weather):
        raise AssertionError

    async def flood(self, session_id, platform):
        async with trio.open_nursery() as nursery:
            for n in range(100):
                event = f"{current_session_id()}-{n}"
                flood = Inbound(f"k{n % 10}" if n % 3 else "k", event, "flood")
                nursery.start_soon(self.runtime.submit, flood)

    async def ask(self, session_id, platform):
        assert (await self.runtime.ask("k", "from inside")).status == "complete"

    async def begin_another(self, session_id, platform):
        if self.again:
            self.again = False
            await self.runtime.ask("k", "/new")

    async def close_it(self, session_id, platform):
        if self.again:
            self.again = False
            await self.runtime.close("k")

    async def set_another_session(self, session_id, platform):
        set_current_session_id("nonsense")


TROUBLES = [name for name in vars(Trouble) if inspect.isfunction(getattr(Trouble, name))]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_new_is_answered_and_goes_on_whatever_the_hooks_do(start, heard, trouble):
    hooks = Trouble()
    bad = getattr(hooks, trouble)
    options = {"hook_timeout": 0.05} if trouble == "hang" else {}
    both_kinds = {event: [bad, heard.named(event)] for event in (FINALIZE, RESET)}
    with trio.fail_after(PATIENCE):
        async with start(hooks=both_kinds, **options) as runtime:
            hooks.runtime = runtime
            old = (await runtime.ask("k", "hello")).session_id
            reply = await runtime.ask("k", "/new")
            assert "New session" in reply.text
            if trouble == "begin_another":  # which may stop what is asked beside it
                await runtime.wait_hooks()
            assert "afterwards" in (await runtime.ask("k", "afterwards")).text
            await runtime.wait_hooks()
            # Who comes after a bad hook hears all the same, of the right session.
            assert heard.calls[:2] == [(FINALIZE, old), (RESET, reply.session_id)]
            assert heard.contexts[:2] == [old, reply.session_id]
            assert "at last" in (await runtime.ask("k", "at last")).text
    assert heard.calls[-1][0] == FINALIZE  # that of leaving


async def test_a_hook_whose_child_task_ends_the_program_harms_nobody(start):
    async def leave():
        raise SystemExit(3)

    async def finalize(session_id, platform):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)

    async with start(hooks={FINALIZE: [finalize]}) as runtime:
        await runtime.ask("k", "hello")
        assert "New session" in (await runtime.ask("k", "/new")).text
        await runtime.wait_hooks()
        assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_a_hook_that_is_cancelled_on_its_own_asyncio_loop_harms_nobody(start):
    async def cancelled():
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    def finalize(session_id, platform):
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(cancelled())
        finally:
            loop.close()

    async with start(hooks={FINALIZE: [finalize]}) as runtime:
        await runtime.ask("k", "hello")
        assert "New session" in (await runtime.ask("k", "/new")).text
        await runtime.wait_hooks()
        assert (await runtime.ask("k", "more")).text == "echo: more"


async def test_no_reply_waits_for_a_hook(start, heard):
    release = trio.Event()

    async def wait(session_id, platform):
        await release.wait()

    hooks = {FINALIZE: [wait, heard.named(FINALIZE)], RESET: [wait, heard.named(RESET)]}
    with trio.fail_after(PATIENCE):
        async with start(hooks=hooks) as runtime:
            old = (await runtime.ask("k", "hello")).session_id
            new = (await runtime.ask("k", "/new")).session_id
            assert (await runtime.ask("k", "more")).session_id == new
            await runtime.new_session("k")
            assert (await runtime.ask("other", "hello")).text == "echo: hello"
            assert heard.calls == []
            release.set()
            await runtime.wait_hooks()
            assert heard.calls[:3] == [(FINALIZE, old), (RESET, new), (FINALIZE, new)]


async def test_a_question_from_inside_a_finalize_hook_is_answered_in_the_new_session(start):
    told = []

    async def finalize(session_id, platform):
        if not told:
            told.append((session_id, await runtime.ask("k", "from inside")))

    with trio.fail_after(PATIENCE):
        async with start(hooks={FINALIZE: [finalize]}) as runtime:
            old = (await runtime.ask("k", "hello")).session_id
            new = (await runtime.ask("k", "/new")).session_id
            await runtime.wait_hooks()
            [(finalized, reply)] = told
            assert finalized == old
            assert (reply.session_id, reply.text) == (new, "echo: from inside")


@real_threads
async def test_a_plain_hook_may_call_back_from_its_thread(start):
    told = []

    def finalize(session_id, platform):
        if not told:
            told.append(trio.from_thread.run(runtime.ask, "k", "from a thread"))

    with trio.fail_after(PATIENCE):
        async with start(hooks={FINALIZE: [finalize]}) as runtime:
            await runtime.ask("k", "hello")
            await runtime.ask("k", "/new")
            await runtime.wait_hooks()
            assert [reply.text for reply in told] == ["echo: from a thread"]


# What a hook is given


def as_coroutine(function):
    async def hook(**given):
        await trio.lowlevel.checkpoint()
        return function(**given)

    hook.__signature__ = inspect.signature(function)
    return hook


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_hook_is_given_what_it_names(start, kind):
    given = {}

    def two(session_id, platform):
        given["two"] = (session_id, platform)

    def every(
        session_id, platform, reason, boundary_id, old_session_id, new_session_id, transcript
    ):
        given["every"] = (session_id, platform, reason, old_session_id, new_session_id)
        given["id"] = boundary_id
        given["transcript"] = transcript

    def one_optional(session_id, platform, *, reason="none"):
        given["one"] = reason

    def greedy(**everything):
        given["greedy"] = everything

    class Plugin:
        def __call__(self, session_id, platform):
            given["object"] = session_id

        def on_finalize(self, session_id, platform):
            given["method"] = session_id

    hooks = [two, every, one_optional, greedy, Plugin(), Plugin().on_finalize]
    if kind == "coroutine":
        hooks = [as_coroutine(hook) for hook in hooks]
    async with start(hooks={FINALIZE: hooks}) as runtime:
        old = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        new = (await runtime.ask("k", "/new", source=TELEGRAM)).session_id
        await runtime.wait_hooks()
        assert given["two"] == (old, "telegram")
        assert given["every"] == (old, "telegram", "session_reset", old, new)
        assert given["one"] == "session_reset"
        assert given["object"] == given["method"] == old
        words = [message.content for message in (await given["transcript"]()).messages]
        assert words == ["hello", "echo: hello"]
        everything = given["greedy"]
        assert everything["boundary_id"] == given["id"]
        assert (everything["session_id"], everything["platform"]) == (old, "telegram")
        assert {"reason", "old_session_id", "new_session_id", "transcript"} < set(everything)


class Plugin:
    """A hook that is an object."""

    def __init__(self):
        self.told = []

    async def __call__(self, session_id, platform):
        await trio.lowlevel.checkpoint()
        self.told.append((session_id, platform))


@pytest.mark.parametrize("kind", ["object", "function"])
@real_threads
async def test_a_hook_that_only_its_call_shows_to_be_a_coroutine_works(start, kind):
    plugin = Plugin()

    def plain(session_id, platform):
        return plugin(session_id, platform)

    hook = plugin if kind == "object" else plain
    async with start(hooks={FINALIZE: [hook]}) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        assert plugin.told == [(old, "embedded")]


async def test_the_current_session_inside_a_hook_is_the_one_it_is_told_of(start, heard):
    plain = []

    def note(session_id, platform):
        plain.append((session_id, current_session_id()))

    hooks = {event: [heard.named(event), note] for event in get_args(Event)}
    async with start(hooks=hooks) as runtime:
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        await runtime.ask("k", "more")
        await runtime.switch("k", first)
        await runtime.wait_hooks()
        assert current_session_id() is None
    assert len(heard.calls) == 4
    assert heard.contexts == [session_id for _, session_id in heard.calls]
    assert plain == [(session_id, session_id) for session_id in heard.contexts]


async def test_what_a_hook_does_with_another_conversation_does_not_happen_inside_its_own(start):
    seen = []

    def build(spec):
        seen.append((spec.session_key, current_session_id()))
        return ScriptedAgent()

    async def finalize(session_id, platform):
        if not runtime.statistics().draining:
            await runtime.new_session("other")

    async with start(agent=build, hooks={FINALIZE: [finalize]}) as runtime:
        await runtime.ask("k", "hello")
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        await runtime.ask("other", "hello")
    assert seen == [("k", None), ("other", None)]


# Leaving the block


async def test_leaving_finalizes_every_active_session_and_ends_none(start, path, heard):
    keys = [f"k{n}" for n in range(40)]  # more than there are lanes at once
    replies = {}

    async def ask(key):
        replies[key] = await runtime.ask(key, "hello", source=TELEGRAM)

    async with start(hooks=hearing(heard)) as runtime:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(ask, key)
        await runtime.wait_hooks()
        assert heard.calls == []
    ids = [reply.session_id for reply in replies.values()]
    assert sorted(heard.calls) == sorted((FINALIZE, session_id) for session_id in ids)
    assert set(heard.platforms) == {"telegram"}
    assert heard.contexts == [session_id for _, session_id in heard.calls]
    with SessionStore(path) as store:
        assert {store.get_session(session_id).ended_at for session_id in ids} == {None}


async def test_after_leaving_the_next_start_continues_and_leaving_that_finalizes_again(
    start, heard
):
    async with start(hooks=hearing(heard)) as runtime:
        first = await runtime.ask("k", "hello")
    agent, build = playing()
    async with start(agent=build, hooks=hearing(heard)) as runtime:
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, first.session_id)]
        second = await runtime.ask("k", "more")
        assert second.session_id == first.session_id
        history = [message.content for message in agent.turns[0].history][:2]
        assert history == ["hello", "echo: hello"]
    assert heard.calls == [(FINALIZE, first.session_id)] * 2


async def talk_at_length(runtime, key="k"):
    """Enough for a compression to be worth it; returns the session."""
    for n in range(4):
        reply = await runtime.ask(key, f"{n} " + "many words " * 300)
    return reply.session_id


async def compressed(runtime, key="k"):
    outcome = await runtime.compress(key, keep_exchanges=1)
    assert isinstance(outcome, Compressed)
    return outcome.rotated


async def test_leaving_after_a_compression_finalizes_the_child(start, path, heard):
    async with start(hooks=hearing(heard), compressor=DeterministicCompressor()) as runtime:
        parent = await talk_at_length(runtime)
        child = (await compressed(runtime)).session_id
        await runtime.wait_hooks()
        assert heard.calls == []
    assert heard.calls == [(FINALIZE, child)]
    assert stored(path, parent).end_reason == "compression"
    assert stored(path, child).ended_at is None


@pytest.mark.parametrize("how", ["result", "context"])
async def test_leaving_after_an_agent_rotated_by_itself_finalizes_its_new_id(start, heard, how):
    async def rotate(_):
        set_current_session_id("child")

    last = TurnResult(text="done", session_id="child") if how == "result" else [rotate, "done"]
    _, build = playing("first", last)
    async with start(agent=build, hooks=hearing(heard)) as runtime:
        await runtime.ask("k", "hello")
        assert (await runtime.ask("k", "more")).session_id == "child"
        await runtime.wait_hooks()
        assert heard.calls == []
    assert heard.calls == [(FINALIZE, "child")]


ROTATE = """
import sys
from hermes.store import SessionStore
with SessionStore(sys.argv[1]) as store:
    store.end_session(sys.argv[2], "compression")
    store.create_session("child", "elsewhere", parent_session_id=sys.argv[2])
    store.append_message("child", "user", "a summary")
"""


async def test_leaving_after_another_process_rotated_finalizes_the_child(start, path, heard):
    async with start(hooks=hearing(heard)) as runtime:
        parent = (await runtime.ask("k", "hello")).session_id
        await trio.to_thread.run_sync(run_to_its_end, ROTATE, path, parent)
    assert heard.calls == [(FINALIZE, "child")]


async def test_leaving_after_a_switch_finalizes_only_where_the_key_leads(start, path, heard):
    async with start(hooks=hearing(heard)) as runtime:
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        second = (await runtime.ask("k", "more")).session_id
        await runtime.switch("k", first)
        await runtime.wait_hooks()
        heard.calls.clear()
    assert heard.calls == [(FINALIZE, first)]
    assert stored(path, first).ended_at is None
    assert stored(path, second).ended_at is None


@pytest.mark.parametrize("how", ["passivated", "nothing", "command", "new", "closed", "last run"])
async def test_leaving_finalizes_no_conversation_that_is_not_active(start, heard, how):
    if how == "last run":
        async with start() as runtime:
            await runtime.ask("k", "hello")
    async with start(hooks=hearing(heard), config=AT_ONCE) as runtime:
        if how in {"passivated", "new", "closed"}:
            await runtime.ask("k", "hello")
        if how == "passivated":
            await settled(runtime)
            runtime.passivate()
            assert runtime.statistics().actors == 0
        elif how == "command":
            await runtime.ask("k", "/status")
        elif how == "new":
            await runtime.new_session("k")
        elif how == "closed":
            await runtime.close("k")
        await runtime.wait_hooks()
        before = list(heard.calls)
    assert heard.calls == before


async def test_leaving_after_an_expiry_does_not_finalize_the_session_nobody_has_used(
    both, world, heard
):
    async with both(hooks=hearing(heard), config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == [old]
        await runtime.wait_hooks()
        assert [event for event, _ in heard.calls] == [FINALIZE, RESET]
    assert [event for event, _ in heard.calls] == [FINALIZE, RESET]


async def test_leaving_by_an_error_finalizes_too_at_the_next_start_at_the_latest(start, heard):
    with pytest.raises(ZeroDivisionError):
        async with start(hooks=hearing(heard)) as runtime:
            reply = await runtime.ask("k", "hello")
            _ = 1 / 0
    async with start(hooks=hearing(heard)) as runtime:
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, reply.session_id)]
        assert (await runtime.ask("k", "more")).session_id == reply.session_id


async def test_leaving_by_a_cancellation_finalizes_too_at_the_next_start_at_the_latest(
    start, heard
):
    """Ten conversations, five times: who is woken first by a cancellation is chance."""
    keys = [f"k{n}" for n in range(10)]
    ids = []
    for _ in range(5):
        with trio.CancelScope() as scope:
            async with start(hooks=hearing(heard)) as runtime:
                ids += [(await runtime.ask(key, "hello")).session_id for key in keys]
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
    async with start(hooks=hearing(heard)) as runtime:
        await runtime.wait_hooks()
    assert sorted(heard.calls) == sorted((FINALIZE, session_id) for session_id in ids)


@virtual_time
async def test_leaving_waits_for_a_hanging_hook_no_longer_than_for_anything_else(
    start, heard, autojump_clock
):
    begun = []

    async def hang(session_id, platform, boundary_id):
        begun.append(boundary_id)
        await trio.sleep_forever()

    config = Config(drain_timeout=5)
    async with start(hooks={FINALIZE: [hang]}, hook_timeout=1000, config=config) as runtime:
        reply = await runtime.ask("k", "hello")
        left = trio.current_time()
    assert 4 < trio.current_time() - left < 6
    again = []

    async def note(session_id, platform, boundary_id):
        again.append(boundary_id)

    hooks = {FINALIZE: [note, heard.named(FINALIZE)]}
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
    assert heard.calls == [(FINALIZE, reply.session_id)]
    assert again == begun
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
    assert len(heard.calls) == 1


@real_threads
async def test_leaving_does_not_wait_for_the_thread_of_a_plain_hook(start, heard):
    release = threading.Event()
    begun = []

    def hang(session_id, platform):
        begun.append(session_id)
        release.wait(PATIENCE)

    try:
        with trio.fail_after(PATIENCE / 2):
            async with start(hooks={FINALIZE: [hang]}, config=Config(drain_timeout=0.2)) as runtime:
                reply = await runtime.ask("k", "hello")
    finally:
        release.set()
    assert begun == [reply.session_id]
    async with start(hooks=hearing(heard)) as runtime:
        await runtime.wait_hooks()
    assert heard.calls == [(FINALIZE, reply.session_id)]


async def test_a_hook_that_asks_while_the_block_is_left_is_refused_and_holds_nothing_up(start):
    refused = []

    async def finalize(session_id, platform):
        for verb in (runtime.ask, runtime.new_session, runtime.close):
            try:
                await (verb("k", "more") if verb == runtime.ask else verb("k"))
            except Draining as error:
                refused.append(error)

    with trio.fail_after(PATIENCE):
        async with start(hooks={FINALIZE: [finalize]}) as runtime:
            await runtime.ask("k", "hello")
    assert len(refused) == 3


async def test_a_host_may_drain_inside_the_block_and_each_session_is_finalized_once(start, heard):
    async def body():
        async with start(hooks=hearing(heard)) as runtime:
            reply = await runtime.ask("k", "hello")
            await runtime.drain()
            assert heard.calls == [(FINALIZE, reply.session_id)]
            with pytest.raises(Draining):
                await runtime.ask("k", "more")
            return reply

    reply, stray = None, None
    try:
        reply = await body()
    except trio.Cancelled as error:  # nobody has cancelled anything
        stray = error
    assert stray is None
    assert heard.calls == [(FINALIZE, reply.session_id)]


@virtual_time
async def test_leaving_finalizes_although_many_messages_wait(start, heard, autojump_clock):
    _, build = playing("first", forever())
    async with start(agent=build, hooks=hearing(heard), config=Config(drain_timeout=5)) as runtime:
        reply = await runtime.ask("k", "hello")
        for n in range(90):
            await runtime.submit(Inbound("k", f"e{n}", "more"))
    assert heard.calls == [(FINALIZE, reply.session_id)]


@pytest.mark.parametrize("fault", ["busy", "full"])
@virtual_time
async def test_leaving_finalizes_although_the_store_was_busy_for_a_moment(
    start, heard, autojump_clock, fault
):
    faults = []
    worker = inline(lambda: faults.pop() if faults else None)
    async with start(hooks=hearing(heard), open_worker=worker) as runtime:
        reply = await runtime.ask("k", "hello")
        await trio.sleep(10)  # nothing else is written any more
        faults.append(fault)
    assert faults == []
    async with start(hooks=hearing(heard)) as runtime:
        await runtime.wait_hooks()
    assert heard.calls == [(FINALIZE, reply.session_id)]


# Expiry


def tomorrow(world):
    """An hour of the day that is soon, by the local clock."""
    return (datetime.fromtimestamp(world.now).astimezone().hour + 1) % 24


def policy_of(mode, world):
    if mode == "idle":
        return ExpiryPolicy(mode="idle", idle_minutes=60)
    if mode == "daily":
        return ExpiryPolicy(mode="daily", at_hour=tomorrow(world))
    return ExpiryPolicy(mode="both", idle_minutes=60, at_hour=(tomorrow(world) + 5) % 24)


@pytest.mark.parametrize("mode", ["idle", "daily", "both"])
async def test_a_sweep_finalizes_what_is_over_once_and_for_ever(both, world, heard, mode):
    config = Config(expiry=policy_of(mode, world))
    async with both(hooks=hearing(heard), config=config) as (store, runtime):
        old = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        assert await store.sweep_once() == []
        world.pass_time(HOUR + 1)
        assert await store.sweep_once() == [old]
        assert await store.sweep_once() == []
        await runtime.wait_hooks()
        new = (await store.get_route("k")).session_id
        assert heard.calls == [(FINALIZE, old), (RESET, new)]
        assert heard.platforms == ["telegram", "telegram"]
        assert heard.contexts == [old, new]
        ended = await store.get_session(old)
        assert (ended.end_reason, ended.ended_at) == ("session_expired", world.now)
        assert await store.get_session(new) is None
        heard.calls.clear()
    heard.calls.clear()  # what is said on leaving is another test's business
    world.pass_time(48 * HOUR)
    async with both(hooks=hearing(heard), config=config) as (store, runtime):
        assert await store.sweep_once() == []
        await runtime.wait_hooks()
        assert heard.calls == []


@virtual_time
async def test_the_sweep_comes_by_itself(start, path, world, heard, autojump_clock):
    async with start(hooks=hearing(heard), config=IDLE, sweep_interval=10) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        await trio.sleep(25)
        await runtime.wait_hooks()
        assert heard.calls == []
        world.pass_time(2 * HOUR)
        await trio.sleep(25)
        await runtime.wait_hooks()
        assert [call for call in heard.calls if call[0] == FINALIZE] == [(FINALIZE, old)]
    assert stored(path, old).end_reason == "session_expired"


@pytest.mark.parametrize("mode", ["idle", "daily"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_message_that_comes_too_late_begins_a_new_conversation(
    start, path, world, heard, mode, restarted
):
    config = Config(expiry=policy_of(mode, world))
    async with start(config=config) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        if restarted:
            world.pass_time(2 * HOUR)
    agent, build = playing()
    async with start(agent=build, hooks=hearing(heard), config=config) as runtime:
        world.pass_time(2 * HOUR)
        new = (await runtime.ask("k", "again")).session_id
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, old), (RESET, new)]
        assert (await runtime.ask("k", "more")).session_id == new
        await runtime.wait_hooks()
        assert len(heard.calls) == 2
        assert len(agent.turns[0].history) == 2 * 2  # of this conversation only
    assert stored(path, old).end_reason == "session_expired"


async def test_a_message_in_time_keeps_the_conversation_alive(both, world, heard):
    async with both(hooks=hearing(heard), config=IDLE) as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        for _ in range(3):
            world.pass_time(HOUR - 1)
            assert await store.sweep_once() == []
            assert (await runtime.ask("k", "more")).session_id == first
        await runtime.wait_hooks()
        assert heard.calls == []


async def test_a_conversation_does_not_expire_under_a_running_turn(both, world, heard):
    begun, release = trio.Event(), trio.Event()

    async def wait(_):
        begun.set()
        await release.wait()

    _, build = playing("first", [wait, "second"])
    replies = []

    async def ask():
        replies.append(await runtime.ask("k", "slow"))

    async with both(hooks=hearing(heard), config=IDLE, build=build) as (store, runtime):
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
        await settled(runtime)
        assert [row.content for row in await store.get_messages(old)][-2] == "meanwhile"
        assert await store.sweep_once() == []  # an hour from the answer on
        world.pass_time(HOUR + 1)
        assert await store.sweep_once() == [old]
        await runtime.wait_hooks()
        assert [event for event, _ in heard.calls] == [FINALIZE, RESET]


async def test_the_policy_is_that_of_the_platform_and_without_one_nothing_expires(both, world):
    config = Config(expiry_by={"telegram": ExpiryPolicy(mode="idle", idle_minutes=1)})
    async with both(config=config) as (store, runtime):
        short = (await runtime.ask("t", "hello", source=TELEGRAM)).session_id
        long = (await runtime.ask("e", "hello")).session_id
        world.pass_time(1000 * HOUR)
        assert await store.sweep_once() == [short]
        assert (await runtime.ask("e", "more")).session_id == long


@pytest.mark.parametrize("how", ["sweep", "message"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_an_expiry_is_announced_once_at_the_next_message(both, world, how, restarted):
    adapter = MemoryAdapter("embedded")
    told = []

    async def talk(runtime):
        with runtime.events("k") as events:
            await runtime.ask("k", "/status")  # is not the message, and does not use it up
            await runtime.ask("k", "again")
            await runtime.ask("k", "more")
            await settled(runtime)
        told.extend([each.event.text async for each in events if isinstance(each.event, Notice)])

    async with both(config=IDLE, adapters=[adapter]) as (store, runtime):
        await runtime.ask("k", "hello")
        world.pass_time(2 * HOUR)
        if how == "sweep":
            await store.sweep_once()
        if not restarted:
            await talk(runtime)
    if restarted:
        async with both(config=IDLE, adapters=[adapter]) as (_, runtime):
            await talk(runtime)
    notices = [row.body["text"] for row in adapter.sent if row.body["kind"] == "notice"]
    assert len(notices) == 1
    assert "/resume" in notices[0]
    assert told == notices
    said = adapter.texts
    assert said.index(notices[0]) == said.index("echo: again") - 1


async def test_going_back_to_an_expired_conversation_opens_it_again(both, world, heard):
    async with both(hooks=hearing(heard), config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        new = (await runtime.ask("k", "again")).session_id
        assert "Back in" in (await runtime.ask("k", f"/resume {old}")).text
        assert (await runtime.ask("k", "more")).session_id == old
        await runtime.wait_hooks()
        assert heard.calls == [(FINALIZE, old), (RESET, new), (SWITCH, old)]
        assert (await store.get_session(old)).ended_at is None


async def test_what_never_was_a_conversation_does_not_expire(both, world, heard):
    adapter = MemoryAdapter("embedded")
    async with both(hooks=hearing(heard), config=IDLE, adapters=[adapter]) as (store, runtime):
        await runtime.ask("k", "/title Plans")
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == []
        await runtime.ask("k", "hello")
        await settled(runtime)
        await runtime.wait_hooks()
        assert heard.calls == []
        assert [listed.session.title for listed in await runtime.sessions("k")] == ["Plans"]
    assert [row.body["text"] for row in adapter.sent if row.body["kind"] == "notice"] == []


async def test_a_title_after_an_expiry_is_for_the_next_conversation(both, world):
    async with both(config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == [old]
        await runtime.set_title("k", "Plans")
        assert (await store.get_session(old)).title is None
        new = (await runtime.ask("k", "again")).session_id
        await settled(runtime)
        assert (await store.get_session(new)).title == "Plans"


async def test_the_status_after_an_expiry_is_that_of_the_next_conversation(both, world):
    async with both(config=IDLE) as (store, runtime):
        old = (await runtime.ask("k", "hello")).session_id
        world.pass_time(2 * HOUR)
        assert await store.sweep_once() == [old]
        status = await runtime.status("k")
        assert status.session_id == (await store.get_route("k")).session_id
        assert status.message_count == 0


# Crashes

PROGRAM = """
import faulthandler, os, sys, threading
import trio
from hermes import open_runtime
from hermes.config import Config
from hermes.messages import ExpiryPolicy
from hermes.testing import ScriptedAgent

path, how, kind = sys.argv[1:]
faulthandler.dump_traceback_later(40, exit=True)

def say(boundary_id, session_id):
    os.write(1, f"{boundary_id} {session_id}\\n".encode())

async def hang(session_id, platform, boundary_id):
    say(boundary_id, session_id)
    await trio.sleep_forever()

def hang_plainly(session_id, platform, boundary_id):
    say(boundary_id, session_id)
    threading.Event().wait()

async def main():
    hook = hang if kind == "coroutine" else hang_plainly
    policy = ExpiryPolicy(mode="idle" if how == "expiry" else "none", idle_minutes=0)
    async with open_runtime(
        path,
        agent=lambda _: ScriptedAgent(),
        hooks={"on_session_finalize": [hook]},
        config=Config(expiry=policy),
    ) as runtime:
        await runtime.ask("k", "hello")
        if how == "new":
            await runtime.ask("k", "/new")
        elif how == "close":
            await runtime.close("k")
        elif how == "expiry":
            await runtime.ask("k", "too late")
        if how != "shutdown":
            await trio.sleep_forever()

trio.run(main)
"""


def run_to_its_end(program, *arguments):
    subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )


def killed_in_a_hook(path, how, kind):
    """Run the program until its hook has spoken, and kill it there; returns what it said."""
    command = [sys.executable, "-c", PROGRAM, str(path), how, kind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        said = child.stdout.readline()
        child.kill()
    assert said, "the hook was not called"
    boundary_id, session_id = said.split()
    return int(boundary_id), session_id


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
@pytest.mark.parametrize("how", ["new", "close", "expiry", "shutdown"])
@real_threads
async def test_a_boundary_whose_hook_a_crash_cut_off_is_delivered_at_the_next_start(
    start, path, heard, how, kind
):
    boundary_id, old = await trio.to_thread.run_sync(killed_in_a_hook, path, how, kind)
    again = []

    async def note(session_id, platform, boundary_id):
        again.append((boundary_id, session_id))

    hooks = hearing(heard)
    hooks[FINALIZE].append(note)
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
        assert again == [(boundary_id, old)]
        expected = {"new": [FINALIZE, RESET], "expiry": [FINALIZE, RESET]}
        assert [event for event, _ in heard.calls] == expected.get(how, [FINALIZE])
        # The killed process had done what its user asked for: only the hooks were owed.
        reply = await runtime.ask("k", "more")
        assert (reply.session_id == old) == (how == "shutdown")
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        heard.calls.clear()
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
        assert heard.calls == []


# What is no end


async def test_a_switch_fires_its_own_hook_and_neither_ends_nor_finalizes(both, heard):
    ids = {}

    async def switched(session_id, platform, old_session_id, new_session_id, reason):
        ids.update(session=session_id, old=old_session_id, new=new_session_id, reason=reason)

    hooks = hearing(heard)
    hooks[SWITCH].append(switched)
    async with both(hooks=hooks) as (store, runtime):
        await store.create_session("other", "telegram")
        await store.append_message("other", "user", "earlier")
        left = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        await runtime.switch("k", "other")
        await runtime.wait_hooks()
        assert heard.calls == [(SWITCH, "other")]
        assert heard.platforms == ["telegram"]
        assert ids == {"session": "other", "old": left, "new": "other", "reason": "session_switch"}
        assert (await store.get_session(left)).ended_at is None
        assert (await runtime.ask("k", "more")).session_id == "other"
        await runtime.switch("k", "other")  # where it already is
        await runtime.wait_hooks()
        assert len(heard.calls) == 1
    assert heard.calls[1:] == [(FINALIZE, "other")]


async def test_a_resume_is_a_switch(both, heard):
    async with both(hooks=hearing(heard)) as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        second = (await runtime.ask("k", "more")).session_id
        await runtime.wait_hooks()
        heard.calls.clear()
        await runtime.ask("k", f"/resume {first}")
        await runtime.wait_hooks()
        assert heard.calls == [(SWITCH, first)]
        assert (await store.get_session(second)).ended_at is None


async def test_a_branch_leaves_without_an_end(both, heard):
    async with both(hooks=hearing(heard)) as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/branch")
        copy = (await runtime.ask("k", "more")).session_id
        await runtime.wait_hooks()
        assert heard.calls == [(SWITCH, copy)]
        assert (await store.get_session(first)).ended_at is None
    assert copy != first
    assert heard.calls[1:] == [(FINALIZE, copy)]


async def test_a_switch_to_what_there_is_not_changes_nothing(both, heard):
    async with both(hooks=hearing(heard)) as (_, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        with pytest.raises(LookupError):
            await runtime.switch("k", "nowhere")
        await runtime.wait_hooks()
        assert heard.calls == []
        assert (await runtime.ask("k", "more")).session_id == first


async def test_a_compression_fires_nothing(start, heard):
    async with start(hooks=hearing(heard), compressor=DeterministicCompressor()) as runtime:
        await talk_at_length(runtime)
        await compressed(runtime)
        await runtime.ask("k", "more")
        await runtime.wait_hooks()
        assert heard.calls == []
    assert len(heard.calls) == 1  # that of leaving


async def test_passivation_fires_nothing_and_the_conversation_goes_on(start, heard):
    builder = CountingBuilder()
    async with start(agent=builder, hooks=hearing(heard), config=AT_ONCE) as runtime:
        first = await runtime.ask("k", "hello")
        await settled(runtime)
        runtime.passivate()
        assert runtime.statistics().actors == 0
        again = await runtime.ask("k", "more")
        await runtime.wait_hooks()
        assert heard.calls == []
    assert again.session_id == first.session_id
    assert len(builder) == 2
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def test_eviction_fires_nothing_and_the_conversation_goes_on(start, heard):
    builder = CountingBuilder()
    async with start(agent=builder, hooks=hearing(heard), config=Config(max_agents=0)) as runtime:
        first = await runtime.ask("k", "hello")
        await settled(runtime)
        runtime.passivate()
        assert runtime.snapshot("k") is None
        again = await runtime.ask("k", "more")
        await runtime.wait_hooks()
        assert heard.calls == []
    assert (again.session_id, again.build_reason) == (first.session_id, "evicted")
    assert heard.calls == [(FINALIZE, first.session_id)]


async def test_a_hook_that_waits_for_the_hooks_is_told_that_it_would_wait_for_itself(start):
    said = []

    async def hook(event, **_):
        try:
            await runtime.wait_hooks()
        except HermesError as error:
            said.append(str(error))

    async with start(hooks={RESET: [hook]}) as runtime:
        await runtime.new_session("k")
        with trio.fail_after(PATIENCE):
            await runtime.wait_hooks()
    assert len(said) == 1
    assert "wait for itself" in said[0]


@pytest.mark.parametrize("command", ["/new", "/branch", "/resume 1"])
async def test_the_answer_to_a_command_names_the_session_that_is_gone_on_in(start, path, command):
    adapter = MemoryAdapter("telegram")
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "hello", source=TELEGRAM)
        await runtime.ask("k", "/new", source=TELEGRAM)
        await runtime.ask("k", "hello again", source=TELEGRAM)
        await runtime.ask("k", command, source=TELEGRAM)
        status = await runtime.status("k")
    assert adapter.sent[-1].body["kind"] == "command"
    assert adapter.sent[-1].body["session_id"] == status.session_id


async def test_the_status_counts_the_agents_of_its_own_conversation(start):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        await runtime.ask("other", "hello")
        assert (await runtime.status("k")).builds == {"cold": 1}
        assert (await runtime.status("third")).builds == {}
