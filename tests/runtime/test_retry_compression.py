"""`/retry` in a conversation that must be compressed asks the last question again, and no other."""

from __future__ import annotations

import trio

from hermes.errors import ContextOverflow
from hermes.events import ToolFinished, ToolStarted
from hermes.messages import ToolCall, TurnResult
from hermes.testing import DeterministicCompressor
from tests.support.runtime import SECONDS, with_threads

pytestmark = with_threads


class Agent:
    """An agent with a large tool result that overflows when it is told to."""

    def __init__(self):
        self.asked = []
        self.overflows = 0
        self.gate = None
        self.started = trio.Event()

    async def run(self, turn):
        self.asked.append(turn.text)
        if self.gate is not None:
            self.started.set()
            await self.gate.wait()
            turn.steered()
        if self.overflows:
            self.overflows -= 1
            raise ContextOverflow("too long")
        if turn.text == "big":
            turn.emit(ToolStarted(ToolCall("1", "look", "{}")))
            turn.emit(ToolFinished("1", "x" * 340_000))
        return TurnResult(text=f"echo: {turn.text[:20]}")


async def user_rows(runtime):
    return [row.content for row in await runtime.conversation("k").history() if row.role == "user"]


async def test_the_last_question_is_asked_again_after_an_overflow(start):
    agent = Agent()
    async with start(build_agent=lambda _: agent, compressor=DeterministicCompressor()) as runtime:
        for text in ("first", "second", "big"):
            await runtime.ask("k", text)
        agent.overflows = 1
        before = await runtime.conversation("k").history()
        reply = await runtime.ask("k", "/retry")
        assert agent.asked[3:] == ["big"]
        # Its own large exchange cannot be compressed away, so the user is informed.
        assert (reply.status, reply.error_kind) == ("failed", "ContextOverflow")
        after = await runtime.conversation("k").history()
        assert [row.content for row in after][: len(before) - 3] == [row.content for row in before][
            :-3
        ]
        assert await user_rows(runtime) == ["first", "second", "big"]


async def test_a_conversation_of_one_long_message_is_answered_again(start):
    agent = Agent()
    text = "word " * 80_000
    async with start(build_agent=lambda _: agent, compressor=DeterministicCompressor()) as runtime:
        await runtime.ask("k", text)
        await runtime.ask("k", "/retry")
        assert set(agent.asked) == {text}
        assert "/retry" not in await user_rows(runtime)


async def test_input_that_was_steered_into_a_retry_is_kept_when_it_overflows(start):
    agent = Agent()
    async with start(build_agent=lambda _: agent, compressor=DeterministicCompressor()) as runtime:
        for text in ("big", "first", "second"):
            await runtime.ask("k", text)
        agent.gate, agent.overflows = trio.Event(), 1
        with trio.fail_after(10 * SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(runtime.ask, "k", "/retry")
                await agent.started.wait()
                await runtime.conversation("k").steer("and this")
                agent.gate.set()
        assert agent.asked[-2:] == ["second", "second\n\nand this"]
        assert (await user_rows(runtime))[-2:] == ["second", "and this"]
