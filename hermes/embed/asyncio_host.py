"""A runtime inside an asyncio program: the same verbs, awaited on the host's loop.

The runtime runs in a Trio thread. What the host gives it (agents, builders, hooks, a compressor,
adapters) runs on the host's loop where it is a coroutine; cancellation crosses both ways.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import attrs
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from msgspec.structs import replace

from hermes.actors.runtime import Runtime
from hermes.actors.stream import Stream
from hermes.agents.threads import LoopTask, LoopTurn, ThreadResult
from hermes.embed.trio_host import ReplyFunction, builder_of, open_runtime
from hermes.events import RuntimeEvent
from hermes.messages import AgentSpec, CostTotals, Hooks, OutboxRow, TurnResult
from hermes.protocols import (
    Adapter,
    Agent,
    Build,
    Compressor,
    Ready,
    SpentSoFar,
    Summary,
    SummaryRequest,
    Titler,
    TitleRequest,
    Turn,
)

P = ParamSpec("P")
R = TypeVar("R")

GRACE_SECONDS = 10.0
"""How long what was cancelled on the host's loop is waited for."""


async def call(portal: BlockingPortal, function: Callable[[], Awaitable[R]]) -> R:
    """Run it in the runtime's thread; cancelled here, it is cancelled there."""
    return await asyncio.wrap_future(portal.start_task_soon(function))


@attrs.frozen
class HostLoop:
    """The host's event loop, as the runtime's thread sees it."""

    loop: asyncio.AbstractEventLoop

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run something of the host's on its loop; cancelled here, it is cancelled there."""
        away: ThreadResult[R] = ThreadResult()
        return await away.wait(LoopTask(self.loop, away, work).stop, GRACE_SECONDS)


@attrs.frozen
class HostAgent:
    """An agent whose coroutines run on the host's loop."""

    agent: Agent
    host: HostLoop

    async def run(self, turn: Turn, /) -> TurnResult:
        """Answer on the host's loop."""
        theirs = LoopTurn(turn)
        try:
            return await self.host.run(lambda: self.agent.run(theirs))
        finally:
            theirs.end()

    async def aclose(self) -> None:
        """Close it, on the host's loop."""
        aclose = getattr(self.agent, "aclose", None)  # optional by contract
        if aclose is not None:
            await self.host.run(aclose)


@attrs.frozen
class HostCompressor:
    """A compressor on the host's loop."""

    compressor: Compressor
    host: HostLoop

    async def summarize(self, request: SummaryRequest, /) -> Summary:
        """Sum up on the host's loop."""
        request = replace(request, spent=_crossing(request.spent))
        return await self.host.run(lambda: self.compressor.summarize(request))


@attrs.frozen
class HostTitler:
    """A titler on the host's loop."""

    titler: Titler
    host: HostLoop

    async def title(self, request: TitleRequest, /) -> Summary:
        """Name a conversation on the host's loop."""
        request = replace(request, spent=_crossing(request.spent))
        return await self.host.run(lambda: self.titler.title(request))


@attrs.frozen
class HostAdapter:
    """An adapter on the host's loop."""

    adapter: Adapter
    host: HostLoop

    @property
    def platform(self) -> str:
        return self.adapter.platform

    @property
    def limit(self) -> int | None:
        limit: int | None = getattr(self.adapter, "limit", None)  # optional by contract
        return limit

    @property
    def account(self) -> str | None:
        account: str | None = getattr(self.adapter, "account", None)  # optional by contract
        return account

    @property
    def ready(self) -> Ready | None:
        ready: Ready | None = getattr(self.adapter, "ready", None)  # optional by contract
        return None if ready is None else functools.partial(self._wait, ready)

    async def _wait(self, ready: Ready, row: OutboxRow, /) -> None:
        await self.host.run(lambda: ready(row))

    async def send(self, row: OutboxRow, /) -> None:
        """Send on the host's loop."""
        await self.host.run(lambda: self.adapter.send(row))


def _crossing(question: SpentSoFar) -> SpentSoFar:
    """A question to the runtime that a coroutine on another loop can wait for."""
    token = trio.lowlevel.current_trio_token()

    async def ask() -> CostTotals:
        return await asyncio.to_thread(lambda: trio.from_thread.run(question, trio_token=token))

    return ask


def _on_trio(part: object) -> bool:
    """Whether a part says of itself that it runs on Trio, also in a host on asyncio."""
    return bool(getattr(part, "on_trio", False))


def _hosted_builder(agent: Build | ReplyFunction, host: HostLoop) -> Build:
    build = builder_of(agent)

    async def hosted(spec: AgentSpec) -> Agent:
        built = build(spec)
        if inspect.isawaitable(built):
            waited = built
            built = await host.run(lambda: waited)
        return built if _on_trio(built) else HostAgent(built, host)

    return hosted


def _hosted_hooks(hooks: Hooks, host: HostLoop) -> Hooks:
    return {event: [_hosted_hook(hook, host) for hook in given] for event, given in hooks.items()}


def _hosted_hook(hook: Callable[..., Any], host: HostLoop) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(hook):
        return hook

    @functools.wraps(hook)  # its signature says which arguments it takes
    async def hosted(**arguments: Any) -> None:
        await host.run(lambda: hook(**arguments))

    return hosted


def _awaits(
    verb: Callable[Concatenate[Runtime, P], Awaitable[R]],
) -> Callable[Concatenate[AsyncioRuntime, P], Coroutine[Any, Any, R]]:
    @functools.wraps(verb)
    async def awaited(self: AsyncioRuntime, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await call(self.portal, lambda: verb(self.runtime, *args, **kwargs))

    return awaited


def _looks(
    verb: Callable[Concatenate[Runtime, P], R],
) -> Callable[Concatenate[AsyncioRuntime, P], Coroutine[Any, Any, R]]:
    @functools.wraps(verb)
    async def awaited(self: AsyncioRuntime, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def look() -> R:
            return verb(self.runtime, *args, **kwargs)

        return await call(self.portal, look)

    return awaited


class AsyncioStream:
    """The events of one message, for an `async for` on the host's loop."""

    def __init__(self, portal: BlockingPortal, begin: Callable[[], Stream]) -> None:
        self._portal = portal
        self._begin = begin
        self._stream: Stream | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RuntimeEvent:
        event = await call(self._portal, self._next)
        if event is None:
            raise StopAsyncIteration
        return event

    async def _next(self) -> RuntimeEvent | None:
        if self._stream is None:
            self._stream = self._begin()
        async for event in self._stream:
            return event
        return None

    async def aclose(self) -> None:
        """Hear no more."""
        if self._stream is not None:
            await call(self._portal, self._stream.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class AsyncioRuntime:
    """The verbs of `Runtime`, awaited in an asyncio program."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime) -> None:
        self.portal = portal
        self.runtime = runtime

    submit = _awaits(Runtime.submit)
    ask = _awaits(Runtime.ask)
    new_session = _awaits(Runtime.new_session)
    switch = _awaits(Runtime.switch)
    close = _awaits(Runtime.close)
    branch = _awaits(Runtime.branch)
    compress = _awaits(Runtime.compress)
    undo = _awaits(Runtime.undo)
    retry = _awaits(Runtime.retry)
    set_title = _awaits(Runtime.set_title)
    steer = _awaits(Runtime.steer)
    interrupt = _awaits(Runtime.interrupt)
    adopt = _awaits(Runtime.adopt)
    status = _awaits(Runtime.status)
    history = _awaits(Runtime.history)
    sessions = _awaits(Runtime.sessions)
    search = _awaits(Runtime.search)
    find = _awaits(Runtime.find)
    transcript = _awaits(Runtime.transcript)
    delete = _awaits(Runtime.delete)
    branch_off = _awaits(Runtime.branch_off)
    rewind = _awaits(Runtime.rewind)
    title = _awaits(Runtime.title)
    answered = _awaits(Runtime.answered)
    facts = _awaits(Runtime.facts)
    recall = _awaits(Runtime.recall)
    remember = _awaits(Runtime.remember)
    wait_hooks = _awaits(Runtime.wait_hooks)
    drain = _awaits(Runtime.drain)
    snapshot = _looks(Runtime.snapshot)
    statistics = _looks(Runtime.statistics)
    running_turns = _looks(Runtime.running_turns)

    def stream(self, session_key: str, text: str, **options: Any) -> AsyncioStream:
        """Say something and hear what happens until the reply, which is the last event."""
        return AsyncioStream(self.portal, lambda: self.runtime.stream(session_key, text, **options))


@asynccontextmanager
async def open_runtime_asyncio(
    path: str | os.PathLike[str],
    *,
    agent: Build | ReplyFunction,
    hooks: Hooks | None = None,
    compressor: Compressor | None = None,
    titler: Titler | None = None,
    adapters: Iterable[Adapter] = (),
    **options: Any,
) -> AsyncIterator[AsyncioRuntime]:
    """A runtime in a thread of its own, for a program on asyncio; leaving drains it."""
    host = HostLoop(asyncio.get_running_loop())
    opened = _Thread(
        path,
        agent=_hosted_builder(agent, host),
        hooks=_hosted_hooks(hooks or {}, host),
        compressor=_hosted_compressor(compressor, host),
        titler=_hosted_titler(titler, host),
        adapters=[HostAdapter(each, host) for each in adapters],
        **options,
    )
    # In another thread: while the runtime begins and ends, the host's loop must run.
    runtime = await asyncio.to_thread(opened.enter)
    error: BaseException | None = None
    try:
        yield runtime
    except BaseException as raised:
        error = raised
        raise
    finally:
        await _uncancelled(asyncio.to_thread(opened.leave, error))


def _hosted_compressor(compressor: Compressor | None, host: HostLoop) -> Compressor | None:
    if compressor is None or _on_trio(compressor):
        return compressor
    return HostCompressor(compressor, host)


def _hosted_titler(titler: Titler | None, host: HostLoop) -> Titler | None:
    return titler if titler is None or _on_trio(titler) else HostTitler(titler, host)


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Wait for the end, however often the host is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


class _Thread:
    """The portal and the runtime behind it."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self._portals = start_blocking_portal("trio", name="hermes runtime")
        self._path = path
        self._options = options

    def enter(self) -> AsyncioRuntime:
        portal = self._portals.__enter__()
        try:
            opening = open_runtime(self._path, **self._options)
            self._runtimes = portal.wrap_async_context_manager(opening)
            runtime = self._runtimes.__enter__()
        except BaseException as error:
            self._portals.__exit__(type(error), error, error.__traceback__)
            raise
        return AsyncioRuntime(portal, runtime)

    def leave(self, error: BaseException | None) -> None:
        """Drain; where the host's block failed, without waiting for anybody."""
        try:
            if error is None:
                self._runtimes.__exit__(None, None, None)
            else:
                self._runtimes.__exit__(type(error), error, error.__traceback__)
        finally:
            self._portals.__exit__(None, None, None)
