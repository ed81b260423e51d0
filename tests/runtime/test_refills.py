"""Messages that are closed while the actor reads its open messages from the store."""

from __future__ import annotations

import pytest
import trio

from hermes import Config, Inbound, TurnResult
from hermes.store import SessionStore
from hermes.testing import ScriptedAgent
from tests.support.runtime import SECONDS


class HeldRead:
    """A replaced `open_inbox` whose first call waits before and after it reads."""

    def __init__(self):
        self.entered, self.begin = trio.Event(), trio.Event()
        self.read, self.finish = trio.Event(), trio.Event()

    async def __call__(self, real, *args, **kwargs):
        self.entered.set()
        await self.begin.wait()
        rows = await real(*args, **kwargs)
        self.read.set()
        await self.finish.wait()
        return rows


@pytest.fixture
def held(path):
    """A file with an open message, and how the actor reads it."""
    with SessionStore(path) as store:
        store.accept(Inbound("k", "old", "old"))
    return HeldRead()


async def test_a_message_that_is_withdrawn_during_a_read_gets_no_turn(start_proxy, held):
    agent = ScriptedAgent()
    with trio.fail_after(SECONDS):
        async with start_proxy(lambda _: agent, open_inbox=held) as runtime:
            await held.entered.wait()
            receipt = await runtime.submit(Inbound("k", "fresh", "fresh"))
            held.begin.set()
            await held.read.wait()
            assert await runtime.withdraw(receipt)
            held.finish.set()
            assert (await runtime.ask("k", "last")).text.endswith("last")
    assert "fresh" not in " ".join(turn.text for turn in agent.turns)


async def test_a_command_that_is_answered_during_a_read_is_not_cancelled(start_proxy, held):
    answering, answer = trio.Event(), trio.Event()

    async def slow(real, *args, **kwargs):
        answering.set()
        await answer.wait()
        return await real(*args, **kwargs)

    with trio.fail_after(SECONDS):
        async with start_proxy(open_inbox=held, answer=slow) as runtime:
            await held.entered.wait()
            command = await runtime.submit(Inbound("k", "a", "/whoami", command=True))
            await answering.wait()
            held.begin.set()
            await held.read.wait()
            answer.set()
            await runtime.wait(command)
            stop = await runtime.submit(Inbound("k", "b", "/stop", command=True))
            held.finish.set()
            reply = await runtime.wait(stop)
    assert reply.text == "Stopped. 1 queued message was cancelled."


async def test_a_message_waits_for_older_ones_that_another_process_accepted(start, path):
    agent, begun, go = ScriptedAgent(), trio.Event(), trio.Event()

    async def first(turn):
        begun.set()
        await go.wait()
        return TurnResult(text="done")

    agent.script = [first]
    config = Config(merge_messages=False)
    with trio.fail_after(SECONDS):
        async with start(build_agent=lambda _: agent, config=config) as runtime:
            await runtime.submit(Inbound("k", "a", "first"))
            await begun.wait()
            with SessionStore(path) as other:
                other.accept(Inbound("k", "b", "second"))
            last = await runtime.submit(Inbound("k", "c", "third"))
            go.set()
            await runtime.wait(last)
    assert [turn.text for turn in agent.turns] == ["first", "second", "third"]
