"""The owner's side: sends the events of conversations to the nodes that have listeners for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import trio

from hermes.actors.event_bus import EventBus
from hermes.actors.kernel.subscription import Subscription
from hermes.actors.remote.feed import Feed, Feeds
from hermes.actors.remote.frames import (
    Answered,
    Awaiting,
    Ended,
    Frame,
    Item,
    Listening,
    Missing,
    Published,
    item_of,
)
from hermes.actors.remote.registrations import Registrations
from hermes.actors.remote.this_node import ThisNode
from hermes.background import set_event
from hermes.events import Envelope, MessageAccepted, MessageWaiting, TurnEnded

TICK = 0.05
"""Seconds between two sends of what has been published meanwhile."""
REPEATED = 10.0
"""Seconds after its last event for which the position of a feed is repeated."""
MAX_AWAITED = 10_000
"""Messages that other nodes wait for, and messages that were answered, of which it knows."""


class Relay:
    """Numbers and sends the events of the conversations that this node serves.

    Nothing here waits, and nobody waits for it: if what it sends is lost, listeners ask for it.
    """

    def __init__(self, bus: EventBus, this_node: ThisNode) -> None:
        self._bus = bus
        self._this_node = this_node
        self._send = this_node.send
        self._registrations = Registrations()
        self._served: dict[str, int] = {}
        """The fence of each conversation that this node serves."""
        self._feeds = Feeds(this_node.node)
        self._flushed: dict[str, float] = {}
        """When the feeds that were active lately were flushed last."""
        self._awaiting: OrderedDict[int, set[int]] = OrderedDict()
        """For each message the nodes on which callers wait for its reply."""
        self._ended: OrderedDict[int, None] = OrderedDict()
        """The messages that were answered lately."""
        self._subscription: Subscription | None = None
        self._dirty = trio.Event()

    # What this node serves

    def serve(self, session_key: str, fence: int) -> None:
        """Begin with a conversation, before its first event."""
        self._served[session_key] = fence
        self._publish_state(session_key, self._registrations.nodes(session_key))

    def leave(self, session_key: str) -> None:
        """End with a conversation."""
        self._served.pop(session_key, None)
        self._close(session_key)

    def ended(self, session_key: str, inbox_ids: Sequence[int]) -> None:
        """Tell the nodes that wait for the replies to these messages.

        One that listens to the conversation learns it from the feed, after what was said before.
        """
        self._ended.update(dict.fromkeys(inbox_ids))
        while len(self._ended) > MAX_AWAITED:
            self._ended.popitem(last=False)
        nodes: set[int] = set()
        for inbox_id in inbox_ids:
            nodes |= self._awaiting.pop(inbox_id, set())
        if self._feeds.find(session_key) is not None:
            nodes.difference_update(self._registrations.nodes(session_key))
        for node in nodes:
            self._send(node, [Answered(inbox_ids)])

    # What other nodes want

    def receive(self, frame: Listening | Missing | Awaiting) -> None:
        """Take what another node says."""
        now = trio.current_time()
        match frame:
            case Listening(node, keys, begins):
                for key in keys:
                    if begins:
                        self._registrations.add(node, key, now)
                        self._publish_state(key, [node])
                    else:
                        self._registrations.remove(node, key)
                        self._close_unless_wanted(key)
            case Missing(node, key):
                self._registrations.add(node, key, now)
                self._send_missing(frame)
            case Awaiting(node, inbox_ids):
                self._await(node, inbox_ids)

    def update(self, stored: Iterable[tuple[int, str]]) -> None:
        """Take what the database says about the listeners of other nodes."""
        before = [feed.key for feed in self._feeds]
        for node, key in self._registrations.update(stored, trio.current_time()):
            self._publish_state(key, [node])
        for key in before:
            self._close_unless_wanted(key)

    def _await(self, node: int, inbox_ids: Sequence[int]) -> None:
        if ended := [each for each in inbox_ids if each in self._ended]:
            self._send(node, [Answered(ended)])
        for inbox_id in set(inbox_ids) - set(ended):
            self._awaiting.setdefault(inbox_id, set()).add(node)
        while len(self._awaiting) > MAX_AWAITED:
            self._awaiting.popitem(last=False)

    def _send_missing(self, asked: Missing) -> None:
        feed = self._feeds.find(asked.key)
        if feed is None:
            self._publish_state(asked.key, [asked.node])
            return
        self._flush(feed)
        found = feed.after(asked.feed, asked.after)
        if found is None:
            self._publish_state(asked.key, [asked.node])
        else:
            self._send(asked.node, [found])

    def _publish_state(self, key: str, nodes: Iterable[int]) -> None:
        """Send the state of a conversation, from which its feed goes on."""
        nodes, fence = [*nodes], self._served.get(key)
        state = None if fence is None or not nodes else self._this_node.served.state_of(key)
        if state is None or fence is None:
            return
        feed = self._feeds.find(key)
        if feed is None:
            feed = self._feeds.open(key, fence)
        else:
            self._flush(feed)
        self._subscribe()
        self._flushed[key] = trio.current_time()
        whole = Published(
            key, feed.id, feed.last, state.items, whole=True, started_at=state.started_at
        )
        self._publish(whole, nodes)

    # Events

    def _subscribe(self) -> None:
        if self._subscription is None:
            announced = MessageWaiting | MessageAccepted
            subscription = Subscription(self._bus, None, self._take, announced=announced)
            self._subscription = self._bus.add(subscription)

    def _close_unless_wanted(self, key: str) -> None:
        if key not in self._registrations:
            self._close(key)

    def _close(self, key: str) -> None:
        self._feeds.close(key)
        self._flushed.pop(key, None)
        if not self._feeds and self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _take(self, envelope: Envelope) -> None:
        """Add an event of this node to its feed. The end of a turn is sent at once."""
        feed, event = self._feeds.find(envelope.session_key), envelope.event
        if feed is None:
            return
        if isinstance(event, TurnEnded):
            feed.add(Item(envelope.turn_id, Ended(event.inbox_ids, event.dropped_by)))
            self._flush(feed)
        elif (item := item_of(envelope.turn_id, event)) is not None:
            feed.add(item)
            set_event(self._dirty)

    def _flush(self, feed: Feed) -> None:
        published = feed.flush()
        if published is not None:
            self._flushed[feed.key] = trio.current_time()
            self._publish(published, self._registrations.nodes(feed.key))

    def _publish(self, published: Published, nodes: Iterable[int]) -> None:
        for node in nodes:
            self._send(node, [published])

    def flush(self) -> None:
        """Send what waits, one list for each node."""
        now, frames = trio.current_time(), dict[int, list[Frame]]()
        for published in self._feeds.flush():
            self._flushed[published.key] = now
            for node in self._registrations.nodes(published.key):
                frames.setdefault(node, []).append(published)
        self._send_lists(frames)

    def repeat_positions(self) -> None:
        """Tell listeners where the feeds are that were active lately.

        So they notice that the last event of a feed was lost.
        """
        since, frames = trio.current_time() - REPEATED, dict[int, list[Frame]]()
        self._flushed = {key: at for key, at in self._flushed.items() if at > since}
        for key in self._flushed:
            feed = self._feeds.find(key)
            if feed is not None:
                for node in self._registrations.nodes(key):
                    frames.setdefault(node, []).append(Published(key, feed.id, feed.last))
        self._send_lists(frames)

    def _send_lists(self, frames: dict[int, list[Frame]]) -> None:
        for node, wanted in frames.items():
            self._send(node, wanted)

    async def run(self) -> None:
        """Background loop: send events soon after they were published."""
        while True:
            await self._dirty.wait()
            self._dirty = trio.Event()
            self.flush()
            await trio.sleep(TICK)
