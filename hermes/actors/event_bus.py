"""The event bus: subscribers to events, and callers that wait for the reply to a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from outcome import Error

from hermes.actors.kernel.mailbox import Request, refuse
from hermes.actors.kernel.subscription import (
    BEHIND as BEHIND,
    MAX_BUFFERED as MAX_BUFFERED,
    Announcement,
    EventCallback as EventCallback,
    Subscription as Subscription,
)
from hermes.errors import StoreFailed
from hermes.events import (
    Envelope,
    MessageAccepted,
    MessageWaiting,
    RuntimeEvent,
    TurnEnded,
)
from hermes.messages import Claim, Inbound, InboxRow, MessageOutcome, Receipt, Reply
from hermes.sanitize import encodable

Identity: TypeAlias = tuple[str, str, str, str]


class OtherNodes(Protocol):
    """The nodes of a cluster that serve other conversations, as the bus sees them."""

    def begin(self, session_key: str, /) -> None:
        """Note that somebody listens to a conversation, whoever serves it."""

    def end(self, session_key: str, /) -> None:
        """Note that a listener has left."""

    def expect(self, receipt: Receipt, identity: Identity, claim: Claim | None, /) -> None:
        """Note that a caller waits for the reply to a message."""

    def ended(self, session_key: str, inbox_ids: Sequence[int], /) -> None:
        """Note that this node has answered messages."""


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
        self.other_nodes: OtherNodes | None = None
        """The other nodes of a cluster; None if this process serves every conversation."""
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
        elif subscription.session_key is not None and not subscription.is_of_stream:
            self.include(subscription, subscription.session_key)
        return subscription

    def include(self, subscription: Subscription, session_key: str) -> None:
        """Let a subscription receive the events of a conversation that another node serves."""
        nodes = self.other_nodes
        if nodes is None or session_key in subscription.included:
            return
        if subscription in self._subscriptions:
            subscription.included.add(session_key)
            nodes.begin(session_key)

    def exclude(self, subscription: Subscription, session_key: str) -> None:
        """Take back `include`."""
        if self.other_nodes is not None and session_key in subscription.included:
            subscription.included.discard(session_key)
            self.other_nodes.end(session_key)

    def announce(self, session_key: str, event: Announcement) -> None:
        """Hand an event to the subscribers that want to know of messages in this form."""
        envelope = Envelope(self.seq, session_key, None, event)
        for subscription in list(self._subscriptions):
            if subscription.announced is not None and isinstance(event, subscription.announced):
                subscription.offer(envelope)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a subscription; removing it twice does nothing."""
        if subscription in self._subscriptions:
            for session_key in [*subscription.included]:
                self.exclude(subscription, session_key)
            del self._subscriptions[subscription]
            self.followers -= subscription.announced is not None

    def publish(self, session_key: str, turn_id: int | None, event: RuntimeEvent) -> None:
        """Hand an event to every subscriber."""
        self.seq += 1
        if self._subscriptions:
            envelope = Envelope(self.seq, session_key, turn_id, encodable(event))
            for subscription in list(self._subscriptions):
                subscription.offer(envelope)

    def publish_remote(self, session_key: str, turn_id: int | None, event: RuntimeEvent) -> None:
        """Hand an event from another node to those who listen to this conversation."""
        announces = isinstance(event, MessageWaiting | MessageAccepted)
        self.seq += not announces
        envelope = Envelope(self.seq, session_key, turn_id, event)
        for subscription in list(self._subscriptions):
            wanted = not announces or isinstance(event, subscription.announced or ())
            if wanted and session_key in subscription.included:
                subscription.offer(envelope)

    # Replies

    def expect(self, identity: Identity) -> Request[Reply]:
        """Register a caller before its message is accepted, so that no reply is missed."""
        request: Request[Reply] = Request()
        self._waiting.setdefault(identity, []).append(request)
        return request

    def await_reply(
        self, receipt: Receipt, identity: Identity, request: Request[Reply], claim: Claim | None
    ) -> None:
        """Have an accepted message looked up if another node answers it.

        `claim` says who serves its conversation, if that is known.
        """
        if self.other_nodes is not None and not request.answered:
            self.other_nodes.expect(receipt, identity, claim)

    def is_awaited(self, identity: Identity) -> bool:
        """Whether a caller waits for the reply to a message."""
        return identity in self._waiting

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
        if self.other_nodes is not None:
            self.other_nodes.ended(first.session_key, ids)
        event = TurnEnded(reply, ids, first.source.platform, dropped_by)
        self.publish(first.session_key, reply.turn_id, event)

    def fail(self, inbound: Inbound, error: Exception) -> None:
        """Tell the callers of a message that it gets no reply."""
        self._answer(inbound, Error(error))
        self.wake_streams()

    def wake_streams(self) -> None:
        """Let streams see that their callers were answered."""
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
        if self.answer(outcome, answer) and isinstance(answer, Reply):  # else it was published
            receipt = outcome.receipt
            event = TurnEnded(answer, (receipt.inbox_id,), outcome.identity[0])
            self.publish(receipt.session_key, answer.turn_id, event)

    def answer(self, outcome: MessageOutcome, answer: Reply | Error) -> bool:
        """Answer the callers of a closed message; publish nothing. Returns whether any waited."""
        first = outcome.identity
        names = [first, (*first[:3], outcome.receipt.session_key)]
        waited = any(name in self._waiting for name in names)
        for name in names if waited else ():
            self._answer_as(name, answer)
        return waited

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
