"""Messages that the host takes back before their turn."""

from __future__ import annotations

from uuid import uuid4

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Config, Inbound, TurnEnded
from hermes.errors import ActorStopped, AlreadyAnswered, StoreFull
from hermes.testing import ScriptedAgent, inspect
from tests.support.held_turns import HeldAgent, PendingReply, held_runtime
from tests.support.runtime import SECONDS, with_threads


async def submit(here, text, **fields):
    return await here.runtime.submit(Inbound("k", text, text, **fields))


@with_threads
async def test_a_message_that_waits_can_be_withdrawn(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        receipts = [await submit(here, text) for text in ("two", "three", "four")]
        waiting = PendingReply()
        here.nursery.start_soon(waiting.run, lambda: here.runtime.wait(receipts[1]))
        while inspect(here.runtime).waiting_callers < 2:
            await here.settle()
        with here.runtime.subscribe("k") as events:
            assert await here.runtime.withdraw(receipts[1])
            event = (await anext(events)).event
        reply = await waiting.wait()
        assert (reply.status, reply.text, reply.turn_id) == ("withdrawn", "", receipts[1].inbox_id)
        assert isinstance(event, TurnEnded)
        assert (event.reply, event.inbox_ids) == (reply, (receipts[1].inbox_id,))
        assert not await here.runtime.withdraw(receipts[1])
        here.agent.release(0, 1)
        await here.runtime.wait(receipts[2])
        assert await here.runtime.wait(receipts[1]) == reply
    assert here.agent.inputs() == [["one"], ["two", "four"]]


@with_threads
async def test_a_message_whose_turn_has_begun_or_ended_cannot_be_withdrawn(start):
    async with held_runtime(start) as here:
        receipt = await submit(here, "one")
        await here.agent.wait_started()
        assert not await here.runtime.withdraw(receipt)
        here.agent.release(0)
        assert (await here.runtime.wait(receipt)).text == "answer 0"
        assert not await here.runtime.withdraw(receipt)


async def test_a_withdrawn_message_is_not_answered_if_it_is_sent_again(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        first = await here.send("two", event_id="e", metadata={"trace": 1})
        receipt = await here.runtime.submit(Inbound("k", "e", "two", per_conversation=True))
        assert await here.runtime.withdraw(receipt)
        assert (await first.wait()).metadata == {"trace": 1}
        with pytest.raises(AlreadyAnswered) as refused:
            await here.runtime.ask("k", "two", event_id="e")
        assert (await here.runtime.wait(refused.value.receipt)).status == "withdrawn"
        here.agent.release(0)
    assert here.agent.inputs() == [["one"]]


async def test_a_stream_of_a_withdrawn_message_ends(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        async with here.runtime.stream("k", "two") as stream:
            assert await here.runtime.withdraw(stream.receipt)
            assert [event.reply.status async for event in stream] == ["withdrawn"]
        here.agent.release(0)
    assert here.agent.inputs() == [["one"]]


async def test_input_that_the_agent_has_not_taken_can_be_withdrawn(start):
    release = trio.Event()

    async def steered(turn):
        await release.wait()
        return ", ".join(message.content for message in turn.steered())

    async with held_runtime(start, HeldAgent(turn0=steered)) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        receipts = [await submit(here, text, when_busy="steer") for text in ("two", "three")]
        assert await here.runtime.withdraw(receipts[0])
        release.set()
        assert (await first.wait()).text == "three"
        assert not await here.runtime.withdraw(receipts[1])


async def test_a_message_that_is_only_in_the_store_can_be_withdrawn(start, path):
    async with held_runtime(start, config=Config(max_queued=200)) as here:
        await here.send("one")
        await here.agent.wait_started()
        receipts = [await submit(here, f"{n}") for n in range(80)]  # more than a mailbox holds
        last = receipts[-1]
        assert await here.runtime.withdraw(last)
        here.agent.release(0)
        turn = await here.agent.wait_started(1)
        assert len(turn.input) > 60
        here.agent.release(1, 2)
        await here.runtime.wait(receipts[-2])
    answered = [text for turn in here.agent.inputs() for text in turn]
    assert sorted(answered) == sorted(["one", *(f"{n}" for n in range(79))])


async def test_a_message_is_not_fetched_from_the_store_while_it_is_withdrawn(start_proxy):
    agent, called, gate = HeldAgent(), trio.Event(), trio.Event()

    async def slow(real, *args):
        called.set()
        await gate.wait()
        return await real(*args)

    results = []

    async def withdraw(receipt):
        results.append(await runtime.withdraw(receipt))

    with trio.fail_after(SECONDS):
        async with (
            start_proxy(lambda _: agent, withdraw=slow) as runtime,
            trio.open_nursery() as nursery,
        ):
            texts = [f"{n}" for n in range(80)]
            receipts = [await runtime.submit(Inbound("k", text, text)) for text in texts]
            nursery.start_soon(withdraw, receipts[-1])
            await called.wait()
            agent.release(0, 1, 2, 3)
            await runtime.wait(receipts[-2])
            await wait_all_tasks_blocked()
            gate.set()
            assert (await runtime.wait(receipts[-1])).status == "withdrawn"
    assert results == [True]
    assert [text for turn in agent.inputs() for text in turn] == texts[:-1]


async def test_the_only_message_of_an_idle_conversation_is_answered_or_withdrawn(start):
    """Its actor is on its way to take it; the order of the tasks is random."""
    outcomes = set()
    with trio.fail_after(SECONDS):
        async with start() as runtime:
            await runtime.ask("k", "first")
            actor = inspect(runtime).actor("k")
            while len(outcomes) < 2:
                await actor.wait_idle()
                receipt = await runtime.submit(Inbound("k", uuid4().hex, "again"))
                withdrawn = await runtime.withdraw(receipt)
                reply = await runtime.wait(receipt)
                assert (reply.status == "withdrawn") is withdrawn
                outcomes.add(reply.status)
                assert (await runtime.ask("k", "next")).text == "echo: next"
                assert inspect(runtime).actor("k") is actor
    assert outcomes == {"withdrawn", "complete"}


async def test_a_lingering_message_can_be_withdrawn(start, autojump_clock):
    async with held_runtime(start) as here:
        receipt = await submit(here, "one", linger=2.0)
        await wait_all_tasks_blocked()
        assert await here.runtime.withdraw(receipt)
        actor = inspect(here.runtime).actor("k")
        await actor.wait_idle()
        assert inspect(here.runtime).actor("k") is actor
        here.agent.release(0)
        assert (await here.runtime.ask("k", "two")).text == "answer 0"
    assert here.agent.inputs() == [["two"]]


async def test_a_queued_command_can_be_withdrawn(start):
    async with held_runtime(start) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        receipt = await submit(here, "/undo", command=True)
        assert await here.runtime.withdraw(receipt)
        here.agent.release(0)
        await first.wait()
        assert (await here.runtime.wait(receipt)).status == "withdrawn"
        assert len(await here.history()) == 2


async def test_a_message_stays_if_the_store_cannot_withdraw_it(start_proxy):
    agent = HeldAgent()

    async def full(real, *args):
        raise StoreFull("the disk is full")

    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, withdraw=full) as runtime:
            first = await runtime.submit(Inbound("k", "1", "one"))
            await agent.wait_started()
            second = await runtime.submit(Inbound("k", "2", "two"))
            with pytest.raises(StoreFull):
                await runtime.withdraw(second)
            agent.release(0, 1)
            assert (await runtime.wait(first)).text == "answer 0"
            assert (await runtime.wait(second)).text == "answer 1"


async def test_a_cancelled_call_withdraws_the_message_or_leaves_it(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        receipt = await submit(here, "two")
        with trio.CancelScope() as scope:
            scope.cancel()
            await here.runtime.withdraw(receipt)
        here.agent.release(0)
        assert (await here.runtime.wait(receipt)).status == "withdrawn"


async def test_a_receipt_of_another_conversation_withdraws_nothing(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        receipt = await submit(here, "two")
        forged = type(receipt)(receipt.inbox_id, "other", "s", 1, 0.0)
        assert not await here.runtime.withdraw(forged)
        here.agent.release(0, 1)
        assert (await here.runtime.wait(receipt)).text == "answer 1"


async def test_nothing_is_withdrawn_after_a_drain(start):
    async with held_runtime(start) as here:
        receipt = await submit(here, "one")
        await here.agent.wait_started()
        await here.runtime.drain(0)
        with pytest.raises(ActorStopped):
            await here.runtime.withdraw(receipt)


# One turn per message


@with_threads
async def test_without_merging_each_message_gets_its_own_turn_in_order(start):
    async with held_runtime(start, config=Config(merge_messages=False)) as here:
        receipts = [await submit(here, text) for text in "abcd"]
        here.agent.release(0, 1, 2, 3)
        replies = [await here.runtime.wait(receipt) for receipt in receipts]
        assert [reply.text for reply in replies] == [f"answer {n}" for n in range(4)]
        assert [reply.turn_id for reply in replies] == [receipt.inbox_id for receipt in receipts]
    assert here.agent.inputs() == [["a"], ["b"], ["c"], ["d"]]


async def test_without_merging_a_restart_counts_one_attempt_of_the_first_message(start):
    config = Config(merge_messages=False)
    async with held_runtime(start, config=config) as here:
        for text in "abc":
            await submit(here, text)
        await here.agent.wait_started()
        await here.runtime.drain(0)
    async with held_runtime(start, config=config) as here:
        await here.agent.wait_started()
        assert [attempts for _, _, attempts in await here.inbox()] == [1, 0, 0]
        here.agent.release(0)
        await here.agent.wait_started(1)
        assert [attempts for _, _, attempts in await here.inbox()] == [1, 1, 0]
        here.agent.release(1, 2)
        await here.agent.wait_started(2)
    assert here.agent.inputs() == [["a"], ["b"], ["c"]]


async def test_without_merging_the_parts_of_one_message_are_one_turn(start, autojump_clock):
    async with held_runtime(start, config=Config(merge_messages=False)) as here:
        for text, linger in (("a1", 1.0), ("a2", 1.0), ("a3", 0.0), ("b", 0.0)):
            receipt = await submit(here, text, linger=linger)
        here.agent.release(0, 1)
        await here.runtime.wait(receipt)
    assert here.agent.inputs() == [["a1", "a2", "a3"], ["b"]]


@pytest.mark.parametrize("merge", [True, False])
async def test_withdrawing_after_a_restart_leaves_the_other_messages_to_be_answered(start, merge):
    async with held_runtime(start) as here:
        receipts = [await submit(here, text) for text in ("one", "two")]
        await here.runtime.drain(0)
    agent = ScriptedAgent()
    config = Config(merge_messages=merge)
    async with start(build_agent=lambda _: agent, config=config) as runtime:
        assert await runtime.withdraw(receipts[1])
        with trio.fail_after(SECONDS):
            assert (await runtime.wait(receipts[0])).text == "echo: one"
    assert [turn.text for turn in agent.turns] == ["one"]


async def test_a_message_after_a_withdrawal_waits_for_older_ones_after_a_restart(
    start_proxy, start
):
    async with held_runtime(start) as here:
        receipts = [await submit(here, text) for text in ("one", "two")]
        await here.runtime.drain(0)
    agent, gate = ScriptedAgent(), trio.Event()

    async def slow(real, *args, **kwargs):  # the look for what was left unfinished
        await gate.wait()
        return await real(*args, **kwargs)

    config = Config(merge_messages=False)
    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, config=config, waiting_keys=slow) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.withdraw, receipts[1])
                await runtime.ask("k", "three")
            gate.set()
    assert [turn.text for turn in agent.turns][:1] == ["one"]
