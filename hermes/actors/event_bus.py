"""Who hears what happens: listeners of events, and askers who wait for a reply."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

import trio

from hermes.actors.kernel.mailbox import Request
from hermes.events import Envelope, ReasoningDelta, RuntimeEvent, TextDelta, TurnEnded
from hermes.messages import Reply

MAX_HEARD = 1000
Identity = tuple[str, str, str]
EventCallback = Callable[[Envelope], None]


class Subscription:
    """Events for one listener, in order. A slow one loses pieces of text first, then the oldest."""

    def __init__(
        self,
        bus: EventBus,
        session_key: str | None,
        call: EventCallback | None = None,
        *,
        pieces: bool = True,
    ) -> None:
        self._bus = bus
        self._key = session_key
        self._call = call
        self._pieces = pieces
        self._events: deque[Envelope] = deque()
        self._arrived = trio.Event()
        self._closed = False
        self.lost = 0

    def offer(self, envelope: Envelope) -> None:
        """Take an event, if it is for this listener."""
        if self._key not in {None, envelope.session_key}:
            return
        if not self._pieces and _is_piece(envelope):
            return
        if self._call is not None:
            self._call(envelope)
            return
        if len(self._events) >= MAX_HEARD:
            self.lost += 1
            if _is_piece(envelope):
                return
            self._shed()
        self._events.append(envelope)
        self._arrived.set()

    def _shed(self) -> None:
        for place, envelope in enumerate(self._events):
            if _is_piece(envelope):
                del self._events[place]
                return
        for place, envelope in enumerate(self._events):
            if not isinstance(envelope.event, TurnEnded):  # without it a stream would never end
                del self._events[place]
                return
        self._events.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._events.popleft()

    def close(self) -> None:
        """Hear no more; what was heard can still be read."""
        self._closed = True
        self._bus.forget(self)
        self._arrived.set()

    async def aclose(self) -> None:
        """`close`, for `async with`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _is_piece(envelope: Envelope) -> bool:
    return isinstance(envelope.event, TextDelta | ReasoningDelta)


class EventBus:
    """All who listen."""

    def __init__(self) -> None:
        self._all: dict[Subscription, None] = {}
        self._seq = 0

    def listen(
        self,
        session_key: str | None = None,
        call: EventCallback | None = None,
        *,
        pieces: bool = True,
    ) -> Subscription:
        """Hear what happens from now on, to one conversation or to all."""
        subscription = Subscription(self, session_key, call, pieces=pieces)
        self._all[subscription] = None
        return subscription

    def forget(self, subscription: Subscription) -> None:
        self._all.pop(subscription, None)

    def publish(self, session_key: str, turn_id: int | None, event: RuntimeEvent) -> None:
        """Tell everybody; never waits."""
        self._seq += 1
        if self._all:
            envelope = Envelope(self._seq, session_key, turn_id, event)
            for subscription in list(self._all):
                subscription.offer(envelope)

    def close(self) -> None:
        """Nothing more will happen."""
        for subscription in list(self._all):
            subscription.close()


class ReplyWaiters:
    """Who waits for the reply to which event."""

    def __init__(self) -> None:
        self._waiting: dict[Identity, list[Request[Reply]]] = {}

    def expect(self, identity: Identity) -> Request[Reply]:
        """Register before the event is accepted, so that no reply is missed."""
        request: Request[Reply] = Request()
        self._waiting.setdefault(identity, []).append(request)
        return request

    def forget(self, identity: Identity, request: Request[Reply]) -> None:
        """The asker waits no more."""
        waiting = self._waiting.get(identity)
        if waiting is not None and request in waiting:
            waiting.remove(request)
            if not waiting:
                del self._waiting[identity]

    def reply(self, identity: Identity, reply: Reply) -> None:
        """Tell whoever asked."""
        for request in self._waiting.pop(identity, ()):
            request.answer(reply)

    def fail(self, identity: Identity, error: Exception) -> None:
        """There will be no reply to this event."""
        for request in self._waiting.pop(identity, ()):
            request.fail(error)

    def fail_all(self, error: Exception) -> None:
        """Nobody will be answered any more."""
        waiting, self._waiting = self._waiting, {}
        for requests in waiting.values():
            for request in requests:
                request.fail(type(error)(*error.args))
