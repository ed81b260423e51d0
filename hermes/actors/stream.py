"""A message, and the events until its reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import trio

from hermes.actors.event_bus import EventBus
from hermes.actors.kernel.mailbox import Request
from hermes.errors import ActorStopped
from hermes.events import Envelope, RuntimeEvent, Steered, TurnEnded, TurnStarted
from hermes.messages import Accepted, Inbound, Reply


class Stream:
    """The events of one message, in order. The last one is `TurnEnded`, with the reply.

    Use it with `async with` and `async for`. The message is sent when the iteration starts. Leaving
    the block early detaches: the turn goes on without a listener, or is interrupted if the stream
    was opened with `interrupt_on_exit`. After the last event, `reply` is the reply.
    """

    def __init__(
        self,
        inbound: Inbound,
        accept: Callable[[Inbound, Request[Reply]], Awaitable[Accepted]],
        bus: EventBus,
        interrupt: Callable[[str, int], Awaitable[bool]] | None,
    ) -> None:
        self._inbound = inbound
        self._accept = accept
        self._bus = bus
        self._events = bus.subscribe(inbound.session_key)
        self._request = bus.expect(inbound.identity)
        self._interrupt = interrupt
        self._inbox_id: int | None = None
        self._turn_id: int | None = None
        self._ended = False
        self.reply: Reply | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RuntimeEvent:
        if self._ended:
            raise StopAsyncIteration
        if self._inbox_id is None:
            self._inbox_id = (await self._accept(self._inbound, self._request)).receipt.inbox_id
        async for envelope in self._events:
            event = envelope.event
            if isinstance(event, TurnEnded):
                if self._inbox_id in event.inbox_ids:
                    return await self._last()
            elif self._is_ours(envelope):
                return event
        if self._request.answered:
            return await self._last()
        raise ActorStopped("the runtime ended before the reply")

    async def _last(self) -> TurnEnded:
        self._ended = True
        self._events.close()
        self.reply = await self._request.wait()
        return TurnEnded(self.reply)

    def _is_ours(self, envelope: Envelope) -> bool:
        event = envelope.event
        if isinstance(event, TurnStarted | Steered) and self._inbox_id in event.inbox_ids:
            self._turn_id = envelope.turn_id
        return self._turn_id is not None and envelope.turn_id == self._turn_id

    async def aclose(self) -> None:
        """Stop receiving. The turn goes on, or is interrupted if that was asked for."""
        self._events.close()
        self._bus.forget(self._inbound.identity, self._request)
        if self._interrupt is not None and not self._ended and self._inbox_id is not None:
            await self._interrupt(self._inbound.session_key, self._inbox_id)
        else:
            await trio.lowlevel.checkpoint()
        self._ended = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()
