"""Messages that are sent twice, and callers that stop waiting."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from hermes import Inbound, Source
from hermes.errors import AlreadyAnswered, EventConflict
from hermes.events import (
    TurnEnded,
)
from hermes.testing import (
    inspect,
)
from tests.support.held_turns import HeldAgent, PendingReply, held_runtime
from tests.support.runtime import SECONDS, with_threads


async def test_a_duplicate_of_an_open_message_gets_the_same_reply(start):
    async with held_runtime(start) as here:
        first = await here.send("one", event_id="e")
        await here.agent.wait_started()
        again = PendingReply()
        here.nursery.start_soon(again.run, lambda: here.runtime.ask("k", "one", event_id="e"))
        await trio.testing.wait_all_tasks_blocked()  # it waits for the reply
        here.agent.release(0)
        reply = await first.wait()
        assert await again.wait() is reply
    assert here.agent.inputs() == [["one"]]


async def test_a_duplicate_of_an_answered_message_is_refused(start):
    async with start() as runtime:
        await runtime.ask("k", "one", event_id="e")
        for _ in range(2):
            with pytest.raises(AlreadyAnswered, match="'e'"):
                await runtime.ask("k", "one", event_id="e")
        assert (await runtime.ask("k", "two", event_id="f")).text == "echo: two"
        assert len(await runtime.conversation("k").history()) == 4


@with_threads
async def test_the_same_event_id_of_another_conversation_is_another_message(start):
    async with held_runtime(start) as here:
        first = await here.send("one", event_id="1", key="a")
        await here.agent.wait_started()
        second = await here.send("two", event_id="1", key="b")
        await here.agent.wait_started(1)
        here.agent.release(0)
        here.agent.release(1)
        assert (await first.wait()).turn_id != (await second.wait()).turn_id
    assert here.agent.inputs() == [["one"], ["two"]]


@with_threads
async def test_the_same_event_id_with_another_text_is_a_conflict(start):
    async with held_runtime(start) as here:
        first = await here.send("one", event_id="1")
        await here.agent.wait_started()
        with pytest.raises(EventConflict, match="event '1' of k"):
            await here.runtime.ask("k", "two", event_id="1")
        here.agent.release(0)
        await first.wait()
        with pytest.raises(EventConflict):  # also after the turn
            await here.runtime.ask("k", "two", event_id="1")
        with pytest.raises(EventConflict):
            await here.runtime.ask("k", "one", event_id="1", parts=[{"type": "text"}])
        with pytest.raises(AlreadyAnswered):
            await here.runtime.ask("k", "one", event_id="1")
    assert here.agent.inputs() == [["one"]]


async def test_a_caller_may_ask_for_a_message_that_was_submitted(start):
    async with held_runtime(start) as here:
        receipt = await here.runtime.submit(Inbound("k", "e", "one"))
        await here.agent.wait_started()
        again = PendingReply()
        here.nursery.start_soon(again.run, lambda: here.runtime.ask("k", "one", event_id="e"))
        await trio.testing.wait_all_tasks_blocked()  # it waits for the reply
        here.agent.release(0)
        assert (await again.wait()).turn_id == receipt.inbox_id
    assert here.agent.inputs() == [["one"]]


async def test_the_same_event_id_of_another_account_is_not_a_duplicate(start):
    async with start() as runtime:
        for account in ("a", "b"):
            reply = await runtime.ask("k", account, event_id="e", source=Source(account=account))
            assert reply.text == f"echo: {account}"


async def test_a_duplicate_gets_a_reply_that_arrives_during_the_check(
    start_proxy,
):
    gate = trio.Event()
    looked = trio.Event()

    async def late(real, *args, **kwargs):
        if kwargs.get("limit") == 1:
            looked.set()
            await gate.wait()
        return await real(*args, **kwargs)

    agent = HeldAgent()
    first, again = PendingReply(), PendingReply()
    with trio.fail_after(SECONDS):
        async with (
            start_proxy(lambda _: agent, open_inbox=late) as runtime,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(first.run, lambda: runtime.ask("k", "one", event_id="e"))
            await agent.wait_started()
            nursery.start_soon(again.run, lambda: runtime.ask("k", "one", event_id="e"))
            await looked.wait()
            agent.release(0)
            await first.wait()
            gate.set()
            assert await again.wait() == first.reply


async def test_a_stream_of_an_answered_message_is_refused(start, autojump_clock):
    async with start() as runtime:
        await runtime.ask("k", "one", event_id="e")
        with trio.fail_after(2), pytest.raises(AlreadyAnswered):
            async with runtime.stream("k", "one", event_id="e") as stream:
                await anext(stream)


# Cancelled callers


class Countdown(trio.abc.Instrument):
    """Cancels a scope after a number of scheduling steps of any task."""

    def __init__(self, scope, steps):
        self.scope, self.steps = scope, steps

    def before_task_step(self, task):
        self.steps -= 1
        if self.steps == 0:
            self.scope.cancel()


async def test_a_message_whose_caller_is_cancelled_is_stored_completely_or_not_at_all(start):
    """It is cancelled at every step from before the commit to after the reply."""
    cancelled, answered = 0, 0
    async with start() as runtime:
        for steps in range(1, 60):
            with trio.fail_after(SECONDS):
                with trio.CancelScope() as scope:
                    countdown = Countdown(scope, steps)
                    trio.lowlevel.add_instrument(countdown)
                    try:
                        await runtime.ask("k", f"text {steps}", event_id=f"e{steps}")
                        answered += 1
                    finally:
                        trio.lowlevel.remove_instrument(countdown)
                cancelled += scope.cancelled_caught
                try:
                    again = await runtime.ask("k", f"text {steps}", event_id=f"e{steps}")
                    assert again.text.endswith(f"echo: text {steps}")
                except AlreadyAnswered:
                    pass
        asked = [
            row.content for row in await runtime.conversation("k").history() if row.role == "user"
        ]
        assert asked == [f"text {steps}" for steps in range(1, 60)]
        assert inspect(runtime).waiting_callers == 0
    assert cancelled > 5
    assert answered > 10


@with_threads
async def test_a_message_whose_caller_is_cancelled_after_the_commit_is_answered(
    start,
):
    async with held_runtime(start) as here:
        with trio.CancelScope() as scope:

            async def give_up():
                await here.agent.wait_started()
                scope.cancel()

            here.nursery.start_soon(give_up)
            await here.runtime.ask("k", "one")
        assert scope.cancelled_caught
        with here.runtime.subscribe("k") as events:
            here.agent.release(0)
            async for envelope in events:
                if isinstance(envelope.event, TurnEnded):
                    break
        assert await here.history() == [("user", "one"), ("assistant", "answer 0")]
