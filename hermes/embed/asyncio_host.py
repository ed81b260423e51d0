"""A runtime inside an asyncio program: the same verbs, awaited on the host's loop.

The runtime runs in a separate Trio thread. `open_runtime_asyncio` says what runs where.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from hermes.actors.admin import Admin
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback
from hermes.actors.runtime import AdapterState, Runtime
from hermes.agents.threads import HOST_LOOP, Handover, HostLoop
from hermes.config import Config
from hermes.embed.agent import builder_for
from hermes.embed.asyncio_bridge import on_host_loop
from hermes.embed.proxies import AsyncioProxy, AsyncioSubscription, run_for_host
from hermes.embed.trio_host import RuntimeOptions, Setup, open_with_setup
from hermes.embed.verbs import AdapterStateVerbs, AdminVerbs, ConversationVerbs, RuntimeVerbs
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

    async def run_on_trio(self, function: Callable[[Runtime], Awaitable[R]]) -> R:
        """Await `function(runtime)` on the runtime's own loop. See `Runtime.run_on_trio`."""
        return await self._call(lambda: run_for_host(self._target, function))


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

    - Agents, compressors, titlers and adapters, and builders and hooks that are coroutine
      functions, run on the loop of the caller. One that is cancelled gets `Config.grace_period` to
      end. An agent that still runs then is abandoned: the conversation gets another one, and it is
      closed when its turn has ended.
    - Parts with `on_trio = True` (see `RunsOnTrio`) run on the runtime's own loop, which is Trio's.
      All agents, compressors, titlers and adapters that come with Hermes have it.
    - Plain functions (`agent_spec`, `redact` and plain builders) are called in the runtime's
      thread, plain hooks in a worker thread.
    - `setup` is for parts that must be opened on Trio, such as `chat_agents`. It is a function that
      returns an async context manager; that is entered on the runtime's own loop before the runtime
      opens, and left after it has closed. It yields a dictionary of further options, whose parts
      all run on Trio.

    To run code for Trio later, such as the `run` of an adapter, use `AsyncioRuntime.run_on_trio`.
    Async tools run on Trio unless they are made with `@tool(on_host_loop=True)`.

    Raises what `open_runtime` raises, and `TypeError` if an option is passed and comes from `setup`
    as well.
    """
    config = options.get("config") or Config()
    host = HostLoop(asyncio.get_running_loop(), config.grace_period)
    if setup is None:  # refuse wrong arguments before anything is opened
        builder_for(options.get("agent"), options.get("build_agent"))
    opened = _RuntimeThread(_open_for_host(path, setup, on_host_loop(options, host), host))
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


@asynccontextmanager
async def _open_for_host(
    path: str | os.PathLike[str], setup: Setup | None, options: RuntimeOptions, host: HostLoop
) -> AsyncIterator[Runtime]:
    """Open a runtime, in its own thread."""
    HOST_LOOP.set(host)
    async with open_with_setup(path, setup, options) as runtime:
        yield runtime


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

    def __init__(self, opening: AbstractAsyncContextManager[Runtime]) -> None:
        self._portals = start_blocking_portal("trio", name="hermes runtime")
        self._opening = opening

    def enter(self) -> AsyncioRuntime:
        portal = self._portal = self._portals.__enter__()
        try:
            self._runtimes = portal.wrap_async_context_manager(self._opening)
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
            with contextlib.suppress(RuntimeError):  # the thread has ended already
                self._portal.call(self._portal.stop, True)  # cancels `run_on_trio`
            self._portals.__exit__(None, None, None)
