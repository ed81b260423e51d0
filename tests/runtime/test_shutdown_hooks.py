"""A shutdown finalizes the sessions whose turn still runs, and gives the hooks their own time.

The turns that it cancels do not count as attempts.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import trio

from hermes.config import Config
from hermes.messages import Inbound
from hermes.store import SessionStore
from hermes.testing import ScriptedAgent, forever, inspect
from tests.support.boundaries import FINALIZE, RESET, TELEGRAM, hooks_of
from tests.support.runtime import SECONDS, with_threads

HOW = ["drain", "leave", "raise", "cancel"]
"""How the block of a runtime ends while a turn runs."""


class Mine(Exception):
    """The host's own error."""


@contextmanager
def expected(how):
    """Expect the way in which the block ends; yields the function that ends it."""
    with trio.CancelScope() as scope:

        async def end(runtime):
            if how == "drain":
                await runtime.drain(0)
            elif how == "raise":
                raise Mine
            elif how == "cancel":
                scope.cancel()
                await trio.sleep_forever()

        if how == "raise":
            with pytest.raises(Mine):
                yield end
        else:
            yield end
    assert scope.cancelled_caught == (how == "cancel")


class Hanging:
    """An agent that never answers the text "hang"; `began` is set by the last of `turns`."""

    def __init__(self, turns=1):
        self.turns = turns
        self.ids = []
        self.began = trio.Event()

    async def run(self, turn):
        if turn.text == "hang":
            self.ids.append(turn.session_id)
            if len(self.ids) == self.turns:
                self.began.set()
            await trio.sleep_forever()
        return await ScriptedAgent().run(turn)


@with_threads
@pytest.mark.parametrize("first_turn", [True, False])
@pytest.mark.parametrize("how", HOW)
async def test_a_session_whose_turn_still_runs_is_finalized(start, recorder, how, first_turn):
    agent = Hanging(turns=2)
    config = Config(drain_timeout=0.01)
    with trio.fail_after(SECONDS), expected(how) as end:
        async with start(agent=agent, hooks=hooks_of(recorder), config=config) as runtime:
            for key in "ab":
                if not first_turn:
                    await runtime.ask(key, "hello", source=TELEGRAM)
                await runtime.submit(Inbound(key, f"e{key}", "hang", TELEGRAM))
            await agent.began.wait()
            await end(runtime)
    assert sorted(recorder.calls) == sorted((FINALIZE, session_id) for session_id in agent.ids)
    assert set(recorder.platforms) == {"telegram"}


async def test_a_running_command_is_no_session_to_finalize(start_proxy):
    """Its row is open like that of a message, but there is nothing that hooks could look at."""
    entered = trio.Event()

    async def hang(real, *args):
        entered.set()
        await trio.sleep_forever()

    with trio.move_on_after(SECONDS) as scope:
        async with start_proxy(get_usage=hang) as runtime:
            await runtime.submit(Inbound("k", "e", "/usage", command=True))
            await entered.wait()
            scope.cancel()
            await trio.sleep_forever()
    async with start_proxy() as runtime:
        store = inspect(runtime).store
        assert await store.snapshot(lambda tx: tx.all("SELECT event FROM boundaries")) == []


@with_threads
@pytest.mark.parametrize("how", HOW)
async def test_the_first_turn_runs_again_after_the_shutdown_in_the_session_that_was_finalized(
    start, recorder, how
):
    agent, other = Hanging(), ScriptedAgent()
    with trio.fail_after(SECONDS):
        with expected(how) as end:
            async with start(
                agent=agent, hooks=hooks_of(recorder), config=Config(drain_timeout=0.01)
            ) as runtime:
                await runtime.submit(Inbound("k", "e", "hang"))
                await agent.began.wait()
                await end(runtime)
        async with start(agent=other, hooks=hooks_of(recorder)) as runtime:
            reply = await runtime.ask("k", "more")
    assert agent.ids == [reply.session_id]
    assert recorder.calls == [(FINALIZE, reply.session_id)] * 2


# Attempts


@with_threads
@pytest.mark.parametrize("how", HOW)
async def test_a_message_whose_turns_were_ended_by_shutdowns_is_not_given_up(start, how):
    config, receipt = Config(drain_timeout=0.01, max_attempts=3), None
    with trio.fail_after(SECONDS):
        for _ in range(4):
            agent = Hanging()
            with expected(how) as end:
                async with start(agent=agent, config=config) as runtime:
                    receipt = receipt or await runtime.submit(Inbound("k", "e", "hang"))
                    await agent.began.wait()
                    await end(runtime)
        async with start(agent=ScriptedAgent(["answer"]), config=config) as runtime:
            assert (await runtime.wait(receipt)).text == "answer"


@pytest.mark.parametrize("how", HOW)
async def test_a_shutdown_keeps_the_attempts_that_ended_in_a_crash(start, path, world, how):
    with SessionStore(path, clock=world.clock) as store:
        for event in "ab":
            store.accept(Inbound("k", event, "hang"))
        ids = [row.inbox_id for row in store.open_inbox()]
        store.restore_attempts({ids[0]: 2, ids[1]: 1})
    agent = Hanging()
    config = Config(drain_timeout=0.01, merge_messages=False)
    with trio.fail_after(SECONDS), expected(how) as end:
        async with start(agent=agent, config=config) as runtime:
            await agent.began.wait()
            await runtime.submit(Inbound("k", "c", "hang"))
            await end(runtime)
    with SessionStore(path, clock=world.clock) as store:
        assert [row.attempts for row in store.open_inbox()] == [2, 1, 0]


async def test_a_message_that_was_begun_but_had_no_turn_yet_counts_no_attempt(
    start_proxy, path, world
):
    """The runtime ends while the actor records that it begins with the message."""
    with SessionStore(path, clock=world.clock) as store:
        store.accept(Inbound("k", "e", "hello"))
        [before] = store.open_inbox()
    stored = trio.Event()

    async def hang(real, *args):
        await real(*args)
        stored.set()
        await trio.sleep_forever()

    with trio.fail_after(SECONDS):
        async with start_proxy(start_inbox=hang) as runtime:
            await stored.wait()
            await runtime.drain(0)
    with SessionStore(path, clock=world.clock) as store:
        assert store.open_inbox() == [before]


async def test_the_failure_of_an_actor_counts_although_a_shutdown_follows(start_proxy, path, world):
    failed = []

    async def fail(real, *args, **kwargs):
        failed.append(args)
        raise RuntimeError("not the agent's")

    with trio.fail_after(SECONDS):
        async with start_proxy(commit_turn=fail) as runtime:
            await runtime.submit(Inbound("k", "e", "hello"))
            while not inspect(runtime).supervisor.quarantined:
                await trio.lowlevel.checkpoint()
            await runtime.drain(0)
    with SessionStore(path, clock=world.clock) as store:
        assert [row.attempts for row in store.open_inbox()] == [len(failed)]


# The time of the hooks


@pytest.mark.parametrize("how", HOW)
async def test_hooks_have_their_own_time_after_the_turns(start, autojump_clock, how):
    finished = []

    async def slow(session_id, platform):
        await trio.sleep(4)
        finished.append(trio.current_time())

    agent = Hanging()
    config = Config(drain_timeout=3, hook_drain_timeout=5)
    with expected(how) as end:
        async with start(agent=agent, hooks={FINALIZE: [slow]}, config=config) as runtime:
            await runtime.submit(Inbound("k", "e", "hang"))
            await agent.began.wait()
            began = trio.current_time()
            await end(runtime)
    [at] = finished
    assert at - began == pytest.approx(7 if how == "leave" else 4, abs=0.5)


@pytest.mark.parametrize("how", HOW)
async def test_a_hook_that_was_running_when_the_block_ended_can_finish(start, autojump_clock, how):
    finished, begun = [], trio.Event()

    async def slow(session_id, platform):
        begun.set()
        await trio.sleep(4)
        finished.append(session_id)

    config = Config(hook_drain_timeout=5)
    with expected(how) as end:
        async with start(hooks={RESET: [slow]}, config=config) as runtime:
            await runtime.ask("k", "hello")
            new = (await runtime.conversation("k").new()).session_id
            await begun.wait()
            await end(runtime)
    assert finished == [new]


@pytest.mark.parametrize("how", HOW)
async def test_a_hook_that_takes_too_long_is_called_again_with_the_same_boundary(
    start, autojump_clock, how
):
    calls, agent = [], ScriptedAgent(["answer", forever()])

    async def hang(session_id, platform, boundary_id):
        calls.append((session_id, boundary_id))
        await trio.sleep_forever()

    async def note(session_id, platform, boundary_id):
        calls.append((session_id, boundary_id))

    config = Config(drain_timeout=3, hook_drain_timeout=5)
    with expected(how) as end:
        async with start(
            agent=agent, hooks={FINALIZE: [hang]}, config=config, hook_timeout=1000
        ) as runtime:
            await runtime.ask("k", "hello")
            began = trio.current_time()
            await end(runtime)
    assert trio.current_time() - began == pytest.approx(5, abs=0.5)
    async with start(hooks={FINALIZE: [note]}) as runtime:
        await runtime.wait_hooks()
        assert len(calls) == 2
        assert calls[0] == calls[1]
