"""A runtime inside an asyncio program."""

from __future__ import annotations

import asyncio
import itertools
import threading

import anyio
import pytest

import hermes
from hermes.embed import open_runtime_asyncio
from hermes.errors import RetryAfter, TurnClosed
from hermes.events import TextDelta
from hermes.messages import Inbound, OutboxRow
from hermes.protocols import Summary


async def echo(turn):
    return f"echo: {turn.text}"


def test_coroutines_of_the_host_run_on_its_loop(path):  # noqa: C901 - one of each
    main_thread = threading.current_thread()
    seen = []

    class Agent:
        async def run(self, turn):
            await asyncio.sleep(0)
            turn.emit(TextDelta("pi"))
            turn.emit(TextDelta("ece"))
            seen.append(("run", threading.current_thread() is main_thread))
            assert hermes.current_session_id() == turn.session_id
            return hermes.TurnResult(text="piece")

        async def aclose(self):
            await asyncio.sleep(0)
            seen.append(("aclose", threading.current_thread() is main_thread))

    async def build(spec):
        await asyncio.sleep(0)
        seen.append(("build", threading.current_thread() is main_thread))
        return Agent()

    async def hook(session_id, platform):
        await asyncio.sleep(0)
        assert hermes.current_session_id() == session_id
        seen.append(("hook", threading.current_thread() is main_thread))

    class Compressor:
        async def summarize(self, request):
            await asyncio.sleep(0)
            seen.append(("summarize", threading.current_thread() is main_thread))
            return Summary("short")

    class Adapter:
        platform = "web"
        local = True

        async def send(self, row: OutboxRow):
            await asyncio.sleep(0)
            seen.append(("send", threading.current_thread() is main_thread))

    async def main():
        async with open_runtime_asyncio(
            path,
            build_agent=build,
            hooks={"on_session_finalize": [hook]},
            compressor=Compressor(),
            adapters=[Adapter()],
        ) as runtime:
            async with runtime.stream("k", "hello " * 400) as stream:
                events = [event async for event in stream]
            assert [e.text for e in events if isinstance(e, TextDelta)] == ["pi", "ece"]
            source = hermes.Source("web")
            await runtime.ask("k", "more", source=source)
            for n in range(4):
                await runtime.submit(Inbound("k", f"e{n}", "more " * 400, source))
                await runtime.ask("k", "and more")
            await runtime.conversation("k").compress(keep_exchanges=1)
            assert (await runtime.conversation("k").status()).message_count < 20
            assert (await runtime.ask("k", "/new")).text == "New session."

    asyncio.run(main())
    assert {name for name, _ in seen} == {"build", "run", "hook", "summarize", "send", "aclose"}
    assert all(there for _, there in seen)


def test_an_adapter_on_the_loop_has_all_features(path):
    """Its limit, its account, `ready`, and `RetryAfter`."""
    sent, waited = [], []

    class Adapter:
        platform, account, limit, local = "web", "one", 10, True
        trouble = [RetryAfter("slow down", 0)]  # noqa: RUF012

        async def ready(self, row: OutboxRow):
            await asyncio.sleep(0)
            waited.append(row.part)

        async def send(self, row: OutboxRow):
            if self.trouble:
                raise self.trouble.pop()
            sent.append((row.body["text"], row.part, row.parts, row.recovered))

    async def reply(turn):
        return "the first the second"

    async def main():
        async with open_runtime_asyncio(path, agent=reply, adapters=[Adapter()]) as runtime:
            await runtime.ask("k", "hello", source=hermes.Source("web", "one"))
            await runtime.ask("l", "hello", source=hermes.Source("web", "other"))

    asyncio.run(main())
    assert sent == [("the first", 0, 2, False), ("the second", 1, 2, False)]
    assert waited == [0, 0, 1]


def test_a_cancelled_caller_does_not_stop_the_turn_and_an_interrupt_does(path):
    stopped = []

    async def main():
        started = asyncio.Event()

        async def reply(turn):
            if turn.text != "slow":
                return "quick"
            started.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                stopped.append("cancelled")
                raise

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            caller = asyncio.create_task(runtime.ask("k", "slow"))
            await started.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            assert (await runtime.conversation("k").status()).busy
            assert not stopped
            assert await runtime.conversation("k").interrupt()
            assert (await runtime.ask("k", "next")).text == "quick"

    asyncio.run(main())
    assert stopped == ["cancelled"]


def test_after_a_cancelled_host_the_message_is_answered_at_the_next_start(path):
    async def host(started):
        async def reply(turn):
            started.set()
            await asyncio.sleep(3600)

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            await runtime.ask("k", "hello?")

    async def main():
        started = asyncio.Event()
        task = asyncio.create_task(host(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            await runtime.drain()
            texts = [row.content for row in await runtime.conversation("k").history()]
            assert texts == ["hello?", "echo: hello?"]

    asyncio.run(main())


def test_an_agent_can_be_steered_and_cannot_emit_after_its_turn(path):
    kept = []

    async def main():
        started, steered = asyncio.Event(), asyncio.Event()

        async def reply(turn):
            kept.append(turn)
            started.set()
            await steered.wait()
            [found] = turn.steered()
            return f"turned {found.content}"

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            caller = asyncio.create_task(runtime.ask("k", "go"))
            await started.wait()
            await runtime.conversation("k").steer("left")
            steered.set()
            assert (await caller).text == "turned left"
            with pytest.raises(TurnClosed):
                kept[0].emit(TextDelta("late"))
            with pytest.raises(TurnClosed):
                kept[0].steered()

    asyncio.run(main())


def test_a_turn_starts_after_the_cancelled_one_has_cleaned_up(path):
    order = []

    async def main():
        started = asyncio.Event()

        async def reply(turn):
            order.append(turn.text)
            if turn.text != "slow":
                return "quick"
            started.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                order.append("cleaned up")

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            caller = asyncio.create_task(runtime.ask("k", "slow"))
            await started.wait()
            assert await runtime.conversation("k").interrupt()
            assert (await runtime.ask("k", "next")).text == "quick"
            assert (await caller).status == "interrupted"

    asyncio.run(main())
    assert order == ["slow", "cleaned up", "next"]


class SharedAgent:
    """An agent that hangs when asked to, and counts how often it is closed on its loop."""

    def __init__(self):
        self.thread = threading.current_thread()
        self.started = asyncio.Event()
        self.closed = 0

    async def run(self, turn):
        self.started.set()
        if turn.text == "hang":
            await asyncio.sleep(3600)
        return hermes.TurnResult(text="done")

    async def aclose(self):
        await asyncio.sleep(0)
        assert threading.current_thread() is self.thread
        self.closed += 1


@pytest.mark.parametrize("cancellations", [1, 2])
def test_a_shared_agent_is_closed_once_if_the_host_is_cancelled(path, cancellations):
    async def host(agent):
        async with open_runtime_asyncio(path, agent=agent) as runtime:
            await runtime.ask("k", "hang")

    async def main():
        agent = SharedAgent()
        task = asyncio.create_task(host(agent))
        await agent.started.wait()
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert agent.closed == 1

    asyncio.run(main())


def test_a_shared_agent_is_closed_once_if_the_block_fails(path):
    async def main():
        agent = SharedAgent()
        with pytest.raises(ZeroDivisionError):
            async with open_runtime_asyncio(path, agent=agent) as runtime:
                await runtime.ask("k", "hello")
                raise ZeroDivisionError
        assert agent.closed == 1

    asyncio.run(main())


# Leaving a stream


@pytest.mark.parametrize("how", ["anyio", "asyncio", "break"])
def test_a_client_that_goes_away_interrupts_its_turn(path, how):  # noqa: C901 - three ways
    """Starlette cancels a request with an anyio scope, in which every later await fails, too."""
    started = []

    class Endless:
        async def run(self, turn):
            started.append(turn.turn_id)
            for number in itertools.count():
                turn.emit(TextDelta(f"{number} "))
                await asyncio.sleep(0.001)

    async def read(runtime, scope):
        async with runtime.stream("k", "hello", interrupt_on_exit=True) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    if how == "break":
                        break
                    scope.cancel()

    async def main():
        async with open_runtime_asyncio(path, agent=Endless()) as runtime:
            for _ in range(20):
                if how == "asyncio":
                    task = asyncio.create_task(read(runtime, scope := Canceller()))
                    scope.task = task
                    with pytest.raises(asyncio.CancelledError):
                        await task
                else:
                    with anyio.CancelScope() as scope:
                        await read(runtime, scope)
                # It waits for the running turn, which never ends by itself.
                await asyncio.wait_for(runtime.conversation("k").new(), 10)

    asyncio.run(main())
    assert len(started) == 20


class Canceller:
    """Cancels a task of asyncio."""

    task = None

    def cancel(self):
        self.task.cancel()
