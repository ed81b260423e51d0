"""A runtime inside a synchronous program: the same verbs, called from any thread."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from hermes.actors.admin import Admin
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback
from hermes.actors.runtime import AdapterState, Runtime
from hermes.embed.proxies import BlockingProxy, BlockingSubscription, run_for_host
from hermes.embed.trio_host import RuntimeOptions, Setup, open_with_setup
from hermes.embed.verbs import AdapterStateVerbs, AdminVerbs, ConversationVerbs, RuntimeVerbs
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


class BlockingRuntime(RuntimeVerbs, BlockingProxy[Runtime]):
    """The verbs of `Runtime`, each waiting for its result. Threads may share it.

    `stream` returns a `BlockingStream`.
    """

    def __init__(self, portal: BlockingPortal, target: Runtime) -> None:
        super().__init__(portal, target)
        self.admin: BlockingAdmin = BlockingAdmin(portal, target.admin)
        self.adapter_state: BlockingAdapterState = BlockingAdapterState(
            portal, target.adapter_state
        )
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
    ) -> BlockingSubscription:
        """Receive events from the start of a `with` block.

        A callback runs in the runtime's thread.
        """
        return BlockingSubscription(
            self._portal,
            lambda: self._target.subscribe(session_key, callback=callback, deltas=deltas),
        )

    def run_on_trio(self, function: Callable[[Runtime], Awaitable[R]]) -> R:
        """Await `function(runtime)` on the runtime's own loop. See `Runtime.run_on_trio`."""
        return self._call(lambda: run_for_host(self._target, function))


@contextmanager
def start_runtime(
    path: str | os.PathLike[str],
    *,
    setup: Setup | None = None,
    **options: Unpack[RuntimeOptions],
) -> Iterator[BlockingRuntime]:
    """Open a runtime in a separate thread, for a synchronous program. Leaving drains it.

    The options are those of `open_runtime`; everything runs in the runtime's thread, on Trio.
    `setup` is for parts that must be opened there, such as `chat_agents`. It is a function that
    returns an async context manager; that is entered on the runtime's own loop before the runtime
    opens, and left after it has closed. It yields a dictionary of further options.

    To run code for Trio later, such as the `run` of an adapter, use `BlockingRuntime.run_on_trio`.

    Raises what `open_runtime` raises, and `TypeError` if an option is passed and comes from `setup`
    as well.
    """
    with start_blocking_portal("trio", name="hermes runtime") as portal:
        opening = open_with_setup(path, setup, options)
        with portal.wrap_async_context_manager(opening) as runtime:
            yield BlockingRuntime(portal, runtime)
        portal.call(portal.stop, True)  # cancels `run_on_trio`
