"""Agents that fail, return nonsense, wait for themselves or take too long."""

from __future__ import annotations

import asyncio

import pytest
import trio

from hermes import AgentSpec, Config, Message
from hermes.errors import HermesError
from hermes.events import (
    TextDelta,
)
from hermes.messages import TurnResult
from hermes.testing import (
    ScriptedAgent,
    texts_of,
)
from hermes.user_code import leaf
from tests.support.held_turns import HeldAgent, PendingReply, held_runtime
from tests.support.runtime import SECONDS, with_threads


@pytest.mark.parametrize(
    "error",
    [
        ValueError("my own"),
        SystemExit(3),
        ExceptionGroup("many", [ValueError("my own")]),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_exception_of_an_agent_fails_only_its_turn(start, error):
    async def fail(turn):
        turn.emit(TextDelta("half"))
        raise error

    agent = HeldAgent(turn0=fail)
    async with held_runtime(start, agent) as here:
        reply = await here.runtime.ask("k", "one")
        assert reply.status == "failed"
        assert "/retry" in reply.text
        assert type(leaf(error)).__name__ in reply.error
        after = await here.send("two")
        await agent.wait_started(1)
        agent.release(1)
        assert (await after.wait()).text == "answer 1"
        assert [state for _, state, _ in await here.inbox()] == ["done", "done"]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        5,
        b"bytes",
        TurnResult(rows=[Message("assistant", "x", parts=({"a": object()},))]),
        TurnResult(text=5),
        TurnResult(rows=["words"]),
    ],
    ids=["nothing", "number", "bytes", "unstorable", "numeric text", "rows of words"],
)
async def test_an_invalid_result_fails_the_turn_without_a_retry(start, answer):
    class Raw(HeldAgent):
        async def run(self, turn):
            self.turns.append(turn)
            return answer if len(self.turns) == 1 else TurnResult(text="well")

    agent = Raw()
    async with held_runtime(start, agent) as here:
        reply = await here.runtime.ask("k", "one")
        assert reply.status == "failed"
        assert (await here.runtime.ask("k", "two")).text == "well"
        assert ("user", "one") in await here.history()
    assert len(agent.turns) == 2


async def test_an_invalid_event_fails_the_turn_without_a_retry(start, autojump_clock):
    async def nonsense(turn):
        turn.emit(TextDelta(None))
        return "well"

    agent = HeldAgent(turn0=nonsense, turn1=nonsense, turn2=nonsense)
    async with held_runtime(start, agent) as here:
        with trio.move_on_after(5):
            await here.runtime.ask("k", "one")
    assert len(agent.turns) == 1


# Turns that call the runtime


async def _listen(runtime):
    async with runtime.stream("k", "and you?") as stream:
        await anext(stream)


OWN = {
    "ask": lambda runtime: runtime.ask("k", "and you?"),
    "undo": lambda runtime: runtime.conversation("k").undo(),
    "stream": _listen,
    "new": lambda runtime: runtime.conversation("k").new(),
    "close": lambda runtime: runtime.conversation("k").close(),
    "compress": lambda runtime: runtime.conversation("k").compress(),
    "switch": lambda runtime: runtime.conversation("k").switch("mine"),
    "branch": lambda runtime: runtime.conversation("k").branch(),
    "retry": lambda runtime: runtime.conversation("k").retry(),
}


@pytest.mark.parametrize(
    "verb",
    OWN,
)
async def test_a_turn_cannot_wait_for_its_own_conversation(start, verb, autojump_clock):
    """Otherwise it would hang until its deadline."""
    refused = []

    async def wait_for_itself(turn):
        with pytest.raises(HermesError) as error:
            await OWN[verb](runtime)
        refused.append(str(error.value))
        return "well"

    async with start(build_agent=lambda _: HeldAgent(turn0=wait_for_itself)) as runtime:
        assert (await runtime.ask("k", "one")).text == "well"
        assert trio.current_time() < 1
    assert "wait for itself" in refused[0]


@with_threads
async def test_a_task_started_by_a_turn_may_use_the_conversation_after_the_turn(start):
    """For example a reminder: it has the context of the turn, but the turn does not wait for it."""
    over, reminded = trio.Event(), PendingReply()

    async def remind():
        await over.wait()
        return await here.runtime.ask("k", "remember")

    async def set_reminder(turn):
        here.nursery.start_soon(reminded.run, remind)
        return "I will"

    async with held_runtime(start, HeldAgent(turn0=set_reminder)) as here:
        await here.runtime.ask("k", "remind me")
        over.set()
        here.agent.release(1)
        assert (await reminded.wait()).text == "answer 1"


async def test_a_turn_may_set_the_title_of_its_own_conversation(start):
    async def set_title(turn):
        await runtime.conversation("k").set_title("mine")
        return "done"

    async with start(agent=set_title) as runtime:
        with trio.fail_after(SECONDS):
            await runtime.ask("k", "one")
        assert (await runtime.conversation("k").title()).text == "mine"


async def test_a_turn_may_use_another_conversation(start):
    async def delegate(turn):
        if turn.session_key == "k":
            return (await runtime.ask("other", "help")).text
        return "here you are"

    async with start(agent=delegate) as runtime:
        with trio.fail_after(SECONDS):
            assert (await runtime.ask("k", "one")).text == "here you are"


# Deadlines


async def test_a_turn_over_its_deadline_fails_and_its_output_is_kept(start, autojump_clock):
    deadlines = []

    async def slow(turn):
        deadlines.append(turn.deadline - trio.current_time())
        turn.emit(TextDelta("half"))
        await trio.sleep_forever()

    agent = HeldAgent(turn0=slow)
    async with start(build_agent=lambda _: agent, config=Config(turn_timeout=60)) as runtime:
        began = trio.current_time()
        reply = await runtime.ask("k", "one")
        assert 60 <= trio.current_time() - began < 61
        assert reply.status == "failed"
        assert "longer than 60 seconds" in reply.text
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "one"),
            ("assistant", "half"),
        ]
        agent.release(1)
        assert (await runtime.ask("k", "two")).text == "answer 1"
    assert deadlines == [60]


async def test_a_turn_within_its_deadline_completes(start, autojump_clock):
    agent = ScriptedAgent(delay=59)
    async with start(build_agent=lambda _: agent, config=Config(turn_timeout=60)) as runtime:
        assert (await runtime.ask("k", "one")).text == "echo: one"


async def test_building_the_agent_counts_against_the_deadline(start, autojump_clock):
    async def build(spec: AgentSpec):
        if not built:
            built.append(spec)
            await trio.sleep_forever()
        return ScriptedAgent()

    built = []
    async with start(build_agent=build, config=Config(turn_timeout=60)) as runtime:
        assert (await runtime.ask("k", "one")).status == "failed"
        assert (await runtime.ask("k", "two")).text == "echo: two"
