"""A runtime inside an asyncio program."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading

import anyio
import pytest
import trio
from msgspec.structs import replace

import hermes
from hermes.actors.event_bus import MAX_BUFFERED
from hermes.embed import AsyncioRuntime, open_runtime_asyncio
from hermes.errors import RetryAfter, TurnClosed
from hermes.events import Notice, TextDelta, ToolFinished, ToolStarted, TurnEnded, TurnStarted
from hermes.messages import Inbound, OutboxRow
from hermes.protocols import Summary
from hermes.texts import ENGLISH
from tests.support.processes import foreign
from tests.support.runtime import SECONDS


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


def test_async_hooks_of_every_form_run_on_the_loop(path):
    main_thread, seen = threading.current_thread(), []

    async def note(name, session_id):
        await asyncio.sleep(0)
        assert hermes.current_session_id() == session_id
        seen.append((name, threading.current_thread() is main_thread))

    class Hook:
        async def __call__(self, session_id, platform, transcript):
            assert [row.content for row in (await transcript()).messages] == ["hi", "echo: hi"]
            await note("object", session_id)

    class Failing:
        async def __call__(self, session_id, platform):
            await note("failing", session_id)
            raise ValueError("on purpose")

    async def with_name(name, session_id, platform, transcript):
        assert len((await transcript()).messages) == 2
        await note(name, session_id)

    def plain(session_id, platform, transcript):
        assert len(trio.from_thread.run(transcript).messages) == 2
        seen.append(("plain", threading.current_thread() is main_thread))

    hooks = [
        Hook(),
        Failing(),
        functools.partial(with_name, "partial"),
        lambda session_id, platform: note("lambda", session_id),
        plain,
    ]

    async def main():
        options = {"agent": echo, "hooks": {"on_session_finalize": hooks}}
        async with open_runtime_asyncio(path, **options) as runtime:
            await runtime.ask("k", "hi")
            await runtime.conversation("k").new()
            await runtime.wait_hooks()

    asyncio.run(main())
    on_loop = [(name, True) for name in ("object", "failing", "partial", "lambda")]
    assert seen == [*on_loop, ("plain", False)]
    [[error]] = foreign(path, "SELECT error FROM boundaries WHERE error IS NOT NULL")
    assert "Failing raised" in error


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


# Agents that ignore cancellation


class Deaf:
    """An agent that goes on when it is cancelled, until it is released."""

    def __init__(self):
        self.running = self.closed = 0
        self.begun, self.release, self.was_closed = (asyncio.Event() for _ in range(3))
        self.refused = []

    async def run(self, turn):
        self.running += 1
        assert self.running == 1 or turn.text != "own", "used twice at once"
        assert not self.closed
        try:
            if turn.text == "hang":
                self.begun.set()
                await self.hang()
                for late in (lambda: turn.emit(TextDelta("late")), turn.steered):
                    with pytest.raises(TurnClosed) as refused:
                        late()
                    self.refused.append(str(refused.value))
            return hermes.TurnResult(text=f"echo: {turn.text}")
        finally:
            self.running -= 1

    async def hang(self):
        while not self.release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.release.wait()

    async def aclose(self):
        assert not self.running, "closed under a turn"
        self.closed += 1
        self.was_closed.set()


IMPATIENT = hermes.Config(grace_period=0)


def run_with(make, main):
    """Run a program with an agent, which is released at the end even if the program fails."""

    async def run():
        agent = make()
        try:
            await main(agent)
        finally:
            agent.release.set()

    asyncio.run(run())


def test_an_agent_that_does_not_stop_is_abandoned_and_closed_after_its_turn(path):
    async def main(first):
        second = Deaf()
        agents = iter([first, second])

        def build(spec):
            return next(agents)

        async with open_runtime_asyncio(path, build_agent=build, config=IMPATIENT) as runtime:
            chat = runtime.conversation("k")
            caller = asyncio.create_task(chat.ask("hang"))
            await first.begun.wait()
            assert await chat.interrupt()
            assert (await caller).status == "interrupted"
            reply = await chat.ask("own")
            assert (reply.text, reply.build_reason) == ("echo: own", "abandoned")
            assert (await chat.ask("own")).build_reason is None
            assert (first.running, first.closed) == (1, 0)
            first.release.set()
            await first.was_closed.wait()
            assert len(first.refused) == 2
            texts = [row.content for row in await chat.history()]
            assert texts == ["hang", *["own", "echo: own"] * 2]
        assert (first.closed, second.closed) == (1, 1)

    run_with(Deaf, main)


def test_a_shared_agent_that_does_not_stop_is_abandoned_by_one_conversation(path):
    async def main(agent):
        async with open_runtime_asyncio(path, agent=agent, config=IMPATIENT) as runtime:
            async with runtime.subscribe(deltas=False) as events:
                caller = asyncio.create_task(runtime.ask("k", "hang"))
                await agent.begun.wait()
                assert await runtime.conversation("k").interrupt()
                assert (await caller).status == "interrupted"
                assert (await runtime.ask("other", "hello")).text == "echo: hello"
                refused = [await runtime.ask("k", "own") for _ in range(2)]
                assert [(reply.status, reply.error) for reply in refused] == [
                    ("failed", ENGLISH.still_running)
                ] * 2
                assert [reply.build_reason for reply in refused] == ["abandoned", None]
                await events.aclose()
                notices = [e.session_key async for e in events if isinstance(e.event, Notice)]
            assert notices == ["k"]
        assert (agent.running, agent.closed) == (1, 0)
        agent.release.set()
        await agent.was_closed.wait()
        assert agent.closed == 1

    run_with(Deaf, main)


def test_a_shared_agent_waits_for_the_turn_that_it_abandoned(path):
    async def main(agent):
        config = hermes.Config(grace_period=1.0)  # also the time to release the first turn below
        async with open_runtime_asyncio(path, agent=agent, config=config) as runtime:
            caller = asyncio.create_task(runtime.ask("k", "hang"))
            await agent.begun.wait()
            assert await runtime.conversation("k").interrupt()
            assert (await caller).status == "interrupted"
            async with runtime.stream("k", "own") as stream:  # the agent checks that it is alone
                async for event in stream:
                    if isinstance(event, TurnStarted):
                        assert agent.running == 1
                        agent.release.set()
            assert (stream.reply.text, stream.reply.build_reason) == ("echo: own", "abandoned")
            assert (await runtime.ask("k", "own")).build_reason is None

    run_with(Deaf, main)


@pytest.mark.parametrize("shared", [True, False])
def test_the_grace_period_may_come_from_the_setup(path, caplog, shared):
    @contextlib.asynccontextmanager
    async def setup():
        yield {"config": IMPATIENT}

    async def main(deaf):
        agents = itertools.chain([deaf], itertools.repeat(hermes.testing.ScriptedAgent()))
        options = {"agent": deaf} if shared else {"build_agent": lambda spec: next(agents)}
        async with open_runtime_asyncio(path, setup=setup, **options) as runtime:
            chat = runtime.conversation("k")
            caller = asyncio.create_task(chat.ask("hang"))
            await deaf.begun.wait()
            assert await chat.interrupt()
            assert (await caller).status == "interrupted"
            deaf.release.set()

    run_with(Deaf, main)
    assert "did not stop within 0 s: abandoned" in caplog.text


def test_an_agent_that_fails_to_close_after_its_abandoned_turn_is_logged(path, caplog):
    class FailsToClose(Deaf):
        async def aclose(self):
            await super().aclose()
            raise OSError("not now")

    async def main(agent):
        with pytest.raises(ZeroDivisionError):
            async with open_runtime_asyncio(path, agent=agent, config=IMPATIENT) as runtime:
                await runtime.submit(Inbound("k", "e", "hang"))
                await agent.begun.wait()
                raise ZeroDivisionError
        agent.release.set()
        await agent.was_closed.wait()

    run_with(FailsToClose, main)
    assert "an agent failed to close" in caplog.text


def test_an_abandoned_agent_is_refused_if_the_host_sets_it_again(path):
    async def main(agent):
        async with open_runtime_asyncio(path, agent=echo, config=IMPATIENT) as runtime:
            chat = runtime.conversation("k")
            await chat.ask("hello")
            snapshot = await chat.snapshot()
            await chat.set_agent(replace(snapshot, agent=agent))
            assert (await chat.ask("own")).text == "echo: own"
            again = await chat.snapshot()
            await chat.set_agent(replace(again, agent=agent))  # the same one: it is not closed
            assert (await chat.ask("own")).text == "echo: own"
            caller = asyncio.create_task(chat.ask("hang"))
            await agent.begun.wait()
            await chat.interrupt()
            assert (await caller).status == "interrupted"
            await chat.set_agent(replace(again, message_count=None))
            refused = await chat.ask("own")
            assert (refused.status, agent.closed) == ("failed", 0)
            assert "no new turn starts until one of them ends" in refused.error
            agent.release.set()
            await agent.was_closed.wait()
        assert agent.closed == 1

    run_with(Deaf, main)


def test_an_event_that_cannot_be_redacted_fails_its_turn_only(path):
    def redact(text):
        if text == "secret":
            raise ValueError("cannot redact this")
        return text

    async def reply(turn):
        turn.emit(ToolFinished("c", turn.text))
        return "done"

    async def main():
        async with open_runtime_asyncio(path, agent=reply, redact=redact) as runtime:
            assert (await runtime.ask("k", "secret")).status == "failed"
            assert (await runtime.ask("k", "hello")).text == "done"

    asyncio.run(main())


# Crossings between the threads


class CountingPortal:
    """Counts the calls into the runtime's thread."""

    def __init__(self, portal):
        self.portal = portal
        self.calls = 0

    def start_task_soon(self, function):
        self.calls += 1
        return self.portal.start_task_soon(function)


PIECES = [f"{number} " for number in range(200)]


async def pieces(turn):
    for piece in PIECES:
        turn.emit(TextDelta(piece))
    return "".join(PIECES)


def test_events_that_have_arrived_cross_together(path):
    async def main():
        async with open_runtime_asyncio(path, agent=pieces) as runtime:
            portal = CountingPortal(runtime._portal)
            counted = AsyncioRuntime(portal, runtime._target)
            ended = asyncio.Event()

            def on_event(envelope):
                if isinstance(envelope.event, TurnEnded):
                    ended.set()

            async with (
                counted.subscribe("k") as events,
                runtime.subscribe(callback=on_event),
                counted.stream("k", "hello") as stream,
            ):
                await ended.wait()
                before = portal.calls
                started, *middle, last = [event async for event in stream]
                assert portal.calls - before == 2  # all but the last event, and the last
                assert (type(started), type(last)) == (TurnStarted, TurnEnded)
                assert "".join(event.text for event in middle) == "".join(PIECES)
                await stream.aclose()
                assert portal.calls - before == 2
                await events.aclose()
                before = portal.calls
                received = [each.event async for each in events]
                assert portal.calls - before == 2
            texts = [event.text for event in received if isinstance(event, TextDelta)]
            assert "".join(texts) == "".join(PIECES)
            assert isinstance(received[-1], TurnEnded)

    asyncio.run(main())


def test_a_reader_that_is_cancelled_again_and_again_misses_nothing(path):
    async def slowly(turn):
        for piece in PIECES:
            turn.emit(TextDelta(piece))
            await asyncio.sleep(0.0005)
        return "done"

    async def main():
        texts, timeouts = [], 0
        async with (
            open_runtime_asyncio(path, agent=slowly) as runtime,
            runtime.stream("k", "hello") as stream,
        ):
            while stream.reply is None:
                try:
                    event = await asyncio.wait_for(anext(stream), 0.0005)
                except TimeoutError:
                    timeouts += 1
                    continue
                if isinstance(event, TextDelta):
                    texts.append(event.text)
        assert "".join(texts) == "".join(PIECES)
        assert timeouts

    asyncio.run(main())


def test_events_that_were_not_read_when_a_stream_is_left_are_gone(path):
    async def main():
        ended = asyncio.Event()

        def on_event(envelope):
            if isinstance(envelope.event, TurnEnded):
                ended.set()

        async with open_runtime_asyncio(path, agent=pieces) as runtime:
            async with runtime.subscribe(callback=on_event), runtime.stream("k", "hi") as stream:
                await ended.wait()
                await anext(stream)
                assert stream.reply is None
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
            assert stream.reply is None

    asyncio.run(main())


def test_a_subscription_says_how_many_events_were_lost(path):
    number = 1500

    async def call_tools(turn):
        for each in range(number):
            turn.emit(ToolStarted(hermes.ToolCall(f"c{each}", "tool", "{}")))
        return "done"

    async def main():
        async with (
            open_runtime_asyncio(path, agent=call_tools) as runtime,
            runtime.subscribe("k") as events,
        ):
            await runtime.ask("k", "hello")
            assert events.lost == 0  # nothing was read yet
            received = [await anext(events)]
            assert events.lost == 2 + number - MAX_BUFFERED
            async for each in events:
                received.append(each)
                if isinstance(each.event, TurnEnded):
                    break
            assert len(received) == MAX_BUFFERED

    asyncio.run(main())


# Leaving a stream


def test_a_task_that_is_cancelled_while_it_leaves_a_stream_interrupts_the_turn(path):
    async def hang(turn):
        await asyncio.Event().wait()

    async def leave(runtime):
        async with runtime.stream("k", "hello", interrupt_on_exit=True) as stream:
            await anext(stream)
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)

    async def main():
        ends = []
        async with open_runtime_asyncio(path, agent=hang) as runtime:
            for _ in range(20):
                async with runtime.subscribe("k") as events:
                    with pytest.raises(asyncio.CancelledError):
                        await asyncio.create_task(leave(runtime))
                    async for envelope in events:
                        if isinstance(envelope.event, TurnEnded):
                            ends.append(envelope.event.reply.status)
                            break
        assert ends == ["interrupted"] * 20

    asyncio.run(asyncio.wait_for(main(), SECONDS))


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
