"""Parts of an asyncio host, as the runtime's Trio thread sees them.

Agents, builders, hooks, compressors, titlers and adapters run on the host's loop if they are
coroutines. Cancellation crosses in both directions.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import trio
from msgspec.structs import replace

from hermes.agents.threads import LoopTask, LoopTurn, ThreadResult
from hermes.messages import AgentSpec, CostTotals, Hooks, OutboxRow, TurnResult
from hermes.protocols import (
    Adapter,
    Agent,
    Build,
    Compressor,
    HasAccount,
    HasLimit,
    HasLocal,
    RunsOnTrio,
    SpentSoFar,
    Summary,
    SummaryRequest,
    SupportsAclose,
    SupportsReady,
    Titler,
    TitleRequest,
    Turn,
)

R = TypeVar("R")

GRACE_SECONDS = 10.0
"""How long a cancelled coroutine on the host's loop is waited for."""


@attrs.frozen
class HostLoop:
    """The event loop of the host."""

    loop: asyncio.AbstractEventLoop

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run a coroutine function on the loop; cancelled here, it is cancelled there."""
        result: ThreadResult[R] = ThreadResult()
        return await result.wait(LoopTask(self.loop, result, work).stop, GRACE_SECONDS)


@attrs.frozen
class HostAgent:
    """An agent on the host's loop."""

    agent: Agent
    host: HostLoop

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer a turn on the host's loop."""
        loop_turn = LoopTurn(turn)
        try:
            return await self.host.run(lambda: self.agent.run(loop_turn))
        finally:
            loop_turn.end()

    async def aclose(self) -> None:
        """Close the agent on the host's loop, if it can be closed."""
        agent: object = self.agent
        if isinstance(agent, SupportsAclose):
            await self.host.run(agent.aclose)


@attrs.frozen
class HostCompressor:
    """A compressor on the host's loop."""

    compressor: Compressor
    host: HostLoop

    async def summarize(self, request: SummaryRequest, /) -> Summary:
        """Summarize on the host's loop."""
        request = replace(request, spent=_callable_from_loop(request.spent))
        return await self.host.run(lambda: self.compressor.summarize(request))


@attrs.frozen
class HostTitler:
    """A titler on the host's loop."""

    titler: Titler
    host: HostLoop

    async def title(self, request: TitleRequest, /) -> Summary:
        """Suggest a title on the host's loop."""
        request = replace(request, spent=_callable_from_loop(request.spent))
        return await self.host.run(lambda: self.titler.title(request))


@attrs.frozen
class HostAdapter:
    """An adapter on the host's loop."""

    adapter: Adapter
    host: HostLoop

    @property
    def platform(self) -> str:
        """The platform of the adapter."""
        return self.adapter.platform

    @property
    def limit(self) -> int | None:
        """The maximum length of a message, if the adapter has one."""
        adapter: object = self.adapter
        return adapter.limit if isinstance(adapter, HasLimit) else None

    @property
    def account(self) -> str | None:
        """The account of the adapter, if it serves only one."""
        adapter: object = self.adapter
        return adapter.account if isinstance(adapter, HasAccount) else None

    @property
    def local(self) -> bool:
        """Whether all messages come from the user of this machine."""
        adapter: object = self.adapter
        return isinstance(adapter, HasLocal) and adapter.local

    async def send(self, row: OutboxRow, /) -> None:
        """Send a reply on the host's loop."""
        await self.host.run(lambda: self.adapter.send(row))


@attrs.frozen
class ReadyHostAdapter(HostAdapter):
    """An adapter on the host's loop that can wait for its platform."""

    async def ready(self, row: OutboxRow, /) -> None:
        """Wait on the host's loop until the platform would accept this reply."""
        adapter: object = self.adapter
        assert isinstance(adapter, SupportsReady)
        supports_ready = adapter
        await self.host.run(lambda: supports_ready.ready(row))


def _callable_from_loop(spent: SpentSoFar) -> SpentSoFar:
    """Return a version of a Trio function that a coroutine on another loop can await."""
    token = trio.lowlevel.current_trio_token()

    async def ask() -> CostTotals:
        return await asyncio.to_thread(lambda: trio.from_thread.run(spent, trio_token=token))

    return ask


def runs_on_trio(part: object) -> bool:
    """Whether a part runs on Trio even in a host on asyncio."""
    return isinstance(part, RunsOnTrio) and bool(part.on_trio)


def host_agent(agent: Agent, host: HostLoop) -> Agent:
    """Return an agent that runs on the host's loop, unless it runs on Trio."""
    return agent if runs_on_trio(agent) else HostAgent(agent, host)


def host_builder(build: Build, host: HostLoop) -> Build:
    """Return a builder whose agents run on the host's loop."""

    async def build_for_host(spec: AgentSpec) -> Agent:
        built = build(spec)
        if inspect.isawaitable(built):
            awaitable = built
            built = await host.run(lambda: awaitable)
        return host_agent(built, host)

    return build_for_host


def host_hooks(hooks: Hooks, host: HostLoop) -> Hooks:
    """Return hooks that run on the host's loop if they are coroutine functions."""
    return {event: [_host_hook(hook, host) for hook in given] for event, given in hooks.items()}


def _host_hook(hook: Callable[..., Any], host: HostLoop) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(hook):
        return hook

    @functools.wraps(hook)  # the store reads the signature to see which arguments it takes
    async def run_on_loop(**arguments: Any) -> None:
        await host.run(lambda: hook(**arguments))

    return run_on_loop


def host_compressor(compressor: Compressor | None, host: HostLoop) -> Compressor | None:
    """Return a compressor that runs on the host's loop, unless it runs on Trio."""
    if compressor is None or runs_on_trio(compressor):
        return compressor
    return HostCompressor(compressor, host)


def host_titler(titler: Titler | None, host: HostLoop) -> Titler | None:
    """Return a titler that runs on the host's loop, unless it runs on Trio."""
    if titler is None or runs_on_trio(titler):
        return titler
    return HostTitler(titler, host)


def host_adapter(adapter: Adapter, host: HostLoop) -> Adapter:
    """Return an adapter that runs on the host's loop."""
    if isinstance(adapter, SupportsReady):
        return ReadyHostAdapter(adapter, host)
    return HostAdapter(adapter, host)
