"""Turns that are interrupted, and agents that do not cooperate."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hermes import Config, Inbound
from hermes.errors import TurnClosed
from hermes.events import (
    ReasoningDelta,
    TextDelta,
    ToolFinished,
)
from hermes.store import open_store
from hermes.testing import (
    ScriptedAgent,
    inline,
    texts_of,
)
from hermes.transcript.render import is_valid, render
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import SECONDS, with_threads
from tests.support.store_proxy import HoldFirst
from tests.support.turns import tool_starts


async def test_an_interrupt_takes_effect_within_two_scheduling_steps(start):
    seen = []

    async def hold(turn):
        try:
            await trio.sleep_forever()
        finally:
            seen.append("cancelled")

    async with held_runtime(start, HeldAgent(turn0=hold)) as here:
        asked = await here.send("one")
        await here.agent.wait_started()
        await wait_all_tasks_blocked()
        assert await here.runtime.conversation("k").interrupt()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert seen == ["cancelled"]
        assert (await asked.wait()).status == "interrupted"
        assert not await here.runtime.conversation("k").interrupt()
        assert not await here.runtime.conversation("nobody").interrupt()


@with_threads
async def test_the_output_of_an_interrupted_turn_is_kept_as_valid_model_input(start):
    async def work(turn):
        turn.emit(ReasoningDelta("hm"))
        turn.emit(TextDelta("I will "))
        turn.emit(TextDelta("look."))
        for event in (*tool_starts("a", "b"), ToolFinished("b", "found")):
            turn.emit(event)
        await trio.sleep_forever()

    async with held_runtime(start, HeldAgent(turn0=work)) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        second = await here.send("two", when_busy="interrupt")
        next_turn = await here.agent.wait_started(1)
        assert (await first.wait()).status == "interrupted"
        rows = await here.runtime.conversation("k").history()
        assert texts_of(rows)[:2] == [("user", "one"), ("assistant", "I will look.")]
        assert rows[1].reasoning == "hm"
        results = {row.tool_call_id: row.content for row in rows if row.role == "tool"}
        assert results["b"] == "found"
        assert "interrupted" in results["a"]
        assert is_valid(render(rows)) is None
        assert [call.id for call in render(rows)[1].tool_calls] == ["a", "b"]
        assert is_valid(next_turn.messages()) is None
        here.agent.release(1)
        assert (await second.wait()).text == "answer 1"
    assert here.agent.inputs() == [["one"], ["two"]]


async def test_an_interrupted_turn_without_output_leaves_only_the_question(start):
    async with held_runtime(start) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        await here.runtime.conversation("k").interrupt()
        reply = await first.wait()
        assert (reply.text, reply.status) == ("", "interrupted")
        assert await here.history() == [("user", "one")]
        assert [state for _, state, _ in await here.inbox()] == ["done"]


@with_threads
async def test_messages_that_interrupt_each_other_are_handled_in_order(start):
    async with held_runtime(start, config=Config(when_busy="interrupt")) as here:
        asked = [await here.send("0")]
        for n in range(1, 6):
            await here.agent.wait_started(n - 1)
            asked.append(await here.send(str(n)))
        await here.agent.wait_started(5)
        here.agent.release(5)
        replies = [await each.wait() for each in asked]
        assert [reply.status for reply in replies] == [*["interrupted"] * 5, "complete"]
        assert here.agent.inputs() == [[str(n)] for n in range(6)]
        assert [text for role, text in await here.history() if role == "user"] == list("012345")


async def test_an_interrupt_affects_no_other_conversation(start):
    async with held_runtime(start) as here:
        mine = await here.send("mine", key="a")
        await here.agent.wait_started(0)
        theirs = await here.send("theirs", key="b")
        await here.agent.wait_started(1)
        await here.runtime.conversation("a").interrupt()
        assert (await mine.wait()).status == "interrupted"
        assert not theirs.done
        here.agent.release(1)
        assert (await theirs.wait()).status == "complete"


@pytest.mark.parametrize("how", ["interrupt", "/stop"])
async def test_a_turn_can_be_stopped_before_its_agent_runs(start_proxy, path, how):
    """After a restart, the actor looks up the route first; the message is already being handled."""
    async with open_store(path, open_worker=inline()) as store:
        await store.accept(Inbound("k", "e1", "one"))
    held = HoldFirst()
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, route_head=held) as runtime:
            await held.entered.wait()
            if how == "interrupt":
                assert await runtime.conversation("k").interrupt()
            else:
                await runtime.submit(Inbound("k", "e2", "/stop", command=True))
            held.release.set()
            await runtime.ask("k", "two")
            said = [("user", "one"), ("user", "two"), ("assistant", "echo: two")]
            assert texts_of(await runtime.conversation("k").history()) == said


# Agents that do not cooperate


async def test_emitting_after_the_end_of_the_turn_is_refused(start):
    refused = []
    async with held_runtime(start) as here:

        async def emit_late(turn, over):
            await over.wait()
            for call in (lambda: turn.emit(TextDelta("late")), turn.steered):
                with pytest.raises(TurnClosed, match=f"turn {turn.turn_id} is over"):
                    call()
                refused.append(call)

        asked = await here.send("one")
        turn = await here.agent.wait_started()
        over = trio.Event()
        here.nursery.start_soon(emit_late, turn, over)
        await here.runtime.conversation("k").interrupt()
        await asked.wait()
        over.set()
        await here.send("two")
        await here.agent.wait_started(1)
        here.agent.release(1)
    assert len(refused) == 2


async def test_the_answer_of_an_agent_that_swallows_the_cancellation_is_kept(start):
    async def stubborn(turn):
        with suppress(trio.Cancelled):
            await trio.sleep_forever()
        return "all the same"

    agent = HeldAgent(turn0=stubborn)
    async with held_runtime(start, agent) as here:
        asked = await here.send("one")
        await agent.wait_started()
        await here.runtime.conversation("k").interrupt()
        assert (await asked.wait()).text == "all the same"
        after = await here.send("two")
        await agent.wait_started(1)
        agent.release(1)
        assert (await after.wait()).text == "answer 1"
        assert ("assistant", "all the same") in await here.history()


async def test_an_agent_that_ignores_the_cancellation_blocks_no_other_conversation(start):
    cancelled, gate = trio.Event(), trio.Event()

    async def ignore_cancellation(turn):
        with trio.CancelScope(shield=True):
            cancelled.set()
            await gate.wait()
        await trio.lowlevel.checkpoint()

    agent = HeldAgent(turn0=ignore_cancellation)
    async with held_runtime(start, agent) as here:
        asked = await here.send("one")
        await cancelled.wait()
        await here.runtime.conversation("k").interrupt()
        other = await here.send("two", key="other")
        await agent.wait_started(1)
        agent.release(1)
        assert (await other.wait()).status == "complete"
        assert not asked.done
        gate.set()
        assert (await asked.wait()).status == "interrupted"


@pytest.mark.parametrize("error", [ValueError("in cleanup"), SystemExit(3), TurnClosed("over")])
async def test_an_agent_that_raises_when_cancelled_counts_as_interrupted(start, error):
    async def fail_when_cancelled(turn):
        turn.emit(TextDelta("half"))
        try:
            await trio.sleep_forever()
        finally:
            raise error

    agent = HeldAgent(turn0=fail_when_cancelled)
    async with held_runtime(start, agent) as here:
        asked = await here.send("one")
        await agent.wait_started()
        await here.runtime.conversation("k").interrupt()
        assert (await asked.wait()).status == "interrupted"
        assert await here.history() == [("user", "one"), ("assistant", "half")]


async def test_an_agent_whose_child_task_raises_when_cancelled_counts_as_interrupted(
    start, autojump_clock
):
    """Any agent that runs its tools in a nursery can do this."""

    async def fail_when_cancelled(turn):
        async def tool():
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("in cleanup")

        turn.emit(TextDelta("half"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tool)
            await trio.sleep_forever()

    agent = HeldAgent(turn0=fail_when_cancelled, turn1=fail_when_cancelled)
    async with held_runtime(start, agent) as here:
        asked = await here.send("one")
        await agent.wait_started()
        await wait_all_tasks_blocked()
        await here.runtime.conversation("k").interrupt()
        with trio.move_on_after(3):
            assert (await asked.wait()).status == "interrupted"
        await here.runtime.conversation("k").interrupt()  # in case it runs again
        assert await here.history() == [("user", "one"), ("assistant", "half")]
    assert len(agent.turns) == 1
