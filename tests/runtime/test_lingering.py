"""A message with `linger` waits a while for more messages, which become one turn with it."""

from __future__ import annotations

import pytest
import trio

from hermes import Inbound
from hermes.actors.session.inbox import MAX_LINGER
from hermes.store import SessionStore
from hermes.testing import ScriptedAgent

KEY = "some:key"


@pytest.fixture
async def messages(start):
    agent = ScriptedAgent()
    async with start(agent=agent) as runtime:
        yield LingeringMessages(runtime, agent)


class LingeringMessages:
    """Sends messages to one conversation, and records when its turns start."""

    def __init__(self, runtime, agent):
        self.runtime = runtime
        self.agent = agent
        self.started_at = trio.current_time()
        self.count = 0

    async def send(self, text, linger=1.0, *, command=False):
        self.count += 1
        await self.runtime.submit(
            Inbound(KEY, str(self.count), text, linger=linger, command=command)
        )

    @property
    def turns(self):
        return [[each.content for each in turn.input] for turn in self.agent.turns]

    async def turn(self, number=1):
        """Wait until this many turns have started; return the seconds since the test began."""
        while len(self.agent.turns) < number:  # noqa: ASYNC110 - the clock jumps
            await trio.sleep(0.01)
        return pytest.approx(trio.current_time() - self.started_at, abs=0.1)


async def test_without_linger_a_turn_starts_at_once(messages, autojump_clock):
    await messages.send("now", linger=0.0)
    assert await messages.turn() == 0.0


async def test_messages_within_the_time_become_one_turn_and_restart_the_wait(
    messages, autojump_clock
):
    for text in ("a", "b", "c"):
        await messages.send(text)
        await trio.sleep(0.6)
    assert await messages.turn() == 2.2
    assert messages.turns == [["a", "b", "c"]]


async def test_a_later_message_is_another_turn(messages, autojump_clock):
    await messages.send("a")
    assert await messages.turn() == 1.0
    await messages.send("b")
    assert await messages.turn(2) == 2.0
    assert messages.turns == [["a"], ["b"]]


async def test_the_wait_is_bounded(messages, autojump_clock):
    async def send_many():
        while not messages.turns:
            await messages.send("x", linger=2.0)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_many)
        assert await messages.turn() == MAX_LINGER


async def test_a_message_without_linger_ends_the_wait(messages, autojump_clock):
    await messages.send("a", linger=2.0)
    await trio.sleep(0.5)
    await messages.send("b", linger=0.0)
    assert await messages.turn() == 0.5
    assert messages.turns == [["a", "b"]]


async def test_a_command_ends_the_wait(messages, autojump_clock):
    await messages.send("a", linger=2.0)
    await trio.sleep(0.5)
    await messages.send("/deny", linger=0.0, command=True)
    assert await messages.turn() == 0.5
    assert messages.turns == [["a"]]


async def test_stop_cancels_a_message_that_lingers(messages, autojump_clock):
    await messages.send("a", linger=2.0)
    await trio.sleep(0.5)
    await messages.send("/stop", linger=0.0, command=True)
    await trio.sleep(5)
    assert messages.turns == []
    assert (await messages.runtime.conversation(KEY).status()).waiting == 0


async def test_a_request_of_the_host_ends_the_wait(messages, autojump_clock):
    await messages.send("a", linger=2.0)
    await trio.sleep(0.5)
    await messages.runtime.conversation(KEY).new()
    assert trio.current_time() - messages.started_at < 0.6


async def test_messages_that_linger_are_answered_when_the_runtime_ends(start, autojump_clock):
    agent = ScriptedAgent()
    async with start(agent=agent) as runtime:
        await runtime.submit(Inbound(KEY, "1", "a", linger=1.0))
        await runtime.submit(Inbound(KEY, "2", "b", linger=1.0))
    assert [[m.content for m in turn.input] for turn in agent.turns] == [["a", "b"]]


def test_linger_is_stored(path):
    with SessionStore(path) as store:
        store.accept(Inbound(KEY, "1", "a", linger=0.5))
        (row,) = store.open_inbox()
    assert row.inbound.linger == 0.5
