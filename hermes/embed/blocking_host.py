"""A runtime inside a synchronous program: the same verbs, called from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from hermes.actors.admin import Admin
from hermes.actors.conversation import Conversation
from hermes.actors.event_bus import EventCallback, Subscription
from hermes.actors.runtime import AdapterState, Runtime
from hermes.actors.stream import Stream
from hermes.embed.trio_host import RuntimeOptions, open_runtime
from hermes.embed.verbs import (
    AdapterStateVerbs,
    AdminVerbs,
    BlockingProxy,
    ConversationVerbs,
    RuntimeVerbs,
)
from hermes.events import Envelope, RuntimeEvent
from hermes.messages import JsonObject, Reply, Source, WhenBusy


class BlockingStream(BlockingProxy[Stream]):
    """The events of one message, for a `for` loop. See `hermes.Stream`."""

    @property
    def reply(self) -> Reply | None:
        """The reply, after the last event."""
        return self._target.reply

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RuntimeEvent:
        event = self._call(self._next)
        if event is None:
            raise StopIteration
        return event

    async def _next(self) -> RuntimeEvent | None:
        return await anext(self._target, None)

    def close(self) -> None:
        """Stop receiving. The turn goes on, or is interrupted if that was asked for."""
        self._call(self._target.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlockingSubscription(BlockingProxy[Subscription]):
    """Events for one subscriber, for a `for` loop. See `hermes.Subscription`."""

    @property
    def lost(self) -> int:
        """How many events were lost because the subscriber fell behind."""
        return self._target.lost

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Envelope:
        envelope = self._call(self._next)
        if envelope is None:
            raise StopIteration
        return envelope

    async def _next(self) -> Envelope | None:
        return await anext(self._target, None)

    def close(self) -> None:
        """Stop receiving. Events that have arrived can still be read."""
        self._call(self._target.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class BlockingConversation(ConversationVerbs, BlockingProxy[Conversation]):
    """The verbs of `Conversation`, each waiting for its result."""

    @property
    def session_key(self) -> str:
        """The key of the conversation."""
        return self._target.session_key

    def stream(
        self,
        text: str,
        *,
        source: Source | None = None,
        parts: Sequence[JsonObject] | None = None,
        when_busy: WhenBusy | None = None,
        event_id: str | None = None,
        interrupt_on_exit: bool = False,
    ) -> BlockingStream:
        """Send a message and iterate over the events until the reply. See `Runtime.stream`."""
        return _open_stream(
            self,
            lambda: self._target.stream(
                text,
                source=source,
                parts=parts,
                when_busy=when_busy,
                event_id=event_id,
                interrupt_on_exit=interrupt_on_exit,
            ),
        )


class BlockingAdmin(AdminVerbs, BlockingProxy[Admin]):
    """The verbs of `Admin`, each waiting for its result."""


class BlockingAdapterState(AdapterStateVerbs, BlockingProxy[AdapterState]):
    """The verbs of `AdapterState`, each waiting for its result."""


class BlockingRuntime(RuntimeVerbs, BlockingProxy[Runtime]):
    """The verbs of `Runtime`, each waiting for its result. Threads may share it."""

    def __init__(self, portal: BlockingPortal, target: Runtime) -> None:
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

    def stream(  # noqa: PLR0913 - the options of a message
        self,
        session_key: str,
        text: str,
        *,
        source: Source | None = None,
        parts: Sequence[JsonObject] | None = None,
        when_busy: WhenBusy | None = None,
        event_id: str | None = None,
        interrupt_on_exit: bool = False,
    ) -> BlockingStream:
        """Send a message and iterate over the events until the reply. See `Runtime.stream`."""
        return self.conversation(session_key).stream(
            text,
            source=source,
            parts=parts,
            when_busy=when_busy,
            event_id=event_id,
            interrupt_on_exit=interrupt_on_exit,
        )

    def subscribe(
        self,
        session_key: str | None = None,
        *,
        callback: EventCallback | None = None,
        deltas: bool = True,
    ) -> BlockingSubscription:
        """Receive events from now on. A callback runs in the runtime's thread."""

        async def subscribe() -> Subscription:
            return self._target.subscribe(session_key, callback=callback, deltas=deltas)

        return BlockingSubscription(self._portal, self._call(subscribe))


def _open_stream(proxy: BlockingConversation, begin: Callable[[], Stream]) -> BlockingStream:
    async def opened() -> Stream:
        return begin()

    return BlockingStream(proxy._portal, proxy._call(opened))  # noqa: SLF001 - same module


@contextmanager
def start_runtime(
    path: str | os.PathLike[str], **options: Unpack[RuntimeOptions]
) -> Iterator[BlockingRuntime]:
    """Open a runtime in a thread of its own, for a synchronous program. Leaving drains it.

    The options are those of `open_runtime`.
    """
    with (
        start_blocking_portal("trio", name="hermes runtime") as portal,
        portal.wrap_async_context_manager(open_runtime(path, **options)) as runtime,
    ):
        yield BlockingRuntime(portal, runtime)
