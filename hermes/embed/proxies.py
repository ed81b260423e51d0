"""Objects of the runtime's Trio thread, for hosts in other threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, cast

import anyio
import trio

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.actors.stream import Stream
from hermes.agents.remote_runtime import LoopFile, ThreadFile
from hermes.embed.runtime_thread import LOST_INTERVAL, RuntimeThread, await_future, wait_for
from hermes.errors import ActorStopped, HermesError, StoreFailed
from hermes.messages import Receipt, Reply
from hermes.protocols import FileReader
from hermes.user_code import contained, describe

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)
R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


class Proxy(Generic[T_co]):
    """A Trio object in another thread."""

    def __init__(self, portal: RuntimeThread, target: T_co) -> None:
        self._portal = portal
        self._target = target


class BlockingProxy(Proxy[T_co]):
    """A Trio object in another thread, whose verbs block the calling thread."""

    def _call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a function in the runtime's thread and wait; Ctrl-C here cancels it there."""
        future = self._portal.start_task_soon(function)
        try:
            return wait_for(future)
        except BaseException:
            future.cancel()
            raise

    def _call_to_end(self, function: Callable[[], Awaitable[R]]) -> R:
        """Do what `_call` does; after Ctrl-C, wait until the function has ended."""
        call = _Whole(function)
        try:
            return self._call(call.run)
        except BaseException:
            if call.started:
                wait([call.ended, self._portal.ended], return_when=FIRST_COMPLETED)
            raise

    def _open_file(self, function: Callable[[], Awaitable[FileReader]]) -> ThreadFile:
        return ThreadFile(self._call(function), self._call)


class AsyncioProxy(Proxy[T_co]):
    """A Trio object in another thread, whose verbs are awaited on an asyncio loop."""

    async def _call(self, function: Callable[[], Awaitable[R]]) -> R:
        """Run a function in the runtime's thread; cancelled here, it is cancelled there."""
        return await await_future(self._portal.start_task_soon(function))

    async def _call_to_end(self, function: Callable[[], Awaitable[R]]) -> R:
        """Do what `_call` does; if it is cancelled, wait until the function has ended."""
        call = _Whole(function)
        try:
            return await self._call(call.run)
        except asyncio.CancelledError:
            ended = asyncio.wrap_future(call.ended)
            while call.started and not (call.ended.done() or self._portal.ended.done()):
                with contextlib.suppress(asyncio.CancelledError):  # it is cancelled already
                    await asyncio.wait([ended], timeout=LOST_INTERVAL)
            raise

    async def _open_file(self, function: Callable[[], Awaitable[FileReader]]) -> LoopFile:
        return LoopFile(await self._call(function), self._call)


class _Whole(Generic[R]):
    """A call whose end is waited for: it reads files of the host, who may close them afterwards."""

    def __init__(self, function: Callable[[], Awaitable[R]]) -> None:
        self._function = function
        self.started = False
        self.ended: Future[None] = Future()

    async def run(self) -> R:
        """Run the call, in the runtime's thread."""
        self.started = True
        try:
            return await self._function()
        finally:
            self.ended.set_result(None)


async def run_for_host(runtime: Runtime, function: Callable[[Runtime], Awaitable[R]]) -> R:
    """Run a function of the host; what it raises is not the runtime's failure."""
    with contained() as caught:
        return await runtime.run_on_trio(function)
    assert caught.error is not None
    if isinstance(caught.error, Exception):
        raise caught.error
    raise RuntimeError(f"raised {describe(caught.error)}") from caught.error


class Events(Protocol[E_co]):
    """What `Stream` and `Subscription` have in common."""

    @property
    def lost(self) -> int: ...
    async def __anext__(self) -> E_co: ...
    def take_ready(self) -> Sequence[E_co]: ...
    async def aclose(self) -> None: ...


S_co = TypeVar("S_co", bound=Events[object], covariant=True)


class _Opened(Proxy[Callable[[], S_co]]):
    """Events that are received from the start of a block.

    All events that have arrived cross to the host's thread together. They are put into `_unread`
    in the runtime's thread, so that a cancelled call takes none of them with it.
    """

    def __init__(self, portal: RuntimeThread, target: Callable[[], S_co]) -> None:
        super().__init__(portal, target)
        self._events: S_co | None = None
        self._unread: deque[object] = deque()
        self._lost = 0
        self._ended = False
        """Whether the last event of a stream was taken, so that nothing is left to do."""

    @property
    def lost(self) -> int:
        """How many events were dropped because the reader fell behind."""
        return self._lost

    def _require_new(self) -> None:
        if self._events is not None:
            raise RuntimeError("it can be entered only once")

    async def _open(self) -> None:
        self._events = self._target()
        if isinstance(self._events, Stream):
            await self._events.__aenter__()

    async def _fetch(self) -> bool:
        """Wait for at least one event and take all that have arrived; False at the end."""
        if self._events is None:
            raise RuntimeError(
                "enter it before you read it, with the `with` or `async with` statement"
            )
        if self._unread:  # of a call that was cancelled when they had arrived
            return True
        try:
            first = await anext(self._events)
        except StopAsyncIteration:
            return False
        finally:
            self._lost = self._events.lost
        self._unread += (first, *self._events.take_ready())
        self._ended = isinstance(self._events, Stream) and self._events.reply is not None
        return True

    def _take_rest(self, error: HermesError) -> bool:
        """Take the events that had arrived when the runtime ended; False if there are none.

        After the last of them, `error` is raised, unless it is the orderly end of a subscription.
        """
        if not (isinstance(self._events, Subscription) and self._portal.is_closed):
            raise error
        self._unread += self._events.take_ready()  # the runtime's thread adds no more
        if not self._unread and self._portal.failure is not None:
            raise error
        return bool(self._unread)

    def _at_end(self) -> bool:
        return self._ended and not self._unread  # in this order: `_ended` is set last

    def _next(self: _Opened[Events[E]]) -> E:
        return cast("E", self._unread.popleft())

    async def _close(self) -> None:
        if self._events is None:
            return
        if isinstance(self._events, Stream):
            self._unread.clear()
        with trio.CancelScope(shield=True):  # or a cancelled call would not interrupt the turn
            await self._events.aclose()
        self._lost = self._events.lost


class BlockingEvents(_Opened[S_co], BlockingProxy[Callable[[], S_co]]):
    """Events for a `for` loop inside a `with` block."""

    def __iter__(self) -> Self:
        return self

    def __next__(self: BlockingEvents[Events[E]]) -> E:
        while not self._unread:
            if self._at_end() or not self._more():
                raise StopIteration
        return self._next()

    def _more(self) -> bool:
        try:
            return self._call(self._fetch)
        except (ActorStopped, StoreFailed) as error:
            return self._take_rest(error)

    def close(self) -> None:
        """Stop receiving, as leaving the `with` block does."""
        if self._ended:
            self._unread.clear()
            return
        closing = False
        try:
            with contextlib.suppress(ActorStopped, StoreFailed):  # it has ended with the runtime
                self._call(self._close)
            closing = True
        finally:
            if not closing:  # Ctrl-C may have come before the call
                with contextlib.suppress(ActorStopped, StoreFailed):
                    self._portal.start_task_soon(self._close)

    def __enter__(self) -> Self:
        self._require_new()
        try:
            self._call_to_end(self._open)
        except BaseException:
            self.close()  # Ctrl-C may have come when it was open already
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncioEvents(_Opened[S_co], AsyncioProxy[Callable[[], S_co]]):
    """Events for an `async for` on the host's loop, inside an `async with` block."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self: AsyncioEvents[Events[E]]) -> E:
        while not self._unread:
            if self._at_end() or not await self._more():
                raise StopAsyncIteration
        return self._next()

    async def _more(self) -> bool:
        try:
            return await self._call(self._fetch)
        except (ActorStopped, StoreFailed) as error:
            return self._take_rest(error)

    async def aclose(self) -> None:
        """Stop receiving, as leaving the `async with` block does."""
        if self._ended:
            self._unread.clear()
            return
        # Frameworks such as Starlette cancel every await of a request whose client has gone.
        with (
            contextlib.suppress(ActorStopped, StoreFailed),  # it has ended with the runtime
            anyio.CancelScope(shield=True),
        ):
            await self._call(self._close)

    async def __aenter__(self) -> Self:
        self._require_new()
        try:
            await self._call_to_end(self._open)
        except BaseException:
            await self.aclose()  # it may have been open already when it was cancelled
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class BlockingStream(BlockingEvents[Stream]):
    """The events of one message, for a `for` loop. See `hermes.Stream`."""

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the message, inside the block."""
        return None if self._events is None else self._events.receipt

    @property
    def reply(self) -> Reply | None:
        """The reply, after the last event."""
        return None if self._events is None else self._events.reply


class AsyncioStream(AsyncioEvents[Stream]):
    """The events of one message, for an `async for` on the host's loop. See `hermes.Stream`."""

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the message, inside the block."""
        return None if self._events is None else self._events.receipt

    @property
    def reply(self) -> Reply | None:
        """The reply, after the last event."""
        return None if self._events is None else self._events.reply


class BlockingSubscription(BlockingEvents[Subscription]):
    """Events for one subscriber, for a `for` loop. See `hermes.Subscription`."""


class AsyncioSubscription(AsyncioEvents[Subscription]):
    """Events for one subscriber, for an `async for` on the host's loop.

    Use it with `async with`: it receives events from the start of the block. See
    `hermes.Subscription`.
    """
