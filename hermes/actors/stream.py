"""A message, and the events until its reply."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

import trio

from hermes.actors.event_bus import EventBus, Subscription
from hermes.actors.kernel.mailbox import Request
from hermes.errors import ActorStopped, ReplyTimeout
from hermes.events import Envelope, RuntimeEvent, Steered, TurnEnded, TurnStarted
from hermes.messages import Accepted, Inbound, Receipt, Reply

NOT_ENTERED = (
    "a stream must be entered before it is read: `async with runtime.stream(...) as stream`"
)


class Stream:
    """The events of one message, in order. The last one is `TurnEnded`, with the reply.

    The message is sent when the `async with` block is entered; iterate over the stream inside of
    it with `async for`. Leaving the block early detaches: the turn goes on without a listener, or
    is interrupted if the stream was opened with `interrupt_on_exit`. Inside the block, `receipt` is
    the receipt of the message; after the last event, `reply` is the reply. `lost` counts events
    that were dropped because the reader fell behind; text is never dropped.
    """

    def __init__(
        self,
        inbound: Inbound,
        accept: Callable[[Inbound, Request[Reply]], Awaitable[Accepted]],
        bus: EventBus,
        interrupt: Callable[[str, int], Awaitable[bool]] | None,
        waiting: AbstractContextManager[None],
        timeout: float | None = None,
    ) -> None:
        self._inbound = inbound
        self._accept = accept
        self._bus = bus
        self._interrupt = interrupt
        self._open = ExitStack()
        self._waiting = waiting
        self._events: Subscription | None = None
        self._request: Request[Reply] = Request()
        self._timeout = timeout
        self._deadline = math.inf
        self._turn_id: int | None = None
        self._ended = False
        self.receipt: Receipt | None = None
        self.reply: Reply | None = None

    @property
    def lost(self) -> int:
        """How many events were dropped because the reader fell behind."""
        return 0 if self._events is None else self._events.lost

    async def __aenter__(self) -> Self:
        if self._events is not None:
            raise RuntimeError("a stream can be entered only once")
        self._open.enter_context(self._waiting)
        self._request = self._bus.expect(self._inbound.identity)
        self._events = self._bus.subscribe(self._inbound.session_key, until=self._request)
        self._open.callback(self._bus.forget, self._inbound.identity, self._request)
        self._open.callback(self._events.close)
        try:
            accepted = await self._accept(self._inbound, self._request)
        except BaseException:
            self._open.close()
            raise
        self.receipt = accepted.receipt
        self._bus.include(self._events, self.receipt.session_key)
        identity = self._inbound.identity
        self._bus.await_reply(self.receipt, identity, self._request, accepted.claim)
        if self._timeout is not None:
            self._deadline = trio.current_time() + self._timeout
        return self

    @property
    def _inbox_id(self) -> int | None:
        return None if self.receipt is None else self.receipt.inbox_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RuntimeEvent:
        if self._events is None:
            raise RuntimeError(NOT_ENTERED)
        if self._ended:
            raise StopAsyncIteration
        if self.receipt is None or self._timeout is None:
            return await self._next()
        with trio.move_on_at(self._deadline):
            return await self._next()
        raise ReplyTimeout(f"there was no reply within {self._timeout:g} seconds", self.receipt)

    async def _next(self) -> RuntimeEvent:
        assert self._events is not None
        async for envelope in self._events:
            event = envelope.event
            if isinstance(event, TurnEnded):
                if self._inbox_id in event.inbox_ids:
                    return await self._last()
            elif self._is_ours(envelope):
                self._bus.on_received(event)
                return event
        if self._request.answered:
            return await self._last()
        raise ActorStopped("the runtime ended before the reply")

    def take_ready(self) -> list[RuntimeEvent]:
        """Return the events that have arrived before the last one, without waiting."""
        if self._events is None or self._ended:
            return []
        ready = self._events.take_ready(before=(TurnEnded,))
        events = [envelope.event for envelope in ready if self._is_ours(envelope)]
        for event in events:
            self._bus.on_received(event)
        return events

    async def _last(self) -> TurnEnded:
        self._ended = True
        self._open.close()
        self.reply = await self._request.wait()
        last = TurnEnded(self.reply)
        self._bus.on_received(last)
        return last

    def _is_ours(self, envelope: Envelope) -> bool:
        event = envelope.event
        if isinstance(event, TurnStarted | Steered) and self._inbox_id in event.inbox_ids:
            self._turn_id = envelope.turn_id
        return self._turn_id is not None and envelope.turn_id == self._turn_id

    async def aclose(self) -> None:
        """Stop receiving. The turn goes on, or is interrupted if that was asked for."""
        self._open.close()
        if self._interrupt is not None and not self._ended and self._inbox_id is not None:
            await self._interrupt(self._inbound.session_key, self._inbox_id)
        else:
            await trio.lowlevel.checkpoint()
        self._ended = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()
