"""A runtime inside an asyncio program: the same verbs, awaited on the host's loop.

The runtime runs in a separate Trio thread. `open_runtime_asyncio` says what runs where.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, Unpack

from hermes.actors.admin import AdapterState, Admin, ApiRecords
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback
from hermes.actors.runtime import Runtime
from hermes.agents.threads import HOST_LOOP, Handover, HostLoop
from hermes.config import Config
from hermes.embed.agent import builder_for
from hermes.embed.asyncio_bridge import on_host_loop
from hermes.embed.proxies import AsyncioProxy, AsyncioSubscription, run_for_host
from hermes.embed.runtime_thread import RuntimeThread, await_future
from hermes.embed.trio_host import RuntimeOptions, Setup, enter_setup, open_runtime
from hermes.embed.verbs import (
    AdapterStateVerbs,
    AdminVerbs,
    ApiRecordsVerbs,
    ConversationVerbs,
    RuntimeVerbs,
)
from hermes.errors import ActorStopped, StoreFailed
from hermes.messages import Source
from hermes.texts import Texts

R = TypeVar("R")


class AsyncioConversation(ConversationVerbs, AsyncioProxy[Conversation]):
    """The verbs of `Conversation`, awaited on the host's loop.

    `stream` is not awaited; it returns an `AsyncioStream`.
    """


class AsyncioAdmin(AdminVerbs, AsyncioProxy[Admin]):
    """The verbs of `Admin`, awaited on the host's loop."""


class AsyncioAdapterState(AdapterStateVerbs, AsyncioProxy[AdapterState]):
    """The verbs of `AdapterState`, awaited on the host's loop."""


class AsyncioApiRecords(ApiRecordsVerbs, AsyncioProxy[ApiRecords]):
    """The verbs of `ApiRecords`, awaited on the host's loop."""


class AsyncioRuntime(RuntimeVerbs, AsyncioProxy[Runtime]):
    """The verbs of `Runtime`, awaited on the host's loop.

    `stream` is not awaited; it returns an `AsyncioStream`.
    """

    def __init__(self, portal: RuntimeThread, target: Runtime) -> None:
        super().__init__(portal, target)
        self.admin: AsyncioAdmin = AsyncioAdmin(portal, target.admin)
        self.adapter_state: AsyncioAdapterState = AsyncioAdapterState(portal, target.adapter_state)
        self.api: AsyncioApiRecords = AsyncioApiRecords(portal, target.api)
        self.texts: Texts = target.texts

    def conversation(
        self, session_key: str, *, source: Source | None = None
    ) -> AsyncioConversation:
        """Return a handle to a conversation. See `Runtime.conversation`."""
        return AsyncioConversation(
            self._portal, self._target.conversation(session_key, source=source)
        )

    def subscribe(
        self,
        session_key: str | None = None,
        *,
        callback: EventCallback | None = None,
        deltas: bool = True,
        messages: bool = False,
    ) -> AsyncioSubscription:
        """Receive events from the start of an `async with` block. A callback runs on the loop."""
        on_event = None if callback is None else _on_loop(callback)
        return AsyncioSubscription(
            self._portal,
            lambda: self._target.subscribe(
                session_key, callback=on_event, deltas=deltas, messages=messages
            ),
        )

    async def run_on_trio(self, function: Callable[[Runtime], Awaitable[R]]) -> R:
        """Await `function(runtime)` on the runtime's own loop. See `Runtime.run_on_trio`."""
        return await self._call(lambda: run_for_host(self._target, function))

    async def wait_stopped(self) -> None:
        """Wait until the runtime is drained or has ended. See `Runtime.wait_stopped`."""
        with contextlib.suppress(ActorStopped, StoreFailed):
            return await self._call(self._target.wait_stopped)
        if not self._portal.is_fork:
            await await_future(self._portal.ended)
        return self._portal.raise_failure()


def _on_loop(callback: EventCallback) -> EventCallback:
    """Return a function for the runtime's thread that calls `callback` on the host's loop."""
    return Handover(asyncio.get_running_loop().call_soon_threadsafe, callback).put


@asynccontextmanager
async def open_runtime_asyncio(
    path: str | os.PathLike[str],
    *,
    setup: Setup | None = None,
    **options: Unpack[RuntimeOptions],
) -> AsyncIterator[AsyncioRuntime]:
    """Open a runtime in a separate thread, for an asyncio program. Leaving drains it.

    The options are those of `open_runtime`. What you pass runs as follows:

    - Agents, compressors, titlers and adapters, and async builders, hooks and transcribers, run on
      the loop of the caller. One that is cancelled gets `Config.grace_period` to end. An agent that
      still runs then is abandoned: the conversation gets another one, and it is closed when its
      turn has ended. A shared one (`agent=`) is waited for, see `Config.grace_period`.
    - Parts with `on_trio = True` (see `RunsOnTrio`) run on the runtime's own loop, which is Trio's.
      All agents, compressors, titlers and adapters that come with Hermes have it.
    - Plain functions (`agent_spec`, `redact` and plain builders) are called in the runtime's
      thread, plain hooks and transcribers in a worker thread.
    - `setup` is for parts that must be opened on Trio, such as `chat_agents`. It is a function that
      returns an async context manager; that is entered on the runtime's own loop before the runtime
      opens, and left after it has closed. It yields a dictionary of further options, whose parts
      all run on Trio.

    To run code for Trio later, such as the `run` of an adapter, use `AsyncioRuntime.run_on_trio`.
    Async tools run on Trio unless they are made with `@tool(on_host_loop=True)`.

    Raises what `open_runtime` raises, and `TypeError` if an option is passed and comes from `setup`
    as well.
    """
    if setup is None:  # refuse wrong arguments before anything is opened
        builder_for(options.get("agent"), options.get("build_agent"), Config())
    loop = asyncio.get_running_loop()
    thread = RuntimeThread(lambda: _open_for_host(path, setup, options, loop))
    try:
        thread.start()
        yield AsyncioRuntime(thread, await await_future(thread.opened))
        thread.leave()
        await _wait_ended(thread)
    except BaseException as error:
        thread.abort()
        await _wait_ended(thread)
        if thread.failure is not None:
            raise thread.failure from error
        raise
    if thread.failure is not None:
        raise thread.failure


@asynccontextmanager
async def _open_for_host(
    path: str | os.PathLike[str],
    setup: Setup | None,
    options: RuntimeOptions,
    loop: asyncio.AbstractEventLoop,
) -> AsyncIterator[Runtime]:
    """Open a runtime, in its own thread, for the program that runs on `loop`."""
    async with enter_setup(setup, options) as more:
        config = options.get("config") or more.get("config") or Config()
        host = HostLoop(loop, config.grace_period)
        HOST_LOOP.set(host)
        together: RuntimeOptions = {**on_host_loop(options, host), **more}
        async with open_runtime(path, **together) as runtime:
            yield runtime


async def _wait_ended(thread: RuntimeThread) -> None:
    """Wait for the end; a cancellation aborts the runtime, and is raised after its end."""
    cancelled: asyncio.CancelledError | None = None
    while not (thread.is_fork or thread.ended.done()):
        try:
            await await_future(thread.ended)
        except asyncio.CancelledError as error:
            cancelled = error
            thread.abort()
    thread.join()
    if cancelled is not None:
        raise cancelled
