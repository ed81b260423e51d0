"""Another process accepts messages of a conversation whose turn is running here."""

from __future__ import annotations

import pytest
import trio

from hermes import Config, Inbound
from hermes.messages import TurnResult
from hermes.store import SessionStore
from hermes.store.cluster.alone import WATCH_INTERVAL
from hermes.testing import ScriptedAgent, inspect
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import SECONDS, with_threads

SOON = 2 * WATCH_INTERVAL
KEEPS_FIRST = Config(merge_messages=False)


def accept_beside(path, *texts, key="k", **options):
    """Accept messages as another process does; the event id of each is its text."""
    with SessionStore(path) as store:
        return [
            store.accept(Inbound(key, text, text, command=text.startswith("/"), **options)).receipt
            for text in texts
        ]


def attempts(path):
    with SessionStore(path) as store:
        return {row.inbound.text: row.attempts for row in store.open_inbox()}


@with_threads
@pytest.mark.parametrize(
    ("command", "answer"), [("/stop", "Stopped."), ("/new", "New session."), ("/status", "Session")]
)
async def test_a_command_takes_effect_during_the_turn(start, path, command, answer):
    async with held_runtime(start) as here:
        first = await here.send("one")
        turn = await here.agent.wait_started()
        [receipt] = await trio.to_thread.run_sync(accept_beside, path, command)
        reply = await here.runtime.wait(receipt)
        assert (reply.status, reply.text.startswith(answer)) == ("command", True)
        if command == "/status":
            assert not first.done
            here.agent.release()
        assert (await first.wait()).turn_id == turn.turn_id
        assert first.reply.status == ("complete" if command == "/status" else "interrupted")


async def test_an_interrupting_message_ends_the_turn_and_gets_the_next(start, path, autojump_clock):
    async with held_runtime(start) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        [receipt] = accept_beside(path, "two", when_busy="interrupt")
        assert (await first.wait()).status == "interrupted"
        await here.agent.wait_started(1)
        here.agent.release()
        assert (await here.runtime.wait(receipt)).text == "answer 1"


async def test_a_rejected_message_is_told_so_during_the_turn(start, path, autojump_clock):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        [receipt] = accept_beside(path, "two", when_busy="reject")
        assert (await here.runtime.wait(receipt)).status == "refused"
        here.agent.release()


async def test_input_steers_the_turn_in_inbox_order(start, path, autojump_clock):
    async def work(turn):
        accept_beside(path, "theirs", when_busy="steer")
        source = Inbound("k", "ours", "ours", when_busy="steer")
        await runtime.submit(source)
        await trio.sleep(SOON)
        return TurnResult(text=" ".join(message.content for message in turn.steered()))

    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: ScriptedAgent([work])) as runtime:
            assert (await runtime.ask("k", "one")).text == "theirs ours"


@pytest.mark.parametrize("config", [Config(), KEEPS_FIRST], ids=["merged", "single"])
async def test_messages_of_both_processes_run_in_inbox_order(start, path, autojump_clock, config):
    agent = HeldAgent()
    async with held_runtime(start, agent, config=config) as here:
        await here.send("one")
        await agent.wait_started()
        accept_beside(path, "two")
        third = await here.send("three")
        accept_beside(path, "four")
        last = await here.send("five")
        await trio.sleep(SOON)
        assert attempts(path) == {"one": 1, "two": 0, "three": 0, "four": 0, "five": 0}
        agent.release(*range(5))
        await last.wait()
        assert third.done
    texts = [text for turn in agent.inputs() for text in turn]
    assert texts == ["one", "two", "three", "four", "five"]
    assert len(agent.turns) == (5 if config is KEEPS_FIRST else 2)


async def test_a_stop_cancels_only_what_was_accepted_before_it(start, path, autojump_clock):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        second = await here.send("two")
        accept_beside(path, "/stop")
        third = await here.send("three")
        assert (await second.wait()).status == "refused"
        assert (await here.agent.wait_started(1)).text == "three"
        here.agent.release()
        assert (await third.wait()).status == "complete"


async def test_a_message_is_not_run_again_if_it_was_answered_while_it_was_being_read(
    start_proxy, path, autojump_clock
):
    """The task that watches the inbox reads it as open; then the actor reads and answers it."""
    agent, read, finish = HeldAgent(), trio.Event(), trio.Event()

    async def held(real, *args, **kwargs):
        rows = await real(*args, **kwargs)
        if not read.is_set() and "theirs" in [row.inbound.text for row in rows]:
            read.set()
            await finish.wait()
        return rows

    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, open_inbox=held) as runtime:
            await runtime.submit(Inbound("k", "one", "one"))
            await agent.wait_started()
            [receipt] = accept_beside(path, "theirs")
            await read.wait()
            await runtime.submit(Inbound("k", "ours", "ours"))
            agent.release(0, 1)
            assert (await runtime.wait(receipt)).text == "answer 1"
            await runtime.submit(Inbound("k", "last", "last"))
            await agent.wait_started(2)
            finish.set()
            await trio.sleep(SOON)
            agent.release(2, 3)
            await inspect(runtime).wait_idle("k")
    assert agent.inputs() == [["one"], ["theirs", "ours"], ["last"]]


async def test_the_first_run_of_a_message_is_one_attempt(start, path, autojump_clock):
    async with held_runtime(start) as here:
        accept_beside(path, "theirs", key="idle")
        await here.agent.wait_started()
        assert attempts(path) == {"theirs": 1}
        accept_beside(path, "next", key="idle")
        await trio.sleep(SOON)
        here.agent.release()
        await here.agent.wait_started(1)
        assert attempts(path) == {"next": 1}
        here.agent.release()
