"""autogen-core 0.7.5: an agent in a `SingleThreadedAgentRuntime`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, rpc

from bench.harness.driver import Figures, ask_async, serve

ADDER = AgentId("adder", "default")


@dataclass
class Number:
    value: int


class Adder(RoutedAgent):
    @rpc
    async def handle(self, message: Number, ctx: MessageContext) -> Number:
        return Number(message.value + 1)


async def ask(count: int) -> Figures:
    runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)
    await Adder("adds one").register_instance(runtime, ADDER)
    runtime.start()

    async def ask_once(number: int) -> int:
        return (await runtime.send_message(Number(number), ADDER)).value

    figures = await ask_async(ask_once, count)
    await runtime.stop_when_idle()
    return figures


if __name__ == "__main__":
    serve({"autogen-core": version("autogen-core")}, ask)
