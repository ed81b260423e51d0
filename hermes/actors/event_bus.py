"""The event bus: subscribers to events, and callers that wait for the reply to a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TypeAlias

import attrs
import trio
from msgspec.structs import replace
from outcome import Error

from hermes.actors.kernel.mailbox import Request, refuse
from hermes.background import set_event
from hermes.errors import StoreFailed
from hermes.events import (
    Envelope,
    MessageAccepted,
    MessageWaiting,
    ReasoningDelta,
    RuntimeEvent,
    Steered,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Inbound, InboxRow, MessageOutcome, Reply
from hermes.sanitize import encodable

BEHIND = 100
"""Once this many events are unread, deltas of the same turn are joined."""
MAX_BUFFERED = 1000
KEPT = (TextDelta, TurnStarted, Steered, TurnEnded)
"""Events that a reader needs to get the whole answer."""
TurnKey: TypeAlias = tuple[str, int | None]
Identity: TypeAlias = tuple[str, str, str, str]
EventCallback: TypeAlias = Callable[[Envelope], None]
Announcement: TypeAlias = MessageWaiting | MessageAccepted


class Subscription:
    """Events for one subscriber, in order.

    For a subscriber that falls behind, adjacent deltas of a turn are joined, so that no text is
    lost. If a thousand other events wait, the oldest are dropped; `lost` counts them. Iterating
    ends when the runtime ends, and raises `StoreFailed` if the store has failed.
    """

    def __init__(
        self,
        bus: EventBus,
        session_key: str | None,
        callback: EventCallback | None = None,
        *,
        deltas: bool = True,
        until: Request[Reply] | None = None,
        announced: type[Announcement] | None = None,
    ) -> None:
        self._bus = bus
        # A log does not show questions to a user, and a stream notes itself what it does.
        self._shows = session_key is not None and deltas and until is None
        self._until = until
        self._key = session_key
        self.announced = announced
        self._callback = callback
        self._deltas = deltas
        self._events: deque[_Unread] = deque()
        self._latest: dict[TurnKey, _Unread] = {}
        """The newest unread event of each turn."""
        self._arrived = trio.Event()
        self._closed = False
        self._failure: StoreFailed | None = None
        self.lost: int = 0

    def offer(self, envelope: Envelope) -> None:
        """Take an event, if this subscriber wants it."""
        if self._key not in {None, envelope.session_key}:
            return
        if not self._deltas and _is_delta(envelope):
            return
        if self._callback is not None:
            self._callback(envelope)
            self._note_received(envelope)
            return
        if len(self._events) >= BEHIND:
            latest = self._latest.get((envelope.session_key, envelope.turn_id))
            if latest is not None and latest.join(envelope.event):
                return
        if len(self._events) >= MAX_BUFFERED:
            self._make_room()
        unread = _Unread(envelope)
        self._latest[unread.turn] = unread
        self._events.append(unread)
        set_event(self._arrived)

    def _note_received(self, envelope: Envelope) -> None:
        if self._shows:
            self._bus.on_received(envelope.event)

    def _make_room(self) -> None:
        """Drop the oldest event that is neither text nor the start or end of a turn.

        If there is none, join two texts of a turn.
        """
        for index, unread in enumerate(self._events):
            if not isinstance(unread.envelope.event, KEPT):
                self._drop(index)
                return
        before: dict[TurnKey, _Unread] = {}
        for index, unread in enumerate(self._events):
            previous = before.get(unread.turn)
            if previous is not None and previous.absorb(unread):
                del self._events[index]
                if self._latest.get(unread.turn) is unread:
                    self._latest[unread.turn] = previous
                return
            before[unread.turn] = unread
        # A text or a start: without its end, a stream would never end.
        kinds = [isinstance(unread.envelope.event, TurnEnded) for unread in self._events]
        self._drop(0 if all(kinds) else kinds.index(False))

    def _drop(self, index: int) -> None:
        self._take(index)
        self.lost += 1
        self._bus.lost += 1

    def _take(self, index: int) -> Envelope:
        unread = self._events[index]
        del self._events[index]
        if self._latest.get(unread.turn) is unread:
            del self._latest[unread.turn]
        return unread.whole()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope:
        while not self._events:
            if self._closed or (self._until is not None and self._until.answered):
                raise self._end()
            self._arrived = trio.Event()
            await self._arrived.wait()
        envelope = self._take(0)
        self._note_received(envelope)
        return envelope

    def _end(self) -> Exception:
        if self._failure is None or self._until is not None:  # a stream asks its request
            return StopAsyncIteration()
        return StoreFailed(*self._failure.args)

    def take_ready(self, *, before: tuple[type[RuntimeEvent], ...] = ()) -> list[Envelope]:
        """Return the events that have arrived, without waiting; only those before these types."""
        ready = []
        while self._events and not isinstance(self._events[0].envelope.event, before):
            ready.append(self._take(0))
            self._note_received(ready[-1])
        return ready

    def wake(self) -> None:
        """Let the reader look again whether there is anything to wait for."""
        set_event(self._arrived)

    def close(self) -> None:
        """Stop receiving. Events that have arrived can still be read."""
        self._closed = True
        self._bus.unsubscribe(self)
        set_event(self._arrived)

    def fail(self, error: StoreFailed) -> None:
        """Stop receiving; after the events that have arrived, the reader gets the error."""
        self._failure = error
        self.close()

    async def aclose(self) -> None:
        """Same as `close`, for `async with`."""
        self.close()
        await trio.lowlevel.checkpoint()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _is_delta(envelope: Envelope) -> bool:
    return isinstance(envelope.event, TextDelta | ReasoningDelta)


@attrs.define(eq=False)
class _Unread:
    """An event that waits for its subscriber, with the deltas that were joined to it."""

    envelope: Envelope
    _later: list[str] | None = None

    @property
    def turn(self) -> TurnKey:
        """The turn that the event belongs to."""
        return self.envelope.session_key, self.envelope.turn_id

    def absorb(self, other: _Unread) -> bool:
        """Add another unread delta and what was joined to it; False if that is not possible."""
        if not self.join(other.envelope.event):
            return False
        assert self._later is not None
        self._later += other._later or []
        return True

    def join(self, event: RuntimeEvent) -> bool:
        """Add the next delta of the same turn; False if it must be a separate event."""
        if type(event) is not type(self.envelope.event):
            return False
        if not isinstance(event, TextDelta | ReasoningDelta):
            return False
        if isinstance(event, TextDelta) and event.restart:
            return False
        self._later = self._later or []
        self._later.append(f"{event.text}")
        return True

    def whole(self) -> Envelope:
        """Return the event with the text of all its deltas."""
        event = self.envelope.event
        if self._later is None or not isinstance(event, TextDelta | ReasoningDelta):
            return self.envelope
        text = "".join([f"{event.text}", *self._later])
        return replace(self.envelope, event=replace(event, text=text))


class EventBus:
    """Publishes events to subscribers and replies to waiting callers. Nothing here waits."""

    def __init__(
        self,
        on_reply: Callable[[Reply], None],
        on_received: Callable[[RuntimeEvent], None] = lambda _: None,
    ) -> None:
        self._on_reply = on_reply
        self.on_received = on_received
        """Called with each event that the host of one conversation receives."""
        self._subscriptions: dict[Subscription, None] = {}
        self._waiting: dict[Identity, list[Request[Reply]]] = {}
        self._closed = False
        self.followers: int = 0
        """How many subscribers want to know of messages before their turn."""
        self.seq: int = 0
        """The number of the last event."""
        self.lost: int = 0
        """Events that subscribers did not get, because they read too slowly."""

    @property
    def subscribers(self) -> int:
        """How many subscriptions there are."""
        return len(self._subscriptions)

    # Events

    def subscribe(
        self,
        session_key: str | None = None,
        callback: EventCallback | None = None,
        *,
        deltas: bool = True,
        until: Request[Reply] | None = None,
    ) -> Subscription:
        """Receive events from now on, of one conversation or of all."""
        return self.add(Subscription(self, session_key, callback, deltas=deltas, until=until))

    def follow(
        self,
        session_key: str,
        subscription: Subscription,
        so_far: Iterable[tuple[int, RuntimeEvent]],
    ) -> Subscription:
        """Add a subscriber of a conversation that receives these events first, each with its turn.

        Nothing is missed or repeated if `so_far` was taken without a checkpoint before this call.
        """
        for turn_id, event in so_far:
            subscription.offer(Envelope(self.seq, session_key, turn_id, encodable(event)))
        return self.add(subscription)

    def add(self, subscription: Subscription) -> Subscription:
        """Add a subscription; it has ended already if the runtime has."""
        self._subscriptions[subscription] = None
        self.followers += subscription.announced is not None
        if self._closed:
            subscription.close()
        return subscription

    def announce(self, session_key: str, event: Announcement) -> None:
        """Hand an event to the subscribers that want to know of messages in this form."""
        envelope = Envelope(self.seq, session_key, None, event)
        for subscription in list(self._subscriptions):
            if subscription.announced is type(event):
                subscription.offer(envelope)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription; removing it twice does nothing."""
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            self.followers -= subscription.announced is not None

    def publish(self, session_key: str, turn_id: int | None, event: RuntimeEvent) -> None:
        """Hand an event to every subscriber."""
        self.seq += 1
        if self._subscriptions:
            envelope = Envelope(self.seq, session_key, turn_id, encodable(event))
            for subscription in list(self._subscriptions):
                subscription.offer(envelope)

    # Replies

    def expect(self, identity: Identity) -> Request[Reply]:
        """Register a caller before its message is accepted, so that no reply is missed."""
        request: Request[Reply] = Request()
        self._waiting.setdefault(identity, []).append(request)
        return request

    @property
    def waiting(self) -> int:
        """How many messages have callers that wait for their reply."""
        return len(self._waiting)

    def forget(self, identity: Identity, request: Request[Reply]) -> None:
        """Remove a caller that no longer waits."""
        waiting = self._waiting.get(identity)
        if waiting is not None and request in waiting:
            waiting.remove(request)
            if not waiting:
                del self._waiting[identity]

    def reply(self, rows: Sequence[InboxRow], reply: Reply, dropped_by: int | None = None) -> None:
        """Give the reply to the callers of these messages, and publish the end of their turn.

        `dropped_by` is the command that cancelled the messages before their turn.
        """
        for row in rows:
            self._answer(row.inbound, reply)
        self._on_reply(reply)
        first, ids = rows[0].inbound, tuple([row.inbox_id for row in rows])
        event = TurnEnded(reply, ids, first.source.platform, dropped_by)
        self.publish(first.session_key, reply.turn_id, event)

    def fail(self, inbound: Inbound, error: Exception) -> None:
        """Tell the callers of a message that it gets no reply."""
        self._answer(inbound, Error(error))
        for subscription in self._subscriptions:
            subscription.wake()

    def _answer(self, inbound: Inbound, answer: Reply | Error) -> None:
        """Answer the callers of a message, and forget them once all are answered.

        If it was submitted, or stored by an earlier version, a caller of `ask` who repeats it
        waits for it in the scope of its conversation.
        """
        self._answer_as(inbound.identity, answer)
        if not inbound.per_conversation:
            self._answer_as((*inbound.identity[:3], inbound.session_key), answer)

    def _answer_as(self, identity: Identity, answer: Reply | Error) -> None:
        for request in self._waiting.get(identity, ()):
            request.answer(answer)
        self._waiting.pop(identity, None)

    def settle(self, outcome: MessageOutcome, answer: Reply | Error) -> None:
        """Answer the callers of a closed message that its actor failed to answer."""
        receipt, first = outcome.receipt, outcome.identity
        names = [first, (*first[:3], receipt.session_key)]
        if not any(name in self._waiting for name in names):
            return  # the reply was given and published
        for name in names:
            self._answer_as(name, answer)
        if isinstance(answer, Reply):
            event = TurnEnded(answer, (receipt.inbox_id,), first[0])
            self.publish(receipt.session_key, answer.turn_id, event)

    def close(self, error: Exception) -> None:
        """End all subscriptions, and fail all waiting callers with a copy of the error."""
        self._closed = True
        for requests in self._waiting.values():
            refuse(requests, error)
        self._waiting = {}
        for subscription in list(self._subscriptions):
            if isinstance(error, StoreFailed):
                subscription.fail(error)
            else:
                subscription.close()
