"""The runtime inside synchronous and asyncio programs: the same verbs, and a clean end."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import hermes
from hermes.actors.runtime import Runtime
from hermes.embed import AsyncioRuntime, BlockingRuntime, open_runtime_asyncio, start_runtime
from hermes.errors import Draining, RetryAfter, TurnClosed, UnknownSession
from hermes.events import TextDelta, TurnEnded
from hermes.messages import Inbound, OutboxRow
from hermes.protocols import Summary
from hermes.store import SessionStore

VERBS = {
    name
    for name, verb in inspect.getmembers(Runtime, inspect.isfunction)
    if not name.startswith("_")
} - {"act", "deliver", "send", "end", "events", "look_after", "passivate"}


async def echo(turn):
    return f"echo: {turn.text}"


@pytest.mark.parametrize("face", [BlockingRuntime, AsyncioRuntime])
def test_every_verb_is_there_for_every_host(face):
    assert {name for name in dir(face) if not name.startswith("_")} == VERBS


def test_a_script_asks_from_many_threads(path):
    with start_runtime(path, agent=echo) as runtime:
        with ThreadPoolExecutor(8) as threads:
            asked = [f"message {n}" for n in range(40)]
            replies = list(threads.map(lambda text: runtime.ask(f"k{len(text)}", text), asked))
        for text, reply in zip(asked, replies, strict=True):
            assert text in reply.text  # what waited together is answered together
        assert runtime.statistics().actors == 2
        assert runtime.snapshot("nobody") is None
    with SessionStore(path) as store:
        assert not store.open_inbox()


def test_a_script_hears_a_stream_and_may_leave_it(path):
    with start_runtime(path, agent=echo) as runtime:
        *_, last = runtime.stream("k", "one")
        assert last == TurnEnded(last.reply)
        assert last.reply.text == "echo: one"
        with runtime.stream("k", "two") as stream:
            next(stream)
        assert runtime.ask("k", "three").text.endswith("three")


def test_errors_come_to_the_script_as_they_are(path):
    with start_runtime(path, agent=echo) as runtime:
        with pytest.raises(UnknownSession, match="there is no session"):
            runtime.switch("k", "nowhere")
        with pytest.raises(ValueError, match="session_key"):
            runtime.ask("", "hello")
        runtime.drain()
        with pytest.raises(Draining):
            runtime.ask("k", "too late")
    with pytest.raises(ZeroDivisionError), start_runtime(path, agent=echo):
        raise ZeroDivisionError


def test_a_script_that_ends_in_mid_turn_ends_at_once_and_loses_nothing(path):
    """In a process of its own: the main thread is interrupted while it waits for a reply."""
    code = """
        import os, signal, sys, trio
        from hermes.embed import start_runtime

        async def never(turn):
            os.kill(os.getpid(), signal.SIGINT)
            await trio.sleep_forever()

        try:
            with start_runtime(sys.argv[1], agent=never) as runtime:
                runtime.ask("k", "hello?")
        except KeyboardInterrupt:
            print("interrupted")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
    with start_runtime(path, agent=echo) as runtime:
        runtime.drain()
        assert [row.content for row in runtime.history("k")] == ["hello?", "echo: hello?"]


def test_coroutines_of_an_asyncio_host_run_on_its_loop(path):  # noqa: C901 - one of each
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

        async def send(self, row: OutboxRow):
            await asyncio.sleep(0)
            seen.append(("send", threading.current_thread() is main_thread))

    async def main():
        async with open_runtime_asyncio(
            path,
            agent=build,
            hooks={"on_session_finalize": [hook]},
            compressor=Compressor(),
            adapters=[Adapter()],
        ) as runtime:
            events = [event async for event in runtime.stream("k", "hello " * 400)]
            assert [e.text for e in events if isinstance(e, TextDelta)] == ["pi", "ece"]
            source = hermes.Source("web")
            await runtime.ask("k", "more", source=source)
            for n in range(4):
                await runtime.submit(Inbound("k", f"e{n}", "more " * 400, source))
                await runtime.ask("k", "and more")
            await runtime.compress("k", keep_exchanges=1)
            assert (await runtime.status("k")).message_count < 20
            assert (await runtime.ask("k", "/new")).text == "New session."

    asyncio.run(main())
    assert {name for name, _ in seen} == {"build", "run", "hook", "summarize", "send", "aclose"}
    assert all(there for _, there in seen)


def test_an_adapter_on_the_loop_is_asked_as_any_other(path):
    """Its limit, its account, what it waits for, and the errors that have a name."""
    sent, waited = [], []

    class Adapter:
        platform, account, limit = "web", "one", 10
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


def test_a_cancelled_asker_leaves_the_turn_alone_and_an_interrupt_reaches_the_agent(path):
    stopped = []

    async def main():
        begun = asyncio.Event()

        async def reply(turn):
            if turn.text != "slow":
                return "quick"
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                stopped.append("cancelled")
                raise

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            asker = asyncio.create_task(runtime.ask("k", "slow"))
            await begun.wait()
            asker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asker
            assert (await runtime.status("k")).busy
            assert not stopped
            assert await runtime.interrupt("k")
            assert (await runtime.ask("k", "next")).text == "quick"

    asyncio.run(main())
    assert stopped == ["cancelled"]


def test_an_asyncio_host_that_is_cancelled_in_mid_turn_ends_and_goes_on_later(path):
    async def host(begun):
        async def reply(turn):
            begun.set()
            await asyncio.sleep(3600)

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            await runtime.ask("k", "hello?")

    async def main():
        begun = asyncio.Event()
        task = asyncio.create_task(host(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with open_runtime_asyncio(path, agent=echo) as runtime:
            await runtime.drain()
            texts = [row.content for row in await runtime.history("k")]
            assert texts == ["hello?", "echo: hello?"]

    asyncio.run(main())


def test_an_agent_of_an_asyncio_host_can_be_steered_and_is_refused_after_its_turn(path):
    kept = []

    async def main():
        begun, steered = asyncio.Event(), asyncio.Event()

        async def reply(turn):
            kept.append(turn)
            begun.set()
            await steered.wait()
            [found] = turn.steered()
            return f"turned {found.content}"

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            asker = asyncio.create_task(runtime.ask("k", "go"))
            await begun.wait()
            await runtime.steer("k", "left")
            steered.set()
            assert (await asker).text == "turned left"
            with pytest.raises(TurnClosed):
                kept[0].emit(TextDelta("late"))
            with pytest.raises(TurnClosed):
                kept[0].steered()

    asyncio.run(main())


def test_a_turn_begins_when_the_cancelled_one_before_has_cleaned_up(path):
    order = []

    async def main():
        begun = asyncio.Event()

        async def reply(turn):
            order.append(turn.text)
            if turn.text != "slow":
                return "quick"
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                order.append("cleaned up")

        async with open_runtime_asyncio(path, agent=reply) as runtime:
            asker = asyncio.create_task(runtime.ask("k", "slow"))
            await begun.wait()
            assert await runtime.interrupt("k")
            assert (await runtime.ask("k", "next")).text == "quick"
            assert (await asker).status == "interrupted"

    asyncio.run(main())
    assert order == ["slow", "cleaned up", "next"]


def test_every_host_searches_the_conversations_of_a_key(path):
    with start_runtime(path, agent=echo) as runtime:
        runtime.ask("k", "bees sleep at night")
        runtime.ask("other", "bees are mine alone")
        assert [hit.role for hit in runtime.search("k", "bees")] == ["user", "assistant"]
        assert [hit.snippet for hit in runtime.search("k", "bees", role="user")] == [
            ">>>bees<<< sleep at night"
        ]
        assert runtime.search("k", "mine") == []


def test_embedding_never_imports_trio_asyncio():
    imports = "import hermes, hermes.embed, hermes.run.__main__, sys"
    code = f"{imports}; sys.exit('trio_asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
