"""What is said in pieces is one turn: a turn waits a little for the rest, and never for long."""

from __future__ import annotations

import pytest
import trio

from hermes import Inbound
from hermes.actors.session.actor import LONGEST_LINGER
from hermes.testing import CountingBuilder, ScriptedAgent

KEY = "some:key"


@pytest.fixture
def workers():
    return "inline"


@pytest.fixture
async def talk(start):
    agent = ScriptedAgent()
    async with start(agent=CountingBuilder(lambda _: agent)) as runtime:
        yield Talk(runtime, agent)


class Talk:
    def __init__(self, runtime, agent):
        self.runtime = runtime
        self.agent = agent
        self.begun = trio.current_time()
        self.said = 0

    async def say(self, text, linger=1.0, *, command=False):
        self.said += 1
        await self.runtime.submit(
            Inbound(KEY, str(self.said), text, linger=linger, command=command)
        )

    @property
    def turns(self):
        return [[message.content for message in turn.input] for turn in self.agent.turns]

    async def turn(self, number=1):
        """When so many turns have begun, in seconds from the beginning."""
        while len(self.agent.turns) < number:  # noqa: ASYNC110 - the clock jumps
            await trio.sleep(0.01)
        return pytest.approx(trio.current_time() - self.begun, abs=0.1)


async def test_without_it_a_turn_begins_at_once(talk, autojump_clock):
    await talk.say("now", linger=0.0)
    assert await talk.turn() == 0.0


async def test_what_comes_within_the_time_is_one_turn_and_starts_the_wait_anew(
    talk, autojump_clock
):
    for text in ("a", "b", "c"):
        await talk.say(text)
        await trio.sleep(0.6)
    assert await talk.turn() == 2.2
    assert talk.turns == [["a", "b", "c"]]


async def test_what_comes_later_is_another_turn(talk, autojump_clock):
    await talk.say("a")
    assert await talk.turn() == 1.0
    await talk.say("b")
    assert await talk.turn(2) == 2.0
    assert talk.turns == [["a"], ["b"]]


async def test_the_wait_has_an_end_however_much_comes(talk, autojump_clock):
    async def chatter():
        while not talk.turns:
            await talk.say("x", linger=2.0)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(chatter)
        assert await talk.turn() == LONGEST_LINGER


async def test_a_piece_that_does_not_linger_ends_the_wait(talk, autojump_clock):
    await talk.say("a", linger=2.0)
    await trio.sleep(0.5)
    await talk.say("b", linger=0.0)
    assert await talk.turn() == 0.5
    assert talk.turns == [["a", "b"]]


async def test_a_command_does_not_wait_and_ends_the_wait(talk, autojump_clock):
    await talk.say("a", linger=2.0)
    await trio.sleep(0.5)
    await talk.say("/deny", linger=0.0, command=True)
    assert await talk.turn() == 0.5
    assert talk.turns == [["a"]]


async def test_a_command_that_ends_what_waits_comes_first(talk, autojump_clock):
    await talk.say("a", linger=2.0)
    await trio.sleep(0.5)
    await talk.say("/stop", linger=0.0, command=True)
    await trio.sleep(5)
    assert talk.turns == []
    assert (await talk.runtime.status(KEY)).waiting == 0


async def test_a_request_does_not_wait_for_it(talk, autojump_clock):
    await talk.say("a", linger=2.0)
    await trio.sleep(0.5)
    await talk.runtime.new_session(KEY)
    assert trio.current_time() - talk.begun < 0.6


async def test_who_lingers_is_not_forgotten_at_the_end(start, autojump_clock):
    agent = ScriptedAgent()
    async with start(agent=CountingBuilder(lambda _: agent)) as runtime:
        await runtime.submit(Inbound(KEY, "1", "a", linger=1.0))
        await runtime.submit(Inbound(KEY, "2", "b", linger=1.0))
    assert [[m.content for m in turn.input] for turn in agent.turns] == [["a", "b"]]


async def test_it_is_read_again_as_it_was_stored(start, autojump_clock, path):
    from hermes.store import SessionStore

    with SessionStore(path) as store:
        store.accept(Inbound(KEY, "1", "a", linger=0.5))
        (row,) = store.open_inbox()
    assert row.inbound.linger == 0.5
