"""Parts that come with Hermes work in every host: they run on the runtime's own loop."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import asynccontextmanager

import pytest
import sniffio
import trio

import hermes
from hermes import AccessPolicy, Config, Source, ToolCall, open_runtime
from hermes.adapters.console import Console
from hermes.adapters.jsonrpc import serve_stdio
from hermes.adapters.telegram import Telegram
from hermes.agents import Endpoint, OfflineAgent, Toolbox, chat_agents, tool
from hermes.embed import open_runtime_asyncio, start_runtime
from hermes.errors import ActorStopped
from hermes.redaction import Secret
from hermes.testing import (
    DeterministicCompressor,
    MemoryAdapter,
    ModelAnswer,
    ScriptedAgent,
    open_model,
    open_telegram,
)
from hermes.testing.telegram import TOKEN
from tests.support.runtime import SECONDS


@asynccontextmanager
async def nothing():
    yield {}


def limited(function):
    """The function, with a time limit."""

    async def run(runtime):
        with trio.fail_after(SECONDS):
            return await function(runtime)

    return run


def on_trio(path, function, setup=nothing, **options):
    async def main():
        async with setup() as more, open_runtime(path, **options, **more) as runtime:
            return await runtime.run_on_trio(limited(function))

    return trio.run(main)


def in_threads(path, function, setup=None, **options):
    with start_runtime(path, setup=setup, **options) as runtime:
        return runtime.run_on_trio(limited(function))


def on_asyncio(path, function, setup=None, **options):
    async def main():
        async with open_runtime_asyncio(path, setup=setup, **options) as runtime:
            return await runtime.run_on_trio(limited(function))

    return asyncio.run(main())


every_host = pytest.mark.parametrize("run", [on_trio, in_threads, on_asyncio])
other_hosts = pytest.mark.parametrize("run", [in_threads, on_asyncio])


# The parts


@every_host
def test_the_fakes_work(path, run):
    adapter, compressor, libraries = MemoryAdapter(), DeterministicCompressor(), []

    async def note_library(turn):
        libraries.append(sniffio.current_async_library())

    agent = ScriptedAgent([[note_library, "first"]])

    async def use(runtime):
        for text in ("one", "two", "three " * 200, "four " * 200):
            await runtime.ask("k", text, source=Source("memory"))
        await runtime.conversation("k").compress(keep_exchanges=1)
        await adapter.wait_sent(4)

    run(path, use, agent=agent, adapters=[adapter], compressor=compressor)
    assert adapter.texts[:2] == ["first", "echo: two"]
    assert len(compressor.requests) == 1
    assert libraries == ["trio"]
    assert agent.closed == 1


@every_host
def test_the_offline_agent_works(path, run):
    async def use(runtime):
        return (await runtime.ask("k", "count to 3")).text

    assert run(path, use, agent=OfflineAgent()) == "1 2 3"


@every_host
def test_model_agents_work_with_their_compressor_and_titler(path, run):
    closed = []

    @asynccontextmanager
    async def setup():
        async with (
            open_model(lambda request: "well") as model,
            chat_agents(Endpoint(base_url=f"{model.url}/v1", model="m")) as agents,
        ):
            yield {
                "build_agent": agents.build,
                "agent_spec": agents.agent_spec,
                "compressor": agents.compressor(),
                "titler": agents.titler(),
            }
            closed.append(agents.client)

    async def use(runtime):
        first = (await runtime.ask("k", "hello")).session_id
        replies = [(await runtime.ask("k", "go on " * 200)).text for _ in range(4)]
        await runtime.conversation("k").compress(keep_exchanges=1)
        return replies, (await runtime.conversation("k").status()).session_id != first

    assert run(path, use, setup=setup) == (["well"] * 4, True)
    assert closed[0].is_closed


@every_host
def test_the_console_works(path, run):
    (stdin, user), (shown, stdout) = os.pipe(), os.pipe()
    os.write(user, b"hello\n")
    os.close(user)
    console = Console(stdin=stdin, stdout=stdout)
    assert run(path, console.run, agent=ScriptedAgent(), adapters=[console])
    for each in (stdin, stdout):
        os.close(each)
    with os.fdopen(shown) as output:
        assert "echo: hello" in output.read()


@every_host
def test_json_rpc_works(path, run):
    (stdin, client), (shown, stdout) = os.pipe(), os.pipe()
    create = {"jsonrpc": "2.0", "id": 1, "method": "session.create", "params": {}}
    os.write(client, json.dumps(create).encode() + b"\n")
    os.close(client)

    async def use(runtime):
        await serve_stdio(runtime, descriptors=(stdin, stdout))

    run(path, use, agent=ScriptedAgent())
    for each in (stdin, stdout):
        os.close(each)
    with os.fdopen(shown) as output:
        ready, created = map(json.loads, output)
    assert ready["params"]["type"] == "gateway.ready"
    assert created["id"] == 1
    assert created["result"]["session_id"]


@every_host
def test_telegram_works(path, run):
    telegrams, texts = [], []

    @asynccontextmanager
    async def setup():
        async with open_telegram() as server:
            server.say(7, "hello")
            async with Telegram(Secret(TOKEN), base_url=server.url) as telegram:
                telegrams.append((telegram, server))
                yield {"adapters": [telegram], "access": AccessPolicy.everyone()}
            texts.extend(server.chats[7].texts)

    async def use(runtime):
        [(telegram, server)] = telegrams
        async with trio.open_nursery() as nursery:
            nursery.start_soon(telegram.run, runtime)
            await server.wait_until(lambda: not server.pending)
            await server.wait_until(lambda: "echo: hello" in server.chats[7].texts)
            nursery.cancel_scope.cancel()

    run(path, use, setup=setup, agent=ScriptedAgent())
    assert texts == ["echo: hello"]
    assert isinstance(telegrams[0][0], hermes.RunsOnTrio)
    assert telegrams[0][0].on_trio


# Tools


@every_host
def test_an_async_tool_can_run_on_the_loop_of_the_host(path, run):
    main_thread, seen = threading.main_thread(), []

    @tool(on_host_loop=True)
    async def on_host(text: str, turn: hermes.Turn) -> str:
        """Run on the host's loop."""
        assert hermes.current_session_id() == turn.session_id
        turn.emit(hermes.TextDelta(text))
        here = sniffio.current_async_library(), threading.current_thread() is main_thread
        seen.append(here)
        return text.upper()

    @tool
    async def on_trio_always(text: str) -> str:
        """Run on the runtime's own loop."""
        seen.append((sniffio.current_async_library(), None))
        return text

    toolbox = Toolbox([on_host, on_trio_always])

    async def call(turn):
        results = [
            await toolbox.run(ToolCall(name, name, json.dumps({"text": "well"})), turn)
            for name in ("on_host", "on_trio_always")
        ]
        return hermes.TurnResult(text=" ".join(result.content for result in results))

    async def use(runtime):
        async with runtime.stream("k", "hello") as stream:
            texts = [event.text async for event in stream if isinstance(event, hermes.TextDelta)]
        return texts, stream.reply.text

    assert run(path, use, agent=ScriptedAgent([call])) == (["well"], "WELL well")
    library = "asyncio" if run is on_asyncio else "trio"
    assert seen == [(library, run is not in_threads), ("trio", None)]


def test_a_tool_on_the_loop_of_the_host_is_cancelled_when_it_takes_too_long(path):
    cancelled = []

    @tool(on_host_loop=True, timeout=0.01)
    async def slow() -> None:
        """Take too long."""
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(True)

    async def call(turn):
        outcome = await Toolbox([slow]).run(ToolCall("c", "slow", "{}"), turn)
        return hermes.TurnResult(text=outcome.content)

    async def use(runtime):
        return (await runtime.ask("k", "hello")).text

    text = on_asyncio(path, use, agent=ScriptedAgent([call]))
    assert text == "slow timed out after 0.01 seconds."
    assert cancelled == [True]


def test_a_plain_function_cannot_run_on_the_loop_of_the_host():
    with pytest.raises(TypeError, match="only a coroutine function"):

        @tool(on_host_loop=True)
        def plain() -> None:
            """Block."""


def test_a_model_can_call_tools_of_the_host(path):
    @tool(on_host_loop=True)
    async def here() -> str:
        """Say where."""
        await asyncio.sleep(0)
        return sniffio.current_async_library()

    calls = [ModelAnswer(calls=[ToolCall("c", "here", "{}")]), ModelAnswer("well")]

    @asynccontextmanager
    async def setup():
        async with (
            open_model(calls) as model,
            chat_agents(Endpoint(base_url=f"{model.url}/v1", model="m"), tools=[here]) as agents,
        ):
            yield {"build_agent": agents.build, "agent_spec": agents.agent_spec}

    async def main():
        async with open_runtime_asyncio(path, setup=setup) as runtime:
            assert (await runtime.ask("k", "where?")).text == "well"
            history = await runtime.conversation("k").history()
            assert [row.content for row in history if row.role == "tool"] == ["asyncio"]

    asyncio.run(main())


# Setup


@other_hosts
@pytest.mark.sqlite_only("no file is created")
def test_an_option_cannot_come_twice(path, run):
    @asynccontextmanager
    async def setup():
        yield {"agent": ScriptedAgent(), "config": Config()}

    with pytest.raises(TypeError, match="config is both an argument and an option of setup"):
        run(path, None, setup=setup, config=Config())
    assert not path.exists()


@other_hosts
def test_the_setup_is_closed_after_the_runtime_also_if_that_cannot_open(path, run):
    order = []

    class Agent(ScriptedAgent):
        async def aclose(self):
            order.append("agent")
            await super().aclose()

    @asynccontextmanager
    async def setup():
        try:
            yield {"agent": Agent()}
        finally:
            order.append("setup")

    async def use(runtime):
        await runtime.ask("k", "hello")

    run(path, use, setup=setup)
    assert order == ["agent", "setup"]
    path.write_bytes(b"no database " * 100)
    with pytest.raises(hermes.StoreRefused):
        run(path, use, setup=setup)
    assert order == ["agent", "setup", "setup"]


@other_hosts
def test_an_agent_of_the_setup_is_checked(path, run):
    with pytest.raises(TypeError, match="pass exactly one of agent= and build_agent="):
        run(path, None, setup=nothing)


def test_parts_of_the_setup_and_of_the_loop_can_be_mixed(path):
    main_thread, seen = threading.current_thread(), []

    async def hook(session_id, platform):
        await asyncio.sleep(0)
        seen.append(threading.current_thread() is main_thread)

    @asynccontextmanager
    async def setup():
        yield {"agent": ScriptedAgent()}

    async def main():
        hooks = {"on_session_finalize": [hook]}
        async with open_runtime_asyncio(path, setup=setup, hooks=hooks) as runtime:
            assert (await runtime.ask("k", "hello")).text == "echo: hello"
            await runtime.conversation("k").new()

    asyncio.run(main())
    assert seen
    assert all(seen)


# Code for Trio


@other_hosts
def test_what_a_function_for_trio_raises_reaches_its_caller_only(path, run):
    async def fail(runtime):
        raise ZeroDivisionError("by zero")

    async def leave(runtime):
        raise SystemExit(3)

    async def leak(runtime):
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept = error
        raise kept

    async def use(runtime):
        return (await runtime.ask("k", "hello")).text

    for function, error, text in (
        (fail, ZeroDivisionError, "by zero"),
        (leave, RuntimeError, "SystemExit: 3"),
        (leak, RuntimeError, "Cancelled"),
    ):
        with pytest.raises(error, match=text):
            run(path, function, agent=ScriptedAgent())
    assert run(path, use, agent=ScriptedAgent()) == "echo: hello"


def test_a_function_for_trio_is_cancelled_with_its_call(path):
    events = []

    async def main():
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def forever(runtime):
            try:
                loop.call_soon_threadsafe(started.set)
                await trio.sleep_forever()
            finally:
                events.append("cancelled")

        async with open_runtime_asyncio(path, agent=ScriptedAgent()) as runtime:
            task = asyncio.create_task(runtime.run_on_trio(forever))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await runtime.ask("k", "hello")
            events.append("left")

    asyncio.run(main())
    assert events == ["cancelled", "left"]


def test_a_function_for_trio_does_not_keep_an_asyncio_host_from_ending(path):
    async def forever(_):
        await trio.sleep_forever()

    async def main():
        async with open_runtime_asyncio(path, agent=ScriptedAgent()) as runtime:
            task = asyncio.create_task(runtime.run_on_trio(forever))
            await runtime.ask("k", "hello")
        with pytest.raises(ActorStopped, match="the runtime has ended"):
            await task

    asyncio.run(main())


def test_a_function_for_trio_does_not_keep_a_blocking_host_from_ending(path):
    with start_runtime(path, agent=ScriptedAgent()) as runtime:
        started = threading.Event()

        async def forever(_):
            started.set()
            await trio.sleep_forever()

        def call():
            with pytest.raises(ActorStopped, match="the runtime has ended"):
                runtime.run_on_trio(forever)
            errors.append("told")

        errors = []
        thread = threading.Thread(target=call)
        thread.start()
        started.wait()
    thread.join(SECONDS)
    assert errors == ["told"]
