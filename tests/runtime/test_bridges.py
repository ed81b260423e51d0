"""Agents in threads and on asyncio: real threads, real event loops, and turns that hang."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import textwrap
import threading
import weakref
from contextlib import asynccontextmanager

import anyio.lowlevel
import pytest
import sniffio
import trio

import hermes
from hermes import (
    AgentSpec,
    Config,
    TurnResult,
    current_session_id,
    current_turn_id,
    set_current_session_id,
)
from hermes.agents.bridges import BridgeStatistics, asyncio_agent, blocking_agent
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import TurnClosed
from hermes.events import Notice, TextDelta, TurnEnded, TurnStarted
from hermes.store import SessionStore
from hermes.testing import texts_of
from hermes.texts import ENGLISH
from tests.support.marked_texts import MARKED
from tests.support.runtime import SECONDS, with_threads


class Hanging:
    """A function that ignores cancellation, and uses its turn after it is released."""

    def __init__(self):
        self.begun, self.release = threading.Semaphore(0), threading.Event()
        self.refused, self.refused_before = [], []

    def echo(self, turn):
        self.refused_before.append(len(self.refused))
        return f"echo: {turn.text}"

    def thread(self, turn):
        if turn.text != "hang":
            return self.echo(turn)
        turn.emit(TextDelta("so far"))
        self.begun.release()
        self.release.wait()
        return self.late(turn)

    async def on_loop(self, turn):
        if turn.text != "hang":
            return self.echo(turn)
        turn.emit(TextDelta("so far"))
        self.begun.release()
        while not self.release.is_set():
            try:
                await asyncio.to_thread(self.release.wait)
            except asyncio.CancelledError:
                continue
        return self.late(turn)

    def late(self, turn):
        for attempt in (
            lambda: turn.emit(TextDelta("late")),
            turn.steered,
            lambda: set_current_session_id("late"),
        ):
            try:
                attempt()
            except TurnClosed as error:
                self.refused.append(str(error))
        return "too late"

    async def wait_begun(self):
        await trio.to_thread.run_sync(self.begun.acquire)


@pytest.fixture
def hanging():
    made = Hanging()
    yield made
    made.release.set()


@pytest.fixture(params=["thread", "asyncio"])
def hung(request, hanging, bridge):
    """A builder of agents that hang on the text "hang", in a thread or on asyncio."""

    def make(**options):
        if request.param == "thread":
            return blocking_agent(hanging.thread, **options)
        return bridge(hanging.on_loop, **options)

    return make


async def ended(agents):
    """Wait until all abandoned turns have ended."""
    with trio.fail_after(30):
        while agents.statistics().abandoned:
            await trio.to_thread.run_sync(threading.Event().wait, 0.001)


class Asking:
    """Asks in the background, and keeps the replies."""

    def __init__(self, runtime, nursery):
        self.runtime, self.nursery, self.replies = runtime, nursery, []

    def soon(self, key, text):
        async def ask():
            self.replies.append(await self.runtime.ask(key, text))

        self.nursery.start_soon(ask)


# In a thread


@with_threads
async def test_a_plain_function_answers_in_a_separate_thread_with_the_context_of_its_turn(start):
    seen = []

    def reply(turn):
        here = threading.current_thread()
        seen.append((here is threading.main_thread(), here.daemon, current_turn_id()))
        assert current_session_id() == turn.session_id
        with pytest.raises(sniffio.AsyncLibraryNotFoundError):
            sniffio.current_async_library()
        rendered = [message.content for message in turn.messages()]
        return f"{turn.session_key} {turn.source.platform} {len(turn.history)} {rendered}"

    async with start(build_agent=blocking_agent(reply)) as runtime:
        first = await runtime.ask("k", "hello")
        assert first.text == "k embedded 0 ['hello']"
        second = await runtime.ask("k", "more")
        assert second.text == f"k embedded 2 {['hello', first.text, 'more']}"
        assert (first.build_reason, second.build_reason) == ("cold", None)
    assert seen == [(False, True, first.turn_id), (False, True, second.turn_id)]


def moving(turn):
    set_current_session_id("child")
    return str(current_session_id())


async def moving_on_asyncio(turn):
    await asyncio.create_task(asyncio.to_thread(set_current_session_id, "child"))
    return str(current_session_id())


@pytest.mark.parametrize("kind", ["thread", "asyncio"])
async def test_the_session_that_an_agent_moves_to_is_seen_by_the_runtime(start, bridge, kind):
    agent = blocking_agent(moving) if kind == "thread" else bridge(moving_on_asyncio)
    async with start(build_agent=agent) as runtime:
        reply = await runtime.ask("k", "hello")
        assert (reply.text, reply.session_id) == ("child", "child")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no luck"),
        SystemExit("no luck"),
        KeyboardInterrupt("no luck"),
        asyncio.CancelledError("no luck"),
        StopIteration("no luck"),
        ExceptionGroup("no luck", [ValueError("no luck")]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["thread", "asyncio"])
async def test_whatever_a_function_raises_fails_its_turn_only(start, bridge, kind, error):
    def reply(turn):
        if turn.text == "fail":
            raise error
        return "well"

    async def on_asyncio(turn):
        return reply(turn)

    agent = blocking_agent(reply) if kind == "thread" else bridge(on_asyncio)
    async with start(build_agent=agent) as runtime:
        assert (await runtime.ask("k", "fail")).status == "failed"
        reply_after = await runtime.ask("k", "go on")
        assert (reply_after.text, reply_after.build_reason) == ("well", None)
    assert agent.statistics() == BridgeStatistics(0, 0)


async def test_a_cancellation_that_the_runtime_did_not_request_is_logged_as_such(
    start, bridge, caplog
):
    async def reply(turn):
        asyncio.current_task().cancel()
        await asyncio.sleep(0)

    async with start(build_agent=bridge(reply)) as runtime:
        reply_to = await runtime.ask("k", "hello")
        assert (reply_to.status, reply_to.error_kind) == ("failed", "RuntimeError")
    assert "cancelled by something other than the runtime" in caplog.text


async def test_a_wrong_type_fails_the_turn_and_a_result_is_used_as_it_is(start):
    answers = iter([7, TurnResult(text="well", usage=())])

    async with start(build_agent=blocking_agent(lambda turn: next(answers))) as runtime:
        reply = await runtime.ask("k", "hello")
        assert (reply.status, reply.error_kind) == ("failed", "TypeError")
        assert (await runtime.ask("k", "hello")).text == "well"


async def test_threads_are_limited_and_a_turn_that_waits_for_one_can_be_stopped(start):
    begun, release = threading.Semaphore(0), threading.Event()
    running = []

    def reply(turn):
        running.append(turn.session_key)
        begun.release()
        release.wait()
        return "done"

    agent = blocking_agent(reply, max_threads=1)
    async with start(build_agent=agent) as runtime, trio.open_nursery() as nursery:
        asking = Asking(runtime, nursery)
        asking.soon("first", "go")
        await trio.to_thread.run_sync(begun.acquire)
        with runtime.subscribe("second") as events:
            asking.soon("second", "go")
            async for _ in events:
                break
        assert await runtime.conversation("second").interrupt()
        assert (await runtime.ask("second", "/status")).status == "command"
        assert (running, agent.statistics()) == (["first"], BridgeStatistics(1, 0))
        release.set()
        assert (await runtime.ask("second", "go")).text == "done"
    assert sorted(reply.status for reply in asking.replies) == ["complete", "interrupted"]


# Cancellation


async def test_a_thread_that_stops_when_cancelled_keeps_its_agent(start):
    begun, refused = threading.Event(), []

    def reply(turn):
        if turn.text != "wait":
            return "well"
        turn.emit(TextDelta("so far"))
        begun.set()
        assert not turn.cancelled
        assert turn.wait_cancelled()
        assert turn.cancelled
        try:
            turn.emit(TextDelta(" and more"))
        except TurnClosed as error:
            refused.append(error)
        return "nobody wants it"

    async with start(build_agent=blocking_agent(reply, grace_period=60)) as runtime:
        async with trio.open_nursery() as nursery:
            asking = Asking(runtime, nursery)
            asking.soon("k", "wait")
            await trio.to_thread.run_sync(begun.wait)
            assert await runtime.conversation("k").interrupt()
        assert [reply.status for reply in asking.replies] == ["interrupted"]
        assert len(refused) == 1
        assert (await runtime.ask("k", "next")).build_reason is None
        assert texts_of(await runtime.conversation("k").history())[:2] == [
            ("user", "wait"),
            ("assistant", "so far"),
        ]


async def test_a_task_of_asyncio_is_cancelled_and_its_end_is_waited_for(start, bridge):
    order, begun = [], threading.Event()

    async def reply(turn):
        order.append(turn.text)
        if turn.text != "wait":
            return "well"
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(10):
                await asyncio.sleep(0.001)
            with pytest.raises(TurnClosed):
                turn.emit(TextDelta("late"))
            order.append("cleaned up")

    async with start(build_agent=bridge(reply, grace_period=60)) as runtime:
        async with trio.open_nursery() as nursery:
            asking = Asking(runtime, nursery)
            asking.soon("k", "wait")
            await trio.to_thread.run_sync(begun.wait)
            assert await runtime.conversation("k").interrupt()
            assert (await runtime.ask("k", "next")).build_reason is None
        assert [reply.status for reply in asking.replies] == ["interrupted"]
    assert order == ["wait", "cleaned up", "next"]


@with_threads
async def test_a_turn_that_does_not_stop_is_abandoned_and_has_no_effect(start, hung, hanging):
    agents = hung(grace_period=0)
    async with start(build_agent=agents) as runtime:
        async with trio.open_nursery() as nursery:
            asking = Asking(runtime, nursery)
            with runtime.subscribe("k") as events:
                asking.soon("k", "hang")
                await hanging.wait_begun()
                assert await runtime.conversation("k").interrupt()
                heard = []
                async for envelope in events:
                    heard.append(envelope.event)
                    if isinstance(envelope.event, TurnEnded):
                        break
        assert [reply.status for reply in asking.replies] == ["interrupted"]
        assert Notice(ENGLISH.agent_replaced) in heard
        assert agents.statistics() == BridgeStatistics(running=0, abandoned=1)
        assert runtime.conversation("k").snapshot() is None

        reply = await runtime.ask("k", "next")
        assert (reply.text, reply.build_reason) == ("echo: next", "abandoned")
        assert (await runtime.ask("k", "again")).build_reason is None
        assert (await runtime.admin.statistics()).builds == {"cold": 1, "abandoned": 1}

        hanging.release.set()
        await ended(agents)
        assert len(hanging.refused) == 3
        assert texts_of(await runtime.conversation("k").history()) == [
            ("user", "hang"),
            ("assistant", "so far"),
            ("user", "next"),
            ("assistant", "echo: next"),
            ("user", "again"),
            ("assistant", "echo: again"),
        ]
        assert (await runtime.ask("k", "last")).session_id == reply.session_id


@pytest.fixture
async def stuck(start, hung, hanging):
    """Open a runtime with one agent for all conversations, whose turn in "k" was abandoned."""

    @asynccontextmanager
    async def opened(grace_period):
        agent = hung(grace_period=0)(AgentSpec(session_key="k", platform="embedded"))
        async with start(agent=agent, config=Config(grace_period=grace_period)) as runtime:
            async with trio.open_nursery() as nursery:
                Asking(runtime, nursery).soon("k", "hang")
                await hanging.wait_begun()
                await runtime.conversation("k").interrupt()
            yield runtime

    return opened


async def test_a_shared_agent_is_never_used_twice_at_once_by_a_conversation(stuck, hanging):
    async with stuck(grace_period=0) as runtime:
        for reason in ("abandoned", None):
            reply = await runtime.ask("k", "next")
            assert (reply.status, reply.error) == ("failed", ENGLISH.still_running)
            assert (reply.build_reason, ENGLISH.still_running in reply.text) == (reason, True)
        assert (await runtime.ask("other", "hello")).text == "echo: hello"
        hanging.release.set()
        with trio.fail_after(SECONDS):
            while (reply := await runtime.ask("k", "next")).status == "failed":
                pass
        assert reply.text == "echo: next"


async def test_a_shared_agent_waits_for_the_turn_that_it_abandoned(stuck, hanging):
    async with stuck(grace_period=SECONDS) as runtime:
        async with runtime.stream("k", "next") as stream:
            async for event in stream:
                if isinstance(event, TurnStarted):
                    hanging.release.set()
        assert stream.reply.text == "echo: next"
        assert hanging.refused_before == [3]  # the abandoned turn had ended


async def test_a_turn_that_waits_for_an_abandoned_one_can_be_interrupted(stuck, hanging):
    async with stuck(grace_period=SECONDS) as runtime:
        async with runtime.stream("k", "next") as stream:
            async for event in stream:
                if isinstance(event, TurnStarted):
                    await runtime.conversation("k").interrupt()
        assert stream.reply.status == "interrupted"


async def test_an_agent_object_that_says_that_it_is_abandoned_is_not_used(start):
    class Agent:
        abandoned = False
        turns = 0

        async def run(self, turn):
            self.turns += 1
            self.abandoned = turn.text == "leave work"
            return TurnResult(text="done")

    agent = Agent()
    async with start(agent=agent, config=Config(grace_period=0)) as runtime:
        assert (await runtime.ask("k", "leave work")).text == "done"
        assert (await runtime.ask("k", "next")).error == ENGLISH.still_running
        assert agent.turns == 1
        agent.abandoned = False
        assert (await runtime.ask("k", "next")).text == "done"


def test_the_blocking_host_waits_for_an_abandoned_turn_too(path, hanging):
    agent = blocking_agent(hanging.thread, grace_period=0)(
        AgentSpec(session_key="k", platform="embedded")
    )
    with start_runtime(path, agent=agent, config=Config(grace_period=0)) as runtime:
        with runtime.stream("k", "hang") as stream:
            for event in stream:
                if isinstance(event, TextDelta):
                    runtime.conversation("k").interrupt()
        assert stream.reply.status == "interrupted"
        assert runtime.ask("k", "next").error == ENGLISH.still_running


async def test_with_too_many_abandoned_turns_no_other_turn_starts(start, hung, hanging):
    agents = hung(grace_period=0, max_abandoned=2)
    async with start(build_agent=agents, texts=MARKED) as runtime:
        for key in ("a", "b"):
            async with trio.open_nursery() as nursery:
                Asking(runtime, nursery).soon(key, "hang")
                await hanging.wait_begun()
                await runtime.conversation(key).interrupt()
        assert agents.statistics() == BridgeStatistics(0, 2)
        reply = await runtime.ask("c", "hello")
        assert reply.status == "failed"
        assert reply.error == MARKED.too_many_abandoned.format(number=2)
        hanging.release.set()
        await ended(agents)
        assert (await runtime.ask("c", "hello")).text == "echo: hello"


async def test_a_turn_that_takes_too_long_is_abandoned_too(start, hung, hanging):
    agents = hung(grace_period=0)
    async with start(build_agent=agents, config=Config(turn_timeout=0.05)) as runtime:
        reply = await runtime.ask("k", "hang")
        assert (reply.status, "0.05 seconds" in reply.text) == ("failed", True)
        assert (await runtime.ask("k", "next")).build_reason == "abandoned"


async def test_a_runtime_that_ends_abandons_a_turn_that_hangs_and_keeps_its_message(
    start, hung, hanging, path
):
    agents = hung(grace_period=0)
    with trio.CancelScope() as scope:
        async with start(build_agent=agents) as runtime, trio.open_nursery() as nursery:
            Asking(runtime, nursery).soon("k", "hang")
            await hanging.wait_begun()
            scope.cancel()
    assert agents.statistics() == BridgeStatistics(0, 1)
    with SessionStore(path) as store:
        assert [row.inbound.text for row in store.open_inbox("k")] == ["hang"]
    hanging.release.set()
    await ended(agents)
    assert len(hanging.refused) == 3


def test_a_turn_that_outlives_the_runtimes_thread_is_counted_until_it_ends(path, hung, hanging):
    agents = hung(grace_period=0)
    with pytest.raises(ZeroDivisionError), start_runtime(path, build_agent=agents) as runtime:
        runtime.submit(hermes.Inbound("k", "e", "hang"))
        hanging.begun.acquire()
        raise ZeroDivisionError
    assert agents.statistics() == BridgeStatistics(0, 1)
    hanging.release.set()
    trio.run(ended, agents)
    assert len(hanging.refused) == 3


async def test_an_abandoned_task_is_not_garbage_collected(start, bridge):
    tasks, begun = [], threading.Event()

    async def reply(turn):
        tasks.append(weakref.ref(asyncio.current_task()))
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    agents = bridge(reply, grace_period=0)
    async with start(build_agent=agents) as runtime, trio.open_nursery() as nursery:
        Asking(runtime, nursery).soon("k", "hello")
        await trio.to_thread.run_sync(begun.wait)
        await runtime.conversation("k").interrupt()
    gc.collect()
    assert tasks[0]() is not None
    assert agents.statistics() == BridgeStatistics(0, 1)


def test_abandoned_turns_do_not_keep_the_process_from_exiting(path):
    code = """
        import asyncio, sys, threading, trio
        import hermes
        from hermes.agents.bridges import asyncio_agent, blocking_agent

        begun = threading.Semaphore(0)

        def hang(turn):
            begun.release()
            threading.Event().wait()

        async def deaf(turn):
            begun.release()
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

        async def main():
            for place, agent in enumerate([blocking_agent(hang, grace_period=0),
                                           asyncio_agent(deaf, grace_period=0)]):
                path = f"{sys.argv[1]}{place}"
                async with hermes.open_runtime(path, build_agent=agent) as runtime:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(runtime.ask, "k", "hello")
                        await trio.to_thread.run_sync(begun.acquire)
                        await runtime.conversation("k").interrupt()
                print(agent.statistics().abandoned)

        trio.run(main)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "1\n1\n"
    assert "Traceback" not in done.stderr


# On asyncio


async def test_all_turns_of_a_builder_run_on_one_loop_that_is_asyncios_own(start, bridge):
    loops, threads = set(), set()

    async def reply(turn):
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        threads.add(threading.current_thread())
        assert current_session_id() == turn.session_id
        return sniffio.current_async_library()

    async with start(build_agent=bridge(reply)) as runtime, trio.open_nursery() as nursery:
        asking = Asking(runtime, nursery)
        for number in range(5):
            asking.soon(f"k{number}", "hello")
    assert {reply.text for reply in asking.replies} == {"asyncio"}
    assert [(type(loop), thread.daemon) for loop in loops for thread in threads] == [
        (asyncio.SelectorEventLoop, True)
    ]
    assert threading.main_thread() not in threads


async def test_after_it_was_closed_a_builder_starts_another_loop(start, bridge):
    threads = []

    async def reply(turn):
        threads.append(threading.current_thread())
        return "well"

    agents = bridge(reply)
    async with start(build_agent=agents) as runtime:
        for _ in range(2):
            assert (await runtime.ask("k", "hello")).text == "well"
            agents.close()
            assert not threads[-1].is_alive()
    assert len(set(threads)) == 2


async def test_a_background_task_that_fails_does_not_affect_others(start, bridge, caplog):
    async def stray(error):
        raise error

    async def reply(turn):
        if turn.text == "go on":
            return "well"
        for error in (ValueError("stray"), SystemExit("stray")):
            asyncio.get_running_loop().create_task(stray(error))
        asyncio.get_running_loop().call_later(0, lambda: 1 / 0)
        for _ in range(5):
            await asyncio.sleep(0)
        return "left alone"

    agents = bridge(reply)
    with caplog.at_level(logging.ERROR):
        async with start(build_agent=agents) as runtime:
            assert (await runtime.ask("k", "hello")).text == "left alone"
            assert (await runtime.ask("k", "go on")).text == "well"
        agents.close()
    logged = [(record.name, record.exc_info[0]) for record in caplog.records if record.exc_info]
    assert ("hermes.agents.bridges", SystemExit) in logged
    assert ("asyncio", ZeroDivisionError) in logged
    assert ("asyncio", ValueError) in logged


@with_threads
async def test_events_from_the_loop_arrive_in_order_before_the_answer(start, bridge):
    async def reply(turn):
        for number in range(200):
            turn.emit(TextDelta(f"{number} "))
        return TurnResult(text="done")

    async with start(build_agent=bridge(reply)) as runtime:
        async with runtime.stream("k", "hello") as stream:
            heard = [event.text async for event in stream if isinstance(event, TextDelta)]
    assert "".join(heard) == "".join(f"{number} " for number in range(200))


def test_an_import_of_trio_asyncio_elsewhere_does_not_change_the_loop(path):
    code = """
        import asyncio, sys, trio, trio_asyncio
        import hermes
        from hermes.agents.bridges import asyncio_agent

        async def reply(turn):
            await asyncio.sleep(0)
            return type(asyncio.get_running_loop()).__module__

        async def main():
            agents = asyncio_agent(reply)
            async with hermes.open_runtime(sys.argv[1], build_agent=agents) as runtime:
                print((await runtime.ask("k", "hello")).text)

        trio.run(main)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "asyncio.unix_events\n"


def test_the_bridges_do_not_import_trio_asyncio():
    code = "import hermes.agents.bridges, sys; sys.exit('trio_asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("make", "fn"), [(blocking_agent, moving_on_asyncio), (asyncio_agent, moving)]
)
def test_a_function_of_the_other_kind_is_refused_at_once(make, fn):
    with pytest.raises(TypeError, match="function; use "):
        make(fn)


# In other hosts


async def with_anyio(turn):
    await anyio.lowlevel.checkpoint()  # reads from the context which library it runs on
    assert current_session_id() == turn.session_id
    turn.emit(TextDelta("well"))
    return "well"


def test_both_bridges_work_in_a_synchronous_host(path, bridge):
    for place, agent in enumerate([blocking_agent(lambda turn: "well"), bridge(with_anyio)]):
        with start_runtime(f"{path}{place}", build_agent=agent) as runtime:
            assert runtime.ask("k", "hello").text == "well"


def test_both_bridges_work_in_a_host_on_trio_that_anyio_runs(path, bridge):
    """anyio stores in the context which library it runs on; that is wrong in other threads."""

    def plain(turn):
        return anyio.run(with_anyio, turn, backend="asyncio")

    async def main():
        assert sniffio.current_async_library_cvar.get() == "trio"
        for place, agent in enumerate([blocking_agent(plain), bridge(with_anyio)]):
            async with hermes.open_runtime(f"{path}{place}", build_agent=agent) as runtime:
                assert (await runtime.ask("k", "hello")).text == "well"

    anyio.run(main, backend="trio")


def test_both_bridges_work_in_an_asyncio_host_beside_its_own_coroutines(path, bridge):
    async def main():
        kinds = [
            {"build_agent": blocking_agent(lambda turn: "well")},
            {"build_agent": bridge(with_anyio)},
            {"agent": with_anyio},
        ]
        for place, options in enumerate(kinds):
            async with open_runtime_asyncio(f"{path}{place}", **options) as runtime:
                assert (await runtime.ask("k", "hello")).text == "well"

    asyncio.run(main())
