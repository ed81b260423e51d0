"""A small program on the public API, checked by mypy and Pyright in strict mode. It is not run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import assert_type

import attrs

import hermes
from hermes.agents import Endpoint, Secret, chat_agents, tool
from hermes.embed import (
    AsyncioStream,
    BlockingStream,
    RuntimeOptions,
    open_runtime_asyncio,
    start_runtime,
)
from hermes.testing import MemoryAdapter, ScriptedAgent


async def reply(turn: hermes.Turn) -> str:
    """The simplest agent."""
    turn.emit(hermes.TextDelta("Hello"))
    return f"Hello, {turn.source.user_name or 'you'}: {turn.text}"


@attrs.define
class CountingAgent:
    """An agent with state, which is built for each conversation."""

    greeting: str
    turns: int = 0

    async def run(self, turn: hermes.Turn, /) -> hermes.TurnResult:
        self.turns += 1
        call = hermes.ToolCall("1", "count")
        turn.emit(hermes.ToolStarted(call))
        turn.emit(hermes.ToolFinished(call.id, str(self.turns)))
        turn.charge(hermes.Usage(model="none", input_tokens=len(turn.messages())))
        return hermes.TurnResult(text=self.greeting, api_calls=1)

    async def aclose(self) -> None:
        self.turns = 0


def build(spec: hermes.AgentSpec) -> CountingAgent:
    return CountingAgent(f"I am {spec.signature}.")


async def build_later(spec: hermes.AgentSpec) -> CountingAgent:
    return build(spec)


def spec_of(session_key: str, source: hermes.Source) -> hermes.AgentSpec:
    return hermes.AgentSpec(session_key=session_key, platform=source.platform, model="none")


class PrintingAdapter:
    """An adapter for a platform of our own."""

    @property
    def platform(self) -> str:
        return "printer"

    async def send(self, row: hermes.OutboxRow, /) -> None:
        if not row.body["text"]:
            raise hermes.MessageRefused("nothing to print")


class FirstWords:
    """A compressor that keeps the beginning of each message."""

    async def summarize(self, request: hermes.SummaryRequest, /) -> hermes.Summary:
        texts = [(message.content or "")[:20] for message in request.messages]
        if not texts:
            raise hermes.CompressorFailed("nothing to summarize", lasting=True)
        return hermes.Summary("\n".join(texts))


def describe(event: hermes.RuntimeEvent) -> str:
    match event:
        case hermes.TextDelta(text) | hermes.ReasoningDelta(text):
            return text
        case hermes.TurnEnded(answer):
            return answer.text
        case hermes.ToolStarted(call):
            return call.name
        case _:
            return type(event).__name__


async def on_trio() -> None:
    config = hermes.Config(max_attempts=2, compression=hermes.CompressionConfig(window=32_000))
    async with hermes.open_runtime(
        "state.db",
        build_agent=build,
        agent_spec=spec_of,
        config=config,
        compressor=FirstWords(),
        adapters=[PrintingAdapter(), MemoryAdapter("memory")],
        access=hermes.AccessPolicy(),
    ) as runtime:
        assert_type(runtime, hermes.Runtime)
        conversation = runtime.conversation("me", source=hermes.Source("printer", chat_id="1"))
        answer = await conversation.ask("Hi!")
        assert_type(answer, hermes.Reply)
        async with conversation.stream("And again?") as stream:
            async for event in stream:
                print(describe(event))
        assert_type(stream.reply, hermes.Reply | None)
        assert_type(conversation.follow(), hermes.Subscription)
        with runtime.subscribe("me") as subscription:
            async for envelope in subscription:
                assert_type(envelope, hermes.Envelope)
                break
        change = await conversation.new("a title")
        assert_type(change, hermes.SessionChange)
        found = await conversation.search("again", limit=3)
        assert_type(found, list[hermes.SearchHit])
        assert_type((await runtime.admin.statistics()), hermes.RuntimeStatistics)
        key = hermes.session_key(hermes.Source("printer", user_id="7"))
        receipt = await runtime.submit(hermes.Inbound(key, "event-1", "later"))
        assert_type(await runtime.is_answered(receipt), bool)
        assert_type(await runtime.wait(receipt, timeout=5), hermes.Reply)
        assert_type(await runtime.reply_of(key, "event-1"), hermes.Reply | None)
        assert_type(await runtime.withdraw(receipt), bool)
        assert_type(await conversation.post("News!"), hermes.StoredMessage)
        options: hermes.MessageOptions = {"metadata": {"tenant": "a"}, "commands": False}
        try:
            print((await runtime.ask("me", "/etc/hosts", **options)).metadata["tenant"])
        except hermes.AlreadyAnswered as error:
            assert_type(error.receipt, hermes.Receipt)
    async with hermes.open_runtime("state.db", build_agent=build_later):
        pass
    async with hermes.open_runtime("state.db", agent=ScriptedAgent("one")):
        pass


@asynccontextmanager
async def setup() -> AsyncGenerator[RuntimeOptions]:
    yield {"agent": ScriptedAgent("one"), "config": hermes.Config(grace_period=1.0)}


async def count_actors(runtime: hermes.Runtime) -> int:
    return (await runtime.admin.statistics()).actors


async def on_asyncio() -> None:
    async with open_runtime_asyncio("state.db", setup=setup) as runtime:
        assert_type(await runtime.run_on_trio(count_actors), int)
    async with open_runtime_asyncio("state.db", agent=reply) as runtime:
        answer = await runtime.ask("me", "Hi!")
        assert_type(answer, hermes.Reply)
        conversation = runtime.conversation("me")
        async with conversation.stream("Hi!") as stream:
            async for event in stream:
                assert_type(event, hermes.RuntimeEvent)
                print(describe(event))
        assert_type(stream.reply, hermes.Reply | None)
        async with runtime.subscribe("me", deltas=False) as subscription:
            assert_type([each async for each in subscription], list[hermes.Envelope])
        assert_type(subscription.lost, int)
        async with runtime.follow("me") as followed, conversation.follow() as other:
            assert_type([each async for each in followed], list[hermes.Envelope])
            assert_type(other.lost, int)
        assert_type(runtime.stream("me", "Hi!", interrupt_on_exit=True), AsyncioStream)
        assert_type(await conversation.title(), hermes.Title)
        assert_type(await runtime.ask("me", "Hi!", timeout=5), hermes.Reply)
        assert_type(await conversation.reply_of("1"), hermes.Reply | None)
        assert_type(stream.receipt, hermes.Receipt | None)


def blocking() -> None:
    with start_runtime("state.db", setup=setup) as runtime:
        assert_type(runtime.run_on_trio(count_actors), int)
    with start_runtime("state.db", agent=CountingAgent("Hi!")) as runtime:
        assert_type(runtime.ask("me", "Hi!"), hermes.Reply)
        conversation = runtime.conversation("me")
        stream = conversation.stream("Hi!", event_id="1")
        for event in stream:
            assert_type(event, hermes.RuntimeEvent)
            print(describe(event))
        assert_type(stream.reply, hermes.Reply | None)
        with runtime.subscribe("me") as subscription:
            assert_type(list(subscription), list[hermes.Envelope])
        with runtime.follow("me") as followed, conversation.follow() as other:
            assert_type(list(followed), list[hermes.Envelope])
            assert_type(other.lost, int)
        assert_type(runtime.stream("me", "Hi!"), BlockingStream)
        assert_type(conversation.history(), list[hermes.StoredMessage])
        assert_type(conversation.ask(parts=[{"type": "text", "text": "Hi!"}]), hermes.Reply)
        assert_type(runtime.post("me", "News!"), hermes.StoredMessage)
        try:
            conversation.undo(2)
        except hermes.HermesError as error:
            print(error)


@tool
async def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"It rains in {city}."


async def with_a_model(environment: Mapping[str, str]) -> None:
    endpoint = Endpoint(
        base_url="https://models.example.com/v1", model="model", key=Secret(environment["KEY"])
    )
    async with (
        chat_agents(endpoint, tools=[weather]) as agents,
        hermes.open_runtime("state.db", build_agent=agents.build) as runtime,
    ):
        print((await runtime.ask("me", "What is the weather in Bern?")).text)
