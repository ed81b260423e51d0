"""autogen-core 0.7.5: an agent in a `SingleThreadedAgentRuntime`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    TopicId,
    TypeSubscription,
    event,
    rpc,
)

from bench.peers import messaging
from bench.peers.wire import Figures, serve

TYPE = "adder"
TOPIC = TopicId("numbers", "default")


@dataclass
class Asked:
    number: int


@dataclass
class Told:
    number: int


class Adder(RoutedAgent):
    """Sets `done` when it has been told so many numbers."""

    def __init__(self, count: int, done: asyncio.Event) -> None:
        super().__init__("adds one")
        self.count = count
        self.done = done
        self.processed = 0

    @rpc
    async def handle(self, message: Asked, ctx: MessageContext) -> Asked:
        return Asked(message.number + 1)

    @event
    async def tally(self, message: Told, ctx: MessageContext) -> None:
        self.processed += 1
        if self.processed == self.count:
            self.done.set()


@asynccontextmanager
async def runtime_with(adder: Adder) -> AsyncIterator[SingleThreadedAgentRuntime]:
    runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
    await adder.register_instance(runtime, AgentId(TYPE, "default"))
    await runtime.add_subscription(TypeSubscription(TOPIC.type, TYPE))
    runtime.start()
    yield runtime
    await runtime.stop_when_idle()


async def _ask(count: int) -> Figures:
    whom = AgentId(TYPE, "default")
    async with runtime_with(Adder(count, asyncio.Event())) as runtime:

        async def once(number: int) -> int:
            return (await runtime.send_message(Asked(number), whom)).number

        return await messaging.asked(once, count)


async def _tell(count: int) -> Figures:
    adder = Adder(count, asyncio.Event())
    async with runtime_with(adder) as runtime:
        started = perf_counter()
        for number in range(count):
            await runtime.publish_message(Told(number), TOPIC)
        await adder.done.wait()
        seconds = perf_counter() - started
    messaging.check(count, adder.processed)
    return messaging.figures(count, seconds)


def ask(count: int) -> Figures:
    return asyncio.run(_ask(count))


def tell(count: int) -> Figures:
    """Until the last message is processed; `publish_message` is what waits for no answer."""
    return asyncio.run(_tell(count))


if __name__ == "__main__":
    serve({"autogen-core": version("autogen-core")}, {"ask": ask, "tell": tell})
