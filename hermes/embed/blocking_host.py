"""A runtime inside a synchronous program: the same verbs, called from any thread."""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Unpack

from hermes.actors.admin import Admin
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback
from hermes.actors.runtime import AdapterState, Runtime
from hermes.embed.proxies import BlockingProxy, BlockingSubscription
from hermes.embed.runtime_thread import RuntimeThread, wait_for
from hermes.embed.trio_host import RuntimeOptions
from hermes.embed.verbs import AdapterStateVerbs, AdminVerbs, ConversationVerbs, RuntimeVerbs
from hermes.errors import ActorStopped, StoreFailed
from hermes.messages import Source


class BlockingConversation(ConversationVerbs, BlockingProxy[Conversation]):
    """The verbs of `Conversation`, each waiting for its result.

    `stream` returns a `BlockingStream`.
    """


class BlockingAdmin(AdminVerbs, BlockingProxy[Admin]):
    """The verbs of `Admin`, each waiting for its result."""


class BlockingAdapterState(AdapterStateVerbs, BlockingProxy[AdapterState]):
    """The verbs of `AdapterState`, each waiting for its result."""


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
    ) -> BlockingSubscription:
        """Receive events from the start of a `with` block.

        A callback runs in the runtime's thread.
        """
        return BlockingSubscription(
            self._portal,
            lambda: self._target.subscribe(session_key, callback=callback, deltas=deltas),
        )

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

    def __init__(self, path: str | os.PathLike[str], options: RuntimeOptions) -> None:
        self._thread = RuntimeThread(path, options)
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
    path: str | os.PathLike[str], **options: Unpack[RuntimeOptions]
) -> AbstractContextManager[BlockingRuntime]:
    """Open a runtime in a separate thread, for a synchronous program. Leaving drains it.

    The options are those of `open_runtime`. Use it with `with`.
    """
    return _Running(path, options)
