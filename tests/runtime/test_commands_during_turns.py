"""Commands that arrive during a turn."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Inbound, Source
from hermes.errors import StoreBusy
from hermes.events import (
    TextDelta,
)
from hermes.testing import (
    MemoryAdapter,
    texts_of,
)
from tests.support.held_turns import HeldAgent, PendingReply, held_runtime
from tests.support.runtime import SECONDS, with_threads


@pytest.mark.parametrize("command", ["/queue", "/steer", "/status", "/help", "/usage", "/whoami"])
async def test_information_commands_are_answered_during_a_turn(start, command):
    async with held_runtime(start) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        reply = await (await here.send(command)).wait()
        assert reply.status == "command"
        assert reply.text
        assert not first.done
        here.agent.release(0)
        await first.wait()
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]


@pytest.mark.parametrize(
    "when",
    [
        "running",
        "idle",
    ],
)
async def test_a_command_whose_reply_could_not_be_stored_is_run_again(start_proxy, when):
    tries = []

    async def busy_at_first(real, answer):
        tries.append(answer)
        if len(tries) <= 2:  # the reply, and the error message
            raise StoreBusy("another process holds the database")
        return await real(answer)

    agent, asked = HeldAgent(), PendingReply()
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(lambda _: agent, answer=busy_at_first) as runtime,
            trio.open_nursery() as nursery,
        ):
            if when == "running":
                nursery.start_soon(runtime.ask, "k", "one")
                await agent.wait_started()
            nursery.start_soon(asked.run, lambda: runtime.ask("k", "/help"))
            await wait_all_tasks_blocked()
            agent.release(0)
            await wait_all_tasks_blocked()
            assert asked.done
    assert asked.reply.status == "command"


@with_threads
async def test_stop_interrupts_the_turn_and_refuses_queued_messages(start):
    adapter = MemoryAdapter()
    source = Source("memory", chat_id="c")

    async def work(turn):
        turn.emit(TextDelta("half"))
        await trio.sleep_forever()

    agent = HeldAgent(turn0=work)
    async with held_runtime(start, agent, adapters=[adapter]) as here:
        first = await here.send("one", source=source)
        await agent.wait_started()
        dropped = [await here.send(text, source=source) for text in ("two", "three")]
        stop = await here.send("/stop", source=source)
        assert (await first.wait()).status == "interrupted"
        said = await stop.wait()
        assert said.status == "command"
        assert said.text == "Stopped. 2 queued messages were cancelled."
        for each in dropped:
            refused = await each.wait()
            assert (refused.status, refused.text) == ("refused", said.text)
        assert {state for _, state, _ in await here.inbox()} == {"done"}
        assert await here.history() == [("user", "one"), ("assistant", "half")]
        await adapter.wait_sent(1)
        assert adapter.texts == [said.text]
        after = await here.send("four", source=source)
        await agent.wait_started(1)
        agent.release(1)
        assert (await after.wait()).text == "answer 1"
    assert agent.inputs() == [["one"], ["four"]]


async def test_each_chat_with_cancelled_messages_is_notified_once(start):
    """Several chats can share one conversation."""
    adapter = MemoryAdapter()
    here_and_there = [Source("memory", chat_id=chat) for chat in "cdd"]
    agent = HeldAgent()
    async with held_runtime(start, agent, adapters=[adapter]) as here:
        await here.send("one", source=here_and_there[0])
        await agent.wait_started()
        for source in here_and_there:
            await here.send("two", source=source)
        said = await (await here.send("/stop", source=here_and_there[0])).wait()
        await adapter.wait_sent(2)
    assert said.text == "Stopped. 3 queued messages were cancelled."
    assert sorted((row.body["chat_id"], row.body["text"]) for row in adapter.sent) == [
        ("c", said.text),
        ("d", said.text),
    ]


@with_threads
@pytest.mark.parametrize("command", ["/new", "/reset the next"])
async def test_new_interrupts_the_turn_and_starts_an_empty_session(start, command):
    async def work(turn):
        turn.emit(TextDelta("half"))
        await trio.sleep_forever()

    agent = HeldAgent(turn0=work)
    async with held_runtime(start, agent) as here:
        first = await here.send("one")
        await agent.wait_started()
        waiting = await here.send("two")
        new = await here.send(command)
        interrupted = await first.wait()
        assert interrupted.status == "interrupted"
        assert (await waiting.wait()).status == "refused"
        said = await new.wait()
        assert "New session" in said.text
        assert "1 queued message was cancelled" in said.text
        assert await here.history() == []
        after = await here.send("three")
        turn = await agent.wait_started(1)
        assert list(turn.history) == []
        assert turn.session_id != interrupted.session_id
        agent.release(1)
        await after.wait()
        old = await here.store.get_messages(interrupted.session_id)
        assert texts_of(old) == [("user", "one"), ("assistant", "half")]
        assert await here.history() == [("user", "three"), ("assistant", "answer 1")]


async def test_stop_without_a_turn_says_that_nothing_is_running(start):
    async with held_runtime(start) as here:
        assert (await here.runtime.ask("k", "/stop")).text == "Nothing is running."


async def test_stop_after_new_says_that_nothing_is_running(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        await (await here.send("/new")).wait()
        assert (await here.runtime.ask("k", "/stop")).text == "Nothing is running."


async def test_stop_reports_success_even_if_a_message_interrupts_too(start):
    cancelled, gate = trio.Event(), trio.Event()

    async def slow_to_end(turn):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
            with trio.CancelScope(shield=True):
                await gate.wait()

    agent = HeldAgent(turn0=slow_to_end)
    async with held_runtime(start, agent) as here:
        await here.send("one")
        await agent.wait_started()
        stop = await here.send("/stop")
        await cancelled.wait()
        await here.send("two", when_busy="interrupt")
        agent.release(1)
        gate.set()
        assert (await stop.wait()).text == "Stopped."


async def test_stop_cancels_more_messages_than_the_mailbox_holds(start):
    async with held_runtime(start) as here:
        await here.send("0")
        await here.agent.wait_started()
        for n in range(1, 71):
            await here.runtime.submit(Inbound("k", f"e{n}", str(n)))
        stop = await here.send("/stop")
        here.agent.release(1, 2, 3)
        assert "70 queued messages" in (await stop.wait()).text
    assert len(here.agent.turns) == 1
