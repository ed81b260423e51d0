"""Which sessions a runtime finalizes, resets and switches, and which hooks are called."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from inspect import signature
from pathlib import Path
from types import FunctionType
from typing import get_args

import pytest
import trio

from hermes.config import Config
from hermes.context import current_session_id, set_current_session_id
from hermes.errors import HermesError
from hermes.messages import HookEvent, Inbound
from hermes.store import SessionStore
from hermes.testing import (
    CountingBuilder,
    DeterministicCompressor,
    MemoryAdapter,
    ScriptedAgent,
    inspect,
)
from tests.support.boundaries import (
    FINALIZE,
    HOUR,
    IDLE,
    RESET,
    SWITCH,
    TELEGRAM,
    compress,
    hooks_of,
    rotate_elsewhere,
    talk_at_length,
)
from tests.support.conversations import scripted
from tests.support.runtime import threads_only, with_threads

ROOT = Path(__file__).parents[2]
AT_ONCE = Config(idle_timeout=0)
PATIENCE = 60
"""Seconds after which a test that does not end has failed."""


def stored(path, session_id):
    with SessionStore(path) as store:
        return store.get_session(session_id)


# A new conversation


@with_threads
@pytest.mark.parametrize("how", ["/new", "/reset", "new_session"])
async def test_new_finalizes_the_old_id_and_then_resets_with_the_new_one(
    start, path, recorder, how
):
    async with start(hooks=hooks_of(recorder)) as runtime:
        old = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        if how == "new_session":
            new = (await runtime.conversation("k").new()).session_id
        else:
            reply = await runtime.ask("k", how, source=TELEGRAM)
            assert "New session" in reply.text
            new = reply.session_id
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, old), (RESET, new)]
        assert recorder.platforms == ["telegram", "telegram"]
        assert (await runtime.ask("k", "more", source=TELEGRAM)).session_id == new
    assert old != new
    assert stored(path, old).end_reason == "session_reset"
    assert stored(path, new).ended_at is None


async def test_new_after_a_compression_finalizes_the_child_and_not_the_parent(start, recorder):
    async with start(hooks=hooks_of(recorder), compressor=DeterministicCompressor()) as runtime:
        parent = await talk_at_length(runtime)
        child = await compress(runtime)
        new = (await runtime.ask("k", "/new")).session_id
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, child), (RESET, new)]
    assert parent != child


@pytest.mark.parametrize("how", ["/new", "new_session", "sweep", "message"])
async def test_after_a_rotation_by_another_process_the_child_is_finalized(
    start_with_store, path, world, recorder, how
):
    async with start_with_store(hooks=hooks_of(recorder), config=IDLE) as (store, runtime):
        parent = (await runtime.ask("k", "hello")).session_id
        await trio.to_thread.run_sync(rotate_elsewhere, path, parent)
        if how in {"sweep", "message"}:
            world.pass_time(2 * HOUR)
        if how == "new_session":
            await runtime.conversation("k").new()
        elif how == "sweep":
            assert await store.sweep_once() == ["child"]
        else:
            await runtime.ask("k", "/new" if how == "/new" else "more")
        await runtime.wait_hooks()
        new = (await store.get_route("k")).session_id
        assert recorder.calls == [(FINALIZE, "child"), (RESET, new)]
        assert (await store.get_session(parent)).end_reason == "compression"
        ended = "session_reset" if "new" in how else "session_expired"
        assert (await store.get_session("child")).end_reason == ended


@with_threads
async def test_new_during_a_turn_stops_it_and_finalizes_its_session(start, path, recorder):
    begun = trio.Event()

    async def hang(_):
        begun.set()
        await trio.sleep_forever()

    _, build = scripted("first", hang)
    replies = {}

    async def ask(text):
        replies[text] = await runtime.ask("k", text)

    async with start(build_agent=build, hooks=hooks_of(recorder)) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "slow")
            await begun.wait()
            nursery.start_soon(ask, "/new")
        await runtime.wait_hooks()
        assert recorder.calls == [(FINALIZE, old), (RESET, replies["/new"].session_id)]
        assert replies["slow"].status == "interrupted"
        assert "New session" in replies["/new"].text
    with SessionStore(path) as store:
        said = [message.content for message in store.get_messages(old)]
    assert said == ["hello", "first", "slow"]


class Trouble:
    """Hooks that fail or misbehave, each in its own way."""

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
            await self.runtime.conversation("k").close()

    async def set_another_session(self, session_id, platform):
        set_current_session_id("nonsense")


TROUBLES = [name for name, value in vars(Trouble).items() if isinstance(value, FunctionType)]


@with_threads
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_new_is_answered_and_the_conversation_continues_whatever_the_hooks_do(
    start, recorder, trouble
):
    hooks = Trouble()
    bad = getattr(hooks, trouble)
    options = {"hook_timeout": 0.05} if trouble == "hang" else {}
    both_kinds = {event: [bad, recorder.named(event)] for event in (FINALIZE, RESET)}
    with trio.fail_after(PATIENCE):
        async with start(hooks=both_kinds, **options) as runtime:
            hooks.runtime = runtime
            old = (await runtime.ask("k", "hello")).session_id
            reply = await runtime.ask("k", "/new")
            assert "New session" in reply.text
            if trouble == "begin_another":  # which may stop a concurrent request
                await runtime.wait_hooks()
            assert "afterwards" in (await runtime.ask("k", "afterwards")).text
            await runtime.wait_hooks()
            # Hooks after a failing one are still called, with the right session.
            assert recorder.calls[:2] == [(FINALIZE, old), (RESET, reply.session_id)]
            assert recorder.contexts[:2] == [old, reply.session_id]
            assert "at last" in (await runtime.ask("k", "at last")).text
    assert recorder.calls[-1][0] == FINALIZE  # that of leaving


async def test_a_hook_whose_child_task_raises_system_exit_affects_nothing_else(start):
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


async def test_a_hook_that_is_cancelled_on_its_own_asyncio_loop_affects_nothing_else(start):
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


@with_threads
async def test_no_reply_waits_for_a_hook(start, recorder):
    release = trio.Event()

    async def wait(session_id, platform):
        await release.wait()

    hooks = {FINALIZE: [wait, recorder.named(FINALIZE)], RESET: [wait, recorder.named(RESET)]}
    with trio.fail_after(PATIENCE):
        async with start(hooks=hooks) as runtime:
            old = (await runtime.ask("k", "hello")).session_id
            new = (await runtime.ask("k", "/new")).session_id
            assert (await runtime.ask("k", "more")).session_id == new
            await runtime.conversation("k").new()
            assert (await runtime.ask("other", "hello")).text == "echo: hello"
            assert recorder.calls == []
            release.set()
            await runtime.wait_hooks()
            assert recorder.calls[:3] == [(FINALIZE, old), (RESET, new), (FINALIZE, new)]


@with_threads
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


@threads_only
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

    hook.__signature__ = signature(function)
    return hook


@with_threads
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
@threads_only
async def test_a_callable_that_returns_a_coroutine_works_as_a_hook(start, kind):
    plugin = Plugin()

    def plain(session_id, platform):
        return plugin(session_id, platform)

    hook = plugin if kind == "object" else plain
    async with start(hooks={FINALIZE: [hook]}) as runtime:
        old = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        assert plugin.told == [(old, "embedded")]


async def test_the_current_session_inside_a_hook_is_the_one_of_its_boundary(start, recorder):
    plain = []

    def note(session_id, platform):
        plain.append((session_id, current_session_id()))

    hooks = {event: [recorder.named(event), note] for event in get_args(HookEvent)}
    async with start(hooks=hooks) as runtime:
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        await runtime.ask("k", "more")
        await runtime.conversation("k").switch(first)
        await runtime.wait_hooks()
        assert current_session_id() is None
    assert len(recorder.calls) == 4
    assert recorder.contexts == [session_id for _, session_id in recorder.calls]
    assert plain == [(session_id, session_id) for session_id in recorder.contexts]


async def test_the_context_of_a_hook_does_not_apply_to_another_conversation_it_uses(start):
    seen = []

    def build(spec):
        seen.append((spec.session_key, current_session_id()))
        return ScriptedAgent()

    async def finalize(session_id, platform):
        if not inspect(runtime).supervisor.draining:
            await runtime.conversation("other").new()

    async with start(build_agent=build, hooks={FINALIZE: [finalize]}) as runtime:
        await runtime.ask("k", "hello")
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        await runtime.ask("other", "hello")
    assert seen == [("k", None), ("other", None)]


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
    policy = ExpiryPolicy(mode="idle" if how == "expiry" else "none", idle_minutes=1e-9)
    async with open_runtime(
        path,
        build_agent=lambda _: ScriptedAgent(),
        hooks={"on_session_finalize": [hook]},
        config=Config(expiry=policy),
    ) as runtime:
        await runtime.ask("k", "hello")
        if how == "new":
            await runtime.ask("k", "/new")
        elif how == "close":
            await runtime.conversation("k").close()
        elif how == "expiry":
            await runtime.ask("k", "too late")
        if how != "shutdown":
            await trio.sleep_forever()

trio.run(main)
"""


def killed_in_a_hook(path, how, kind):
    """Kill the program in its hook. Returns the id of the boundary and of its session."""
    command = [sys.executable, "-c", PROGRAM, str(path), how, kind]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        said = child.stdout.readline()
        child.kill()
    assert said, "the hook was not called"
    boundary_id, session_id = said.split()
    return int(boundary_id), session_id


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
@pytest.mark.parametrize("how", ["new", "close", "expiry", "shutdown"])
@threads_only
async def test_a_boundary_whose_hook_was_interrupted_by_a_crash_is_delivered_at_the_next_start(
    start, path, recorder, how, kind
):
    boundary_id, old = await trio.to_thread.run_sync(killed_in_a_hook, path, how, kind)
    again = []

    async def note(session_id, platform, boundary_id):
        again.append((boundary_id, session_id))

    hooks = hooks_of(recorder)
    hooks[FINALIZE].append(note)
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
        assert again == [(boundary_id, old)]
        expected = {"new": [FINALIZE, RESET], "expiry": [FINALIZE, RESET]}
        assert [event for event, _ in recorder.calls] == expected.get(how, [FINALIZE])
        # The killed process had stored the change; only the hooks had not run.
        reply = await runtime.ask("k", "more")
        assert (reply.session_id == old) == (how == "shutdown")
        await runtime.ask("k", "/new")
        await runtime.wait_hooks()
        recorder.calls.clear()
    async with start(hooks=hooks) as runtime:
        await runtime.wait_hooks()
        assert recorder.calls == []


# What does not end a session


async def test_a_switch_fires_its_own_hook_and_neither_ends_nor_finalizes(
    start_with_store, recorder
):
    ids = {}

    async def switched(session_id, platform, old_session_id, new_session_id, reason):
        ids.update(session=session_id, old=old_session_id, new=new_session_id, reason=reason)

    hooks = hooks_of(recorder)
    hooks[SWITCH].append(switched)
    async with start_with_store(hooks=hooks) as (store, runtime):
        await store.create_session("other", "telegram", session_key="k")
        await store.append_message("other", "user", "earlier")
        left = (await runtime.ask("k", "hello", source=TELEGRAM)).session_id
        await runtime.conversation("k").switch("other")
        await runtime.wait_hooks()
        assert recorder.calls == [(SWITCH, "other")]
        assert recorder.platforms == ["telegram"]
        assert ids == {"session": "other", "old": left, "new": "other", "reason": "session_switch"}
        assert (await store.get_session(left)).ended_at is None
        assert (await runtime.ask("k", "more")).session_id == "other"
        await runtime.conversation("k").switch("other")  # the current session
        await runtime.wait_hooks()
        assert len(recorder.calls) == 1
    assert recorder.calls[1:] == [(FINALIZE, "other")]


async def test_a_resume_is_a_switch(start_with_store, recorder):
    async with start_with_store(hooks=hooks_of(recorder)) as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/new")
        second = (await runtime.ask("k", "more")).session_id
        await runtime.wait_hooks()
        recorder.calls.clear()
        await runtime.ask("k", f"/resume {first}")
        await runtime.wait_hooks()
        assert recorder.calls == [(SWITCH, first)]
        assert (await store.get_session(second)).ended_at is None


async def test_a_branch_does_not_end_the_session_it_leaves(start_with_store, recorder):
    async with start_with_store(hooks=hooks_of(recorder)) as (store, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        await runtime.ask("k", "/branch")
        copy = (await runtime.ask("k", "more")).session_id
        await runtime.wait_hooks()
        assert recorder.calls == [(SWITCH, copy)]
        assert (await store.get_session(first)).ended_at is None
    assert copy != first
    assert recorder.calls[1:] == [(FINALIZE, copy)]


async def test_a_switch_to_an_unknown_session_changes_nothing(start_with_store, recorder):
    async with start_with_store(hooks=hooks_of(recorder)) as (_, runtime):
        first = (await runtime.ask("k", "hello")).session_id
        with pytest.raises(LookupError):
            await runtime.conversation("k").switch("nowhere")
        await runtime.wait_hooks()
        assert recorder.calls == []
        assert (await runtime.ask("k", "more")).session_id == first


async def test_a_compression_fires_nothing(start, recorder):
    async with start(hooks=hooks_of(recorder), compressor=DeterministicCompressor()) as runtime:
        await talk_at_length(runtime)
        await compress(runtime)
        await runtime.ask("k", "more")
        await runtime.wait_hooks()
        assert recorder.calls == []
    assert len(recorder.calls) == 1  # that of leaving


async def test_passivation_fires_nothing_and_the_conversation_continues(start, recorder):
    builder = CountingBuilder()
    async with start(build_agent=builder, hooks=hooks_of(recorder), config=AT_ONCE) as runtime:
        first = await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        runtime.admin.passivate()
        assert (await runtime.admin.statistics()).actors == 0
        again = await runtime.ask("k", "more")
        await runtime.wait_hooks()
        assert recorder.calls == []
    assert again.session_id == first.session_id
    assert len(builder) == 2
    assert [agent.closed for agent in builder.agents] == [1, 1]


async def test_eviction_fires_nothing_and_the_conversation_continues(start, recorder):
    builder = CountingBuilder()
    async with start(
        build_agent=builder, hooks=hooks_of(recorder), config=Config(max_agents=0)
    ) as runtime:
        first = await runtime.ask("k", "hello")
        await inspect(runtime).wait_idle("k")
        assert runtime.conversation("k").snapshot() is None
        again = await runtime.ask("k", "more")
        await runtime.wait_hooks()
        assert recorder.calls == []
    assert (again.session_id, again.build_reason) == (first.session_id, "evicted")
    assert recorder.calls == [(FINALIZE, first.session_id)]


async def test_a_hook_that_waits_for_the_hooks_gets_an_error(start):
    said = []

    async def hook(event, **_):
        try:
            await runtime.wait_hooks()
        except HermesError as error:
            said.append(str(error))

    async with start(hooks={RESET: [hook]}) as runtime:
        await runtime.conversation("k").new()
        with trio.fail_after(PATIENCE):
            await runtime.wait_hooks()
    assert len(said) == 1
    assert "wait for itself" in said[0]


@pytest.mark.parametrize("command", ["/new", "/branch", "/resume 1"])
async def test_the_answer_to_a_command_names_the_session_that_continues(start, path, command):
    adapter = MemoryAdapter("telegram")
    async with start(adapters=[adapter]) as runtime:
        await runtime.ask("k", "hello", source=TELEGRAM)
        await runtime.ask("k", "/new", source=TELEGRAM)
        await runtime.ask("k", "hello again", source=TELEGRAM)
        await runtime.ask("k", command, source=TELEGRAM)
        status = await runtime.conversation("k").status()
    assert adapter.sent[-1].body["kind"] == "command"
    assert adapter.sent[-1].body["session_id"] == status.session_id


async def test_the_status_counts_the_agents_of_its_own_conversation(start):
    async with start() as runtime:
        await runtime.ask("k", "hello")
        await runtime.ask("other", "hello")
        assert (await runtime.conversation("k").status()).builds == {"cold": 1}
        assert (await runtime.conversation("third").status()).builds == {}
