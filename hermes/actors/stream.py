"""A message, and what happens until its reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import trio

from hermes.actors.event_bus import EventBus, ReplyWaiters
from hermes.actors.kernel.mailbox import Request
from hermes.errors import ActorStopped
from hermes.events import Envelope, RuntimeEvent, Steered, TurnEnded, TurnStarted
from hermes.messages import Accepted, Inbound, Reply


class Stream:
    """The events of one message, in order; the last one has the reply.

    Leaving it early detaches: the turn goes on without a listener, unless `stop` was given.
    """

    def __init__(
        self,
        inbound: Inbound,
        accept: Callable[[Inbound, Request[Reply]], Awaitable[Accepted]],
        bus: EventBus,
        waiters: ReplyWaiters,
        stop: Callable[[str, int], Awaitable[bool]] | None,
    ) -> None:
        self._inbound = inbound
        self._accept = accept
        self._heard = bus.listen(inbound.session_key)
        self._waiters = waiters
        self._request = waiters.expect(inbound.identity)
        self._stop = stop
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
        async for envelope in self._heard:
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
        self._heard.close()
        self.reply = await self._request.wait()
        return TurnEnded(self.reply)

    def _is_ours(self, envelope: Envelope) -> bool:
        event = envelope.event
        if isinstance(event, TurnStarted | Steered) and self._inbox_id in event.inbox_ids:
            self._turn_id = envelope.turn_id
        return self._turn_id is not None and envelope.turn_id == self._turn_id

    async def aclose(self) -> None:
        """Hear no more; the turn goes on, or is stopped if that was asked for."""
        self._heard.close()
        self._waiters.forget(self._inbound.identity, self._request)
        if self._stop is not None and not self._ended and self._inbox_id is not None:
            await self._stop(self._inbound.session_key, self._inbox_id)
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
