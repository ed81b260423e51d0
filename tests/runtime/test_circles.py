"""Agents that ask each other: a circle is refused, everything else works."""

from __future__ import annotations

import pytest
import trio

from hermes import WaitCircle
from hermes.testing import inspect
from tests.support.runtime import SECONDS, with_threads

pytestmark = with_threads


class Relay:
    """An agent that asks other conversations, in the way that `how` says.

    The text "b c" asks b to ask c; "." asks nobody. The reply names everybody who was asked.
    """

    def __init__(self, how="ask"):
        self.how = how
        self.runtime = None

    async def run(self, turn):
        target, _, rest = turn.text.partition(" ")
        if target == ".":
            return turn.session_key
        try:
            return f"{turn.session_key} {await self._ask(target, rest)}"
        except WaitCircle as circle:
            return f"{circle}"

    async def _ask(self, target, text):
        if self.how == "ask":
            return (await self.runtime.ask(target, text or ".")).text
        async with self.runtime.stream(target, text or ".") as stream:
            async for _ in stream:
                pass
        return stream.reply.text


@pytest.fixture(params=["ask", "stream"])
def relay(request):
    return Relay(request.param)


@pytest.mark.parametrize(
    ("first", "text", "circle"),
    [
        ("a", "b a", "b -> a -> b"),
        ("a", "b c a", "c -> a -> b -> c"),
        ("a", "b c b", "c -> b -> c"),
    ],
)
async def test_a_circle_is_refused_and_named(start, relay, first, text, circle):
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: relay) as relay.runtime:
            reply = await relay.runtime.ask(first, text)
            assert f"conversations would wait for each other: {circle}" in reply.text
            for key in "abc":  # nobody is left waiting
                assert (await relay.runtime.ask(key, ".")).text == key


async def test_a_conversation_cannot_ask_itself(start, relay):
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: relay) as relay.runtime:
            reply = await relay.runtime.ask("a", "a")
            assert "a turn cannot wait for its own conversation" in reply.text


async def test_a_chain_is_no_circle(start, relay):
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: relay) as relay.runtime:
            for _ in range(2):
                assert (await relay.runtime.ask("a", "b c")).text == "a b c"
            assert (await relay.runtime.ask("c", "a")).text == "c a"


async def test_a_verb_that_waits_for_a_turn_is_part_of_a_circle(start):
    async def agent(turn):
        if turn.session_key == "a":
            return (await runtime.ask("b", "hello")).text
        with pytest.raises(WaitCircle, match="b -> a -> b"):
            await runtime.conversation("a").new()
        return "refused"

    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime:
            assert (await runtime.ask("a", "hello")).text == "refused"


async def test_a_verb_that_waits_closes_a_circle_too(start):
    started = trio.Event()

    def waits(key, other):
        actor = inspect(runtime).actor(key)
        turn = None if actor is None else actor.runner.turn
        return turn is not None and other in turn.context.waits_for

    async def agent(turn):
        if turn.session_key == "b":
            started.set()
            while not waits("a", "b"):
                await trio.lowlevel.checkpoint()
            with pytest.raises(WaitCircle, match="b -> a -> b"):
                await runtime.ask("a", "hello")
            return "refused"
        return f"{(await runtime.conversation('b').new()).changed}"

    with trio.fail_after(SECONDS):
        async with start(agent=agent) as runtime, trio.open_nursery() as nursery:
            nursery.start_soon(runtime.ask, "b", "hello")
            await started.wait()
            assert (await runtime.ask("a", "hello")).text == "True"
