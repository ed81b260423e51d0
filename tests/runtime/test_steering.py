"""Messages that are sent into a running turn."""

from __future__ import annotations

import trio

from hermes import CompressionConfig, Config
from hermes.events import (
    Steered,
    TextDelta,
    ToolFinished,
)
from hermes.messages import TurnResult
from hermes.testing import (
    DeterministicCompressor,
    texts_of,
)
from tests.support.held_turns import HeldAgent, held_runtime
from tests.support.runtime import with_threads
from tests.support.turns import tool_starts


@with_threads
async def test_steered_input_is_recorded_where_the_agent_took_it(start):
    gate = trio.Event()
    received = []

    async def work(turn):
        turn.emit(TextDelta("Looking."))
        turn.emit(*tool_starts("a"))
        turn.emit(ToolFinished("a", "found"))
        await gate.wait()
        received.extend(turn.steered())
        received.extend(turn.steered())
        turn.emit(TextDelta("As you wish."))
        return "As you wish."

    async with held_runtime(start, HeldAgent(turn0=work)) as here:
        first = await here.send("one")
        turn = await here.agent.wait_started()
        with here.runtime.subscribe("k") as events:
            steered = await here.send("hurry", when_busy="steer")
            assert not steered.done
            gate.set()
            reply = await first.wait()
            assert await steered.wait() == reply
            event = await anext(events)
            assert isinstance(event.event, Steered)
            assert event.turn_id == turn.turn_id
        assert texts_of(received) == [("user", "hurry")]
        assert await here.history() == [
            ("user", "one"),
            ("assistant", "Looking."),
            ("tool", "found"),
            ("user", "hurry"),
            ("assistant", "As you wish."),
        ]
        assert [state for _, state, _ in await here.inbox()] == ["done", "done"]
    assert len(here.agent.turns) == 1


async def test_steered_input_that_the_agent_never_takes_becomes_the_next_turn(start):
    async with held_runtime(start, config=Config(when_busy="steer")) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        second = await here.send("two")
        third = await here.send("three")
        here.agent.release(0)
        assert (await first.wait()).text == "answer 0"
        assert not second.done
        await here.agent.wait_started(1)
        here.agent.release(1)
        assert (await second.wait()) == (await third.wait())
        assert here.agent.inputs() == [["one"], ["two", "three"]]


async def test_steered_input_that_was_not_taken_is_queued_in_inbox_order(start):
    async with held_runtime(start) as here:
        await here.send("one")
        await here.agent.wait_started()
        await here.send("two", when_busy="queue")
        await here.send("three", when_busy="steer")
        await here.send("four", when_busy="queue")
        here.agent.release(0, 1)
        second = await here.agent.wait_started(1)
        assert here.agent.inputs()[1] == ["two", "three", "four"]
        assert second.turn_id == 2


async def test_steered_input_belongs_to_the_turn_that_took_it_even_if_interrupted(start):
    taken = trio.Event()

    async def work(turn):
        while not turn.steered():
            await trio.lowlevel.checkpoint()
        turn.emit(TextDelta("well"))
        taken.set()
        await trio.sleep_forever()

    async with held_runtime(start, HeldAgent(turn0=work)) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        second = await here.send("two", when_busy="steer")
        await taken.wait()
        await here.runtime.conversation("k").interrupt()
        assert await first.wait() == await second.wait()
        assert await here.history() == [("user", "one"), ("user", "two"), ("assistant", "well")]


async def test_steered_input_is_kept_if_the_turn_runs_again_after_an_overflow(start):
    received = []

    async def long_answer(turn):
        return "so " * 400

    async def overflow(turn):
        while not turn.steered():
            await trio.lowlevel.checkpoint()
        return TurnResult(failed=True, error="maximum context length exceeded")

    async def again(turn):
        received.extend([*turn.history, *turn.input, *turn.steered()])
        return "done"

    config = Config(compression=CompressionConfig(window=2000, max_output=100, share=0.99))
    steps = {f"turn{n}": long_answer for n in range(6)}
    agent = HeldAgent(**steps, turn6=overflow, turn7=again)
    async with held_runtime(
        start, agent, config=config, compressor=DeterministicCompressor()
    ) as here:
        for n in range(6):
            await here.runtime.ask("k", f"text {n} " * 20)
        first = await here.send("one")
        await agent.wait_started(6)
        await here.send("hurry", when_busy="steer")
        assert (await first.wait()).text == "done"
    assert len(agent.turns) == 8
    assert "hurry" in [message.content for message in received]


async def test_the_steer_command_reaches_the_running_turn_and_else_is_a_message(start):
    async def work(turn):
        while not (received := turn.steered()):
            await trio.lowlevel.checkpoint()
        return received[0].content

    async with held_runtime(start, HeldAgent(turn0=work)) as here:
        first = await here.send("one")
        await here.agent.wait_started()
        assert (await (await here.send("/steer left")).wait()).text == "left"
        assert (await first.wait()).text == "left"
        alone = await here.send("/steer right")
        await here.agent.wait_started(1)
        here.agent.release(1)
        assert (await alone.wait()).text == "answer 1"
        assert here.agent.inputs()[1] == ["right"]
