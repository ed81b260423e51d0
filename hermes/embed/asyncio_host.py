"""A runtime inside an asyncio program: the same verbs, awaited on the host's loop.

The runtime runs in a separate Trio thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from hermes.actors.admin import Admin
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback
from hermes.actors.runtime import AdapterState, Runtime
from hermes.embed.agent import as_agent, builder_for
from hermes.embed.asyncio_bridge import (
    HostLoop,
    host_adapter,
    host_agent,
    host_builder,
    host_compressor,
    host_hooks,
    host_titler,
)
from hermes.embed.proxies import AsyncioProxy, AsyncioSubscription
from hermes.embed.runtime_thread import RuntimeThread
from hermes.embed.trio_host import RuntimeOptions
from hermes.embed.verbs import AdapterStateVerbs, AdminVerbs, ConversationVerbs, RuntimeVerbs
from hermes.errors import ActorStopped, StoreFailed
from hermes.events import Envelope
from hermes.messages import Source


class AsyncioConversation(ConversationVerbs, AsyncioProxy[Conversation]):
    """The verbs of `Conversation`, awaited on the host's loop.

    `stream` is not awaited; it returns an `AsyncioStream`.
    """


class AsyncioAdmin(AdminVerbs, AsyncioProxy[Admin]):
    """The verbs of `Admin`, awaited on the host's loop."""


class AsyncioAdapterState(AdapterStateVerbs, AsyncioProxy[AdapterState]):
    """The verbs of `AdapterState`, awaited on the host's loop."""


class AsyncioRuntime(RuntimeVerbs, AsyncioProxy[Runtime]):
    """The verbs of `Runtime`, awaited on the host's loop.

    `stream` is not awaited; it returns an `AsyncioStream`.
    """

    def __init__(self, portal: RuntimeThread, target: Runtime) -> None:
        super().__init__(portal, target)
        self.admin: AsyncioAdmin = AsyncioAdmin(portal, target.admin)
        self.adapter_state: AsyncioAdapterState = AsyncioAdapterState(portal, target.adapter_state)

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
    ) -> AsyncioSubscription:
        """Receive events from the start of an `async with` block. A callback runs on the loop."""
        on_event = None if callback is None else _on_loop(callback)
        return AsyncioSubscription(
            self._portal,
            lambda: self._target.subscribe(session_key, callback=on_event, deltas=deltas),
        )

    async def wait_stopped(self) -> None:
        """Wait until the runtime is drained or has ended. See `Runtime.wait_stopped`."""
        with contextlib.suppress(ActorStopped, StoreFailed):
            return await self._call(self._target.wait_stopped)
        if not self._portal.is_fork:
            await asyncio.wrap_future(self._portal.ended)
        return self._portal.raise_failure()


def _on_loop(callback: EventCallback) -> EventCallback:
    """Return a function for the runtime's thread that calls `callback` on the host's loop."""
    loop = asyncio.get_running_loop()

    def call_soon(envelope: Envelope) -> None:
        loop.call_soon_threadsafe(callback, envelope)

    return call_soon


@asynccontextmanager
async def open_runtime_asyncio(
    path: str | os.PathLike[str], **options: Unpack[RuntimeOptions]
) -> AsyncIterator[AsyncioRuntime]:
    """Open a runtime in a separate thread, for an asyncio program. Leaving drains it.

    The options are those of `open_runtime`. Agents, hooks, compressors, titlers and adapters that
    are coroutines run on the loop of the caller.
    """
    host = HostLoop(asyncio.get_running_loop())
    thread = RuntimeThread(path, _on_host_loop(options, host))
    try:
        thread.start()
        yield AsyncioRuntime(thread, await asyncio.wrap_future(thread.opened))
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


def _on_host_loop(options: RuntimeOptions, host: HostLoop) -> RuntimeOptions:
    agent, build_agent = options.get("agent"), options.get("build_agent")
    build = builder_for(agent, build_agent)  # refuses wrong arguments before anything is opened
    return {
        **options,
        "agent": None if agent is None else host_agent(as_agent(agent), host),
        "build_agent": None if build_agent is None else host_builder(build, host),
        "hooks": host_hooks(options.get("hooks") or {}, host),
        "compressor": host_compressor(options.get("compressor"), host),
        "titler": host_titler(options.get("titler"), host),
        "adapters": [host_adapter(each, host) for each in options.get("adapters", ())],
    }


async def _wait_ended(thread: RuntimeThread) -> None:
    """Wait for the end; a cancellation aborts the runtime, and is raised after its end."""
    cancelled: asyncio.CancelledError | None = None
    while not (thread.is_fork or thread.ended.done()):
        try:
            await asyncio.wrap_future(thread.ended)
        except asyncio.CancelledError as error:
            cancelled = error
            thread.abort()
    thread.join()
    if cancelled is not None:
        raise cancelled
