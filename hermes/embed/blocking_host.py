"""A runtime inside a synchronous program: the same verbs, called from any thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar, Unpack

from hermes.actors.admin import AdapterState, Admin, ApiRecords
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback
from hermes.actors.runtime import Runtime
from hermes.embed.proxies import BlockingProxy, BlockingSubscription, run_for_host
from hermes.embed.runtime_thread import RuntimeThread, wait_for
from hermes.embed.trio_host import RuntimeOptions, Setup, open_with_setup
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


class BlockingConversation(ConversationVerbs, BlockingProxy[Conversation]):
    """The verbs of `Conversation`, each waiting for its result.

    `stream` returns a `BlockingStream`.
    """


class BlockingAdmin(AdminVerbs, BlockingProxy[Admin]):
    """The verbs of `Admin`, each waiting for its result."""


class BlockingAdapterState(AdapterStateVerbs, BlockingProxy[AdapterState]):
    """The verbs of `AdapterState`, each waiting for its result."""


class BlockingApiRecords(ApiRecordsVerbs, BlockingProxy[ApiRecords]):
    """The verbs of `ApiRecords`, each waiting for its result."""


class BlockingRuntime(RuntimeVerbs, BlockingProxy[Runtime]):
    """The verbs of `Runtime`, each waiting for its result. Threads may share it.

    `stream` returns a `BlockingStream`.
    """

    def __init__(self, portal: RuntimeThread, target: Runtime) -> None:
        super().__init__(portal, target)
        self.admin: BlockingAdmin = BlockingAdmin(portal, target.admin)
        self.adapter_state: BlockingAdapterState = BlockingAdapterState(
            portal, target.adapter_state
        )
        self.api: BlockingApiRecords = BlockingApiRecords(portal, target.api)
        self.texts: Texts = target.texts

    def conversation(
        self, session_key: str, *, source: Source | None = None
    ) -> BlockingConversation:
        """Return a handle to a conversation. See `Runtime.conversation`."""
        return BlockingConversation(
            self._portal, self._target.conversation(session_key, source=source)
        )

    def subscribe(
        self,
        session_key: str | None = None,
        *,
        callback: EventCallback | None = None,
        deltas: bool = True,
        messages: bool = False,
    ) -> BlockingSubscription:
        """Receive events from the start of a `with` block.

        A callback runs in the runtime's thread.
        """
        return BlockingSubscription(
            self._portal,
            lambda: self._target.subscribe(
                session_key, callback=callback, deltas=deltas, messages=messages
            ),
        )

    def run_on_trio(self, function: Callable[[Runtime], Awaitable[R]]) -> R:
        """Await `function(runtime)` on the runtime's own loop. See `Runtime.run_on_trio`."""
        return self._call(lambda: run_for_host(self._target, function))

    def wait_stopped(self) -> None:
        """Wait until the runtime is drained or has ended. See `Runtime.wait_stopped`."""
        with contextlib.suppress(ActorStopped, StoreFailed):
            return self._call(self._target.wait_stopped)
        self._portal.join()
        return self._portal.raise_failure()


class _Running(AbstractContextManager[BlockingRuntime]):
    """A runtime during a `with` block.

    A class, not a generator: Ctrl-C just after the `yield` of a generator would lose it, and its
    runtime would stay open.
    """

    def __init__(self, thread: RuntimeThread) -> None:
        self._thread = thread
        self._entered = False

    def __enter__(self) -> BlockingRuntime:
        if self._entered:
            raise RuntimeError("start_runtime() can be entered only once")
        self._entered = True
        try:
            self._thread.start()
            return BlockingRuntime(self._thread, wait_for(self._thread.opened))
        except BaseException:
            self._thread.abort()
            self._thread.join()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._thread.leave()
            else:
                self._thread.abort()
            self._thread.join()
        except BaseException:
            self._thread.abort()
            self._thread.join()
            raise
        if self._thread.failure is not None:
            raise self._thread.failure


def start_runtime(
    path: str | os.PathLike[str],
    *,
    setup: Setup | None = None,
    **options: Unpack[RuntimeOptions],
) -> AbstractContextManager[BlockingRuntime]:
    """Open a runtime in a separate thread, for a synchronous program. Leaving drains it.

    The options are those of `open_runtime`; everything runs in the runtime's thread, on Trio.
    `setup` is for parts that must be opened there, such as `chat_agents`. It is a function that
    returns an async context manager; that is entered on the runtime's own loop before the runtime
    opens, and left after it has closed. It yields a dictionary of further options.

    To run code for Trio later, such as the `run` of an adapter, use `BlockingRuntime.run_on_trio`.

    Raises what `open_runtime` raises, and `TypeError` if an option is passed and comes from `setup`
    as well.
    """
    return _Running(RuntimeThread(lambda: open_with_setup(path, setup, options)))
