"""A runtime inside an asyncio program: the same verbs, awaited on the host's loop.

The runtime runs in a separate Trio thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

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
from hermes.embed.trio_host import RuntimeOptions, open_runtime
from hermes.embed.verbs import AdapterStateVerbs, AdminVerbs, ConversationVerbs, RuntimeVerbs
from hermes.events import Envelope
from hermes.messages import Source
from hermes.texts import Texts


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

    def __init__(self, portal: BlockingPortal, target: Runtime) -> None:
        super().__init__(portal, target)
        self.admin: AsyncioAdmin = AsyncioAdmin(portal, target.admin)
        self.adapter_state: AsyncioAdapterState = AsyncioAdapterState(portal, target.adapter_state)
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
    ) -> AsyncioSubscription:
        """Receive events from the start of an `async with` block. A callback runs on the loop."""
        on_event = None if callback is None else _on_loop(callback)
        return AsyncioSubscription(
            self._portal,
            lambda: self._target.subscribe(session_key, callback=on_event, deltas=deltas),
        )


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
    opened = _RuntimeThread(path, _on_host_loop(options, host))
    # In another thread: the host's loop must run while the runtime starts and ends.
    runtime = await asyncio.to_thread(opened.enter)
    error: BaseException | None = None
    try:
        yield runtime
    except BaseException as raised:
        error = raised
        raise
    finally:
        await _uncancelled(asyncio.to_thread(opened.leave, error))


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


class _RuntimeThread:
    """The portal to the runtime's thread, and the runtime behind it."""

    def __init__(self, path: str | os.PathLike[str], options: RuntimeOptions) -> None:
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
        """Drain the runtime; if the host's block failed, without waiting for anything."""
        try:
            if error is None:
                self._runtimes.__exit__(None, None, None)
            else:
                self._runtimes.__exit__(type(error), error, error.__traceback__)
        finally:
            self._portals.__exit__(None, None, None)
