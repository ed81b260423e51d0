"""What the three hosts have in common: the same verbs, the same options, the same agents."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import typing

import pytest
import trio

from hermes import open_runtime
from hermes.agents import asyncio_agent, blocking_agent
from hermes.embed import (
    AsyncioRuntime,
    BlockingRuntime,
    RuntimeOptions,
    open_runtime_asyncio,
    start_runtime,
)
from hermes.events import TextDelta, TurnEnded, TurnStarted
from hermes.messages import TurnResult
from hermes.testing import CountingBuilder, ScriptedAgent

# The same verbs


def public(value):
    return {name for name in dir(value) if not name.startswith("_")}


def parameters(verb):
    """The parameters of a verb with kinds, defaults and annotations."""
    return list(inspect.signature(verb).parameters.values())


@pytest.mark.parametrize("host", [BlockingRuntime, AsyncioRuntime])
@pytest.mark.parametrize(
    "part",
    [
        lambda runtime: runtime,
        lambda runtime: runtime.conversation("k"),
        lambda runtime: runtime.admin,
        lambda runtime: runtime.adapter_state,
        lambda runtime: runtime.api,
    ],
    ids=["runtime", "conversation", "admin", "adapter_state", "api"],
)
async def test_every_host_has_the_same_verbs_with_the_same_parameters(start, part, host):
    async with start() as runtime:
        original = part(runtime)
        proxy = part(host(None, runtime))
        assert (
            type(proxy).__name__ == host.__name__.removesuffix("Runtime") + type(original).__name__
        )
        assert public(proxy) == public(original)
        verbs = [name for name in public(original) if callable(getattr(original, name))]
        assert len(verbs) > 1
        for name in verbs:
            verb = getattr(proxy, name)
            assert parameters(verb) == parameters(getattr(original, name)), name
            assert verb.__doc__


def test_the_options_are_the_keyword_arguments_of_open_runtime():
    hints = typing.get_type_hints(open_runtime)
    del hints["path"], hints["return"]
    assert typing.get_type_hints(RuntimeOptions) == hints
    assert RuntimeOptions.__required_keys__ == frozenset()
    for host in (start_runtime, open_runtime_asyncio):
        path, setup, options = parameters(host)
        assert (path.name, setup.name) == ("path", "setup")
        assert options.kind == inspect.Parameter.VAR_KEYWORD


# The same agents


def on_trio(path, texts, **options):
    async def main():
        async with open_runtime(path, **options) as runtime:
            return [(await runtime.ask(f"k{text}", text)).text for text in texts]

    return trio.run(main)


def in_threads(path, texts, **options):
    with start_runtime(path, **options) as runtime:
        return [runtime.ask(f"k{text}", text).text for text in texts]


def on_asyncio(path, texts, **options):
    async def main():
        async with open_runtime_asyncio(path, **options) as runtime:
            return [(await runtime.ask(f"k{text}", text)).text for text in texts]

    return asyncio.run(main())


every_host = pytest.mark.parametrize("ask", [on_trio, in_threads, on_asyncio])


class Agent:
    """An agent that does not depend on an event loop."""

    def __init__(self):
        self.turns = self.closed = 0

    async def run(self, turn):
        assert not self.closed
        self.turns += 1
        return TurnResult(text=f"echo: {turn.text}")

    async def aclose(self):
        self.closed += 1


async def echo(turn):
    return f"echo: {turn.text}"


async def echo_result(turn):
    return TurnResult(text=f"echo: {turn.text}")


class CallableEcho:
    async def __call__(self, turn):
        return f"echo: {turn.text}"


@every_host
@pytest.mark.parametrize(
    "make",
    [Agent, CallableEcho, lambda: echo, lambda: echo_result],
    ids=["object", "callable object", "function", "function with a result"],
)
def test_an_agent_is_an_object_or_an_async_function(path, ask, make):
    assert ask(path, ["a", "b"], agent=make()) == ["echo: a", "echo: b"]


@every_host
def test_one_agent_answers_all_conversations_and_is_closed_exactly_once(path, ask):
    agent = Agent()
    ask(path, ["a", "b", "c"], agent=agent)
    assert (agent.turns, agent.closed) == (3, 1)


@every_host
@pytest.mark.parametrize("make", [lambda spec: Agent(), CountingBuilder(lambda spec: Agent())])
def test_a_builder_builds_an_agent_for_each_conversation(path, ask, make):
    specs = []

    def build(spec):
        specs.append(spec.session_key)
        return make(spec)

    assert ask(path, ["a", "b"], build_agent=build) == ["echo: a", "echo: b"]
    assert specs == ["ka", "kb"]


@every_host
def test_a_class_can_be_the_builder(path, ask):
    specs = []

    class Built(Agent):
        def __init__(self, spec):
            super().__init__()
            specs.append(spec.session_key)

    assert ask(path, ["a", "b"], build_agent=Built) == ["echo: a", "echo: b"]
    assert specs == ["ka", "kb"]


@every_host
@pytest.mark.parametrize("shared", [True, False])
def test_an_agent_that_fails_to_close_does_not_fail_the_runtime(path, ask, shared, caplog):
    class FailsToClose(Agent):
        async def aclose(self):
            self.closed += 1
            raise OSError("not now")

    agent = FailsToClose()
    options = {"agent": agent} if shared else {"build_agent": lambda _: agent}
    assert ask(path, ["a"], **options) == ["echo: a"]
    assert agent.closed == 1
    assert "an agent failed to close" in caplog.text


class Blocking:
    def run(self, turn):
        return "never"


def plain(turn):
    return "never"


REFUSED = {
    "a class": ({"agent": Agent}, "agent must be an object, not the class Agent"),
    "a plain function": ({"agent": plain}, "agent must be an object with async run"),
    "a builder": ({"agent": lambda spec: Agent()}, "that builds agents as build_agent="),
    "a builder object": ({"agent": CountingBuilder()}, "that builds agents as build_agent="),
    "a blocking bridge": ({"agent": blocking_agent(plain)}, "builds agents as build_agent="),
    "an asyncio bridge": ({"agent": asyncio_agent(echo)}, "builds agents as build_agent="),
    "a blocking run": ({"agent": Blocking()}, "agent.run must be an async function"),
    "a number": ({"agent": 3}, "agent must be an object with async run"),
    "an agent as builder": ({"build_agent": Agent()}, "pass an agent object as agent="),
    "a number as builder": ({"build_agent": 3}, "build_agent must be a function"),
    "both": ({"agent": echo, "build_agent": Agent}, "pass exactly one of agent= and build_agent="),
    "neither": ({}, "pass exactly one of agent= and build_agent="),
}


@every_host
@pytest.mark.parametrize(("options", "why"), REFUSED.values(), ids=REFUSED)
@pytest.mark.sqlite_only("no file is created")
def test_a_wrong_agent_is_refused_in_one_sentence_before_anything_is_opened(
    path, ask, options, why
):
    with pytest.raises(TypeError) as refused:
        ask(path, ["a"], **options)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not path.exists()


# Streams and subscriptions


STEPS = [TextDelta("a"), TextDelta("b"), "ab"]


def texts_and_types(events):
    return [event.text if isinstance(event, TextDelta) else type(event) for event in events]


EXPECTED = [TurnStarted, "a", "b", TurnEnded]
WITHOUT_DELTAS = [TurnStarted, TurnEnded]


def agent_for_streams():
    return lambda spec: ScriptedAgent([STEPS])


async def test_stream_and_subscribe_on_trio(start):
    async with start(build_agent=agent_for_streams()) as runtime:
        called = []
        with (
            runtime.subscribe("k") as events,
            runtime.subscribe("k", deltas=False) as few,
            runtime.subscribe(callback=called.append),
        ):
            async with runtime.stream("k", "hello") as stream:
                streamed = [event async for event in stream]
            events.close()
            few.close()
            received = [each.event async for each in events]
            received_few = [each.event async for each in few]
    assert stream.reply.text == "ab"
    assert texts_and_types(streamed) == texts_and_types(received) == EXPECTED
    assert texts_and_types(received_few) == WITHOUT_DELTAS
    assert texts_and_types(each.event for each in called) == EXPECTED
    assert events.lost == 0


def test_stream_and_subscribe_in_threads(path):
    with start_runtime(path, build_agent=agent_for_streams()) as runtime:
        called = []
        with (
            runtime.subscribe("k") as events,
            runtime.subscribe("k", deltas=False) as few,
            runtime.subscribe(callback=called.append),
        ):
            with runtime.conversation("k").stream("hello") as stream:
                streamed = list(stream)
            events.close()
            few.close()
            received = [each.event for each in events]
            received_few = [each.event for each in few]
    assert stream.reply.text == "ab"
    assert texts_and_types(streamed) == texts_and_types(received) == EXPECTED
    assert texts_and_types(received_few) == WITHOUT_DELTAS
    assert texts_and_types(each.event for each in called) == EXPECTED
    assert events.lost == 0


def test_stream_and_subscribe_on_asyncio(path):
    class Speaker:
        async def run(self, turn):
            for step in STEPS[:-1]:
                turn.emit(step)
            return TurnResult(text=STEPS[-1])

    async def main():
        called = []
        async with open_runtime_asyncio(path, agent=Speaker()) as runtime:
            async with (
                runtime.subscribe("k") as events,
                runtime.subscribe("k", deltas=False) as few,
                runtime.subscribe(callback=called.append),
            ):
                async with runtime.conversation("k").stream("hello") as stream:
                    streamed = [event async for event in stream]
                await events.aclose()
                await few.aclose()
                received = [each.event async for each in events]
                received_few = [each.event async for each in few]
        assert stream.reply.text == "ab"
        assert texts_and_types(streamed) == texts_and_types(received) == EXPECTED
        assert texts_and_types(received_few) == WITHOUT_DELTAS
        assert texts_and_types(each.event for each in called) == EXPECTED
        assert events.lost == 0

    asyncio.run(main())


def test_embedding_never_imports_trio_asyncio():
    imports = "import hermes, hermes.embed, hermes.run.__main__, sys"
    code = f"{imports}; sys.exit('trio_asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"config": {}}, TypeError, "config must be a hermes.Config"),
        ({"hook_timeout": -1}, ValueError, "hook_timeout is a positive number of seconds"),
        ({"sweep_interval": "5"}, ValueError, "sweep_interval is a positive number of seconds"),
    ],
)
@pytest.mark.sqlite_only("no file is created")
def test_wrong_options_are_refused_before_the_file_is_opened(path, options, error, text):
    with pytest.raises(error, match=text), start_runtime(path, agent=ScriptedAgent(), **options):
        raise AssertionError
    assert not path.exists()
