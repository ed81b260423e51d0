"""Parts of an asyncio host, as the runtime's Trio thread sees them.

Agents, builders, hooks, compressors, titlers, async transcribers and adapters run on the host's
loop, unless they say that they run on Trio (`RunsOnTrio`). Cancellation crosses in both directions.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import trio
from msgspec.structs import replace

from hermes.actors.conversation import Conversation
from hermes.agents.bridges import Answer, BridgeAgent, BridgeState
from hermes.agents.crossing import await_on_trio
from hermes.agents.remote_files import answer_on_loop
from hermes.agents.remote_runtime import LoopFile
from hermes.agents.remote_turns import LoopTurn, RemoteTurn
from hermes.agents.threads import (
    HOST_LOOP,
    HostLoop,
    LoopTask,
    ThreadResult,
    start_task,
)
from hermes.embed.agent import as_agent
from hermes.embed.transcriber import as_transcriber
from hermes.embed.trio_host import RuntimeOptions
from hermes.messages import AgentSpec, Hooks, OutboxRow, Snapshot
from hermes.protocols import (
    Adapter,
    Agent,
    Build,
    Compressor,
    FileReader,
    HasAccount,
    HasLimit,
    HasLocal,
    RunsOnTrio,
    SpentSoFar,
    Summary,
    SummaryRequest,
    SupportsAclose,
    SupportsFiles,
    SupportsReady,
    Titler,
    TitleRequest,
    Transcriber,
    Turn,
)
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

P = TypeVar("P")
R = TypeVar("R")


def on_host_loop(options: RuntimeOptions, host: HostLoop) -> RuntimeOptions:
    """Return options whose parts run on the host's loop, except those that run on Trio.

    Raises `TypeError` if `agent` is not an agent.
    """
    wrapped = options.copy()
    if (agent := options.get("agent")) is not None:
        wrapped["agent"] = _placed(as_agent(agent), host, shared_agent)
    if (build := options.get("build_agent")) is not None:
        wrapped["build_agent"] = host_builder(build, host)
    if (hooks := options.get("hooks")) is not None:
        wrapped["hooks"] = host_hooks(hooks, host)
    if (compressor := options.get("compressor")) is not None:
        wrapped["compressor"] = _placed(compressor, host, HostCompressor)
    if (titler := options.get("titler")) is not None:
        wrapped["titler"] = _placed(titler, host, HostTitler)
    if (transcriber := as_transcriber(options.get("transcriber"))) is not None:
        wrapped["transcriber"] = _placed(transcriber, host, HostTranscriber)
    if "adapters" in options:
        wrapped["adapters"] = [_placed(each, host, host_adapter) for each in options["adapters"]]
    return wrapped


def _placed(part: P, host: HostLoop, wrap: Callable[[P, HostLoop], P]) -> P:
    """Return a part for the runtime's thread: itself if it runs on Trio, else wrapped."""
    given: object = part
    return part if isinstance(given, RunsOnTrio) and given.on_trio else wrap(part, host)


# Agents


@attrs.define(eq=False)
class HostAgent(BridgeAgent):
    """An agent on the host's loop."""

    agent: Agent = attrs.field(kw_only=True)
    host: HostLoop = attrs.field(kw_only=True)
    _closed: bool = attrs.field(init=False, default=False)

    def for_conversation(self) -> BridgeAgent:
        """Return the agent for one of the conversations that share it; it cannot be closed."""
        return BridgeAgent(self.state)

    async def aclose(self) -> None:
        """Close the agent on the host's loop, if it can be closed.

        If an abandoned turn still runs, the agent is closed when it ends, which is not waited for.
        """
        agent: object = self.agent
        if isinstance(agent, SupportsAclose) and not self._closed:
            self._closed = True
            await self.host.run(functools.partial(self._close, agent))

    async def _close(self, agent: SupportsAclose) -> None:
        # On the loop, where abandoned turns end, so that none of them ends in between.
        if not self.state.abandoned:
            await agent.aclose()
            return
        ended = asyncio.Event()
        self.state.on_idle = ended.set
        start_task(_close_after(ended, agent))


async def _close_after(ended: asyncio.Event, agent: SupportsAclose) -> None:
    await ended.wait()
    with contained() as caught:
        await agent.aclose()
    if caught.error is not None:
        log.error("an agent failed to close", exc_info=caught.error)


def shared_agent(agent: Agent, host: HostLoop, max_abandoned: float = math.inf) -> HostAgent:
    """Return an agent that all conversations share, for the runtime's thread."""

    def start_turn(
        turn: Turn, result: ThreadResult[Answer], /
    ) -> tuple[RemoteTurn, Callable[[], None]]:
        remote = LoopTurn(turn)
        work = functools.partial(answer_on_loop, agent.run, remote)
        task = LoopTask(host.loop, result, work)
        return remote, task.stop

    state = BridgeState(start_turn, host.grace_period, max_abandoned)
    return HostAgent(state, agent=agent, host=host)


def own_agent(agent: Agent, host: HostLoop) -> HostAgent:
    """Return the agent of one conversation, for the runtime's thread: one turn at a time."""
    return shared_agent(agent, host, max_abandoned=1)


def host_builder(build: Build, host: HostLoop) -> Build:
    """Return a builder whose agents run on the host's loop, unless they run on Trio."""

    async def build_for_host(spec: AgentSpec) -> Agent:
        built = build(spec)
        if inspect.isawaitable(built):
            awaitable = built
            built = await host.run(lambda: awaitable)
        return _placed(built, host, own_agent)

    return build_for_host


async def set_host_agent(conversation: Conversation, snapshot: Snapshot) -> None:
    """Use an agent that the host has built."""
    host, current = HOST_LOOP.get(), conversation.snapshot()
    if host is not None:
        agent, cached = snapshot.agent, None if current is None else current.agent
        known = isinstance(cached, HostAgent) and cached.agent is agent
        snapshot = replace(snapshot, agent=cached if known else _placed(agent, host, own_agent))
    await conversation.set_agent(snapshot)


# Other parts


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
class HostTranscriber:
    """A transcriber on the host's loop."""

    transcriber: Transcriber
    host: HostLoop

    async def transcribe(self, audio: FileReader, /) -> str:
        """Transcribe on the host's loop."""
        call = functools.partial(await_on_trio, trio.lowlevel.current_trio_token())
        return await self.host.run(lambda: self.transcriber.transcribe(LoopFile(audio, call)))


def _callable_from_loop(spent: SpentSoFar) -> SpentSoFar:
    return functools.partial(await_on_trio, trio.lowlevel.current_trio_token(), spent)


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


class _ReadyHost(HostAdapter):
    """Adds `ready` to an adapter on the host's loop."""

    async def ready(self, row: OutboxRow, /) -> None:
        """Wait on the host's loop until the platform would accept this reply."""
        adapter: object = self.adapter
        assert isinstance(adapter, SupportsReady)
        supports_ready = adapter
        await self.host.run(lambda: supports_ready.ready(row))


class _FilesHost(HostAdapter):
    """Adds `send_file` to an adapter on the host's loop."""

    async def send_file(self, row: OutboxRow, file: FileReader, /) -> None:
        """Send a file on the host's loop."""
        adapter: object = self.adapter
        assert isinstance(adapter, SupportsFiles)
        supports_files = adapter
        token = trio.lowlevel.current_trio_token()
        reader = LoopFile(file, functools.partial(await_on_trio, token))
        await self.host.run(lambda: supports_files.send_file(row, reader))


class _ReadyFilesHost(_ReadyHost, _FilesHost):
    pass


def host_adapter(adapter: Adapter, host: HostLoop) -> Adapter:
    """Return an adapter that runs on the host's loop, and supports what the original does."""
    given: object = adapter
    if isinstance(given, SupportsFiles):
        return (_ReadyFilesHost if isinstance(given, SupportsReady) else _FilesHost)(adapter, host)
    return (_ReadyHost if isinstance(given, SupportsReady) else HostAdapter)(adapter, host)


def host_hooks(hooks: Hooks, host: HostLoop) -> Hooks:
    """Return hooks whose coroutines run on the host's loop."""
    return {event: [_host_hook(hook, host) for hook in given] for event, given in hooks.items()}


def _host_hook(hook: Callable[..., Any], host: HostLoop) -> Callable[..., Any]:
    token = trio.lowlevel.current_trio_token()

    def call(**arguments: Any) -> Any:
        if "transcript" in arguments:
            arguments["transcript"] = _from_any_loop(arguments["transcript"], token)
        return hook(**arguments)

    def run_plain(**arguments: Any) -> object:
        result = call(**arguments)
        return host.run(lambda: result) if inspect.isawaitable(result) else result

    async def run_async(**arguments: Any) -> None:
        await host.run(lambda: call(**arguments))

    wrapper = run_async if inspect.iscoroutinefunction(hook) else run_plain
    wrapper.__qualname__ = type(hook).__name__  # in the log, for a hook without a name of its own
    # The store reads the signature to see which arguments the hook takes.
    return functools.wraps(hook)(wrapper)


def _from_any_loop(
    load: Callable[[], Awaitable[R]], token: trio.lowlevel.TrioToken
) -> Callable[[], Awaitable[R]]:
    """Return an async function of Trio that can be awaited on the host's loop as well."""

    async def load_from_any_loop() -> R:
        on_trio = trio.lowlevel.in_trio_run()
        return await (load() if on_trio else await_on_trio(token, load))

    return load_from_any_loop
