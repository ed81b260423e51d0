"""The hub: one subscription to the runtime, from which all event streams are served.

An event that says that something was stored is sent together with the changes, which are read from
the store before. What follows it waits meanwhile, so that each listener receives one sequence in
which the stored state and the running turn fit together.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio
from msgspec import UNSET
from msgspec.structs import replace

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.adapters.http.api.streams.changes import NOTHING, Known, snapshot
from hermes.adapters.http.api.streams.channels import Channel, Listener, Numbers
from hermes.adapters.http.api.streams.list_feed import ListFeed
from hermes.adapters.http.api.streams.rendered.channel import Joining, RenderedChannel, Sent
from hermes.adapters.http.api.streams.rendered.renderer import Renderer
from hermes.adapters.http.api.streams.state import ConversationEvent, Snapshot
from hermes.adapters.http.api.streams.waiting import Waiter
from hermes.background import start_soon
from hermes.errors import ActorStopped, StoreFailed
from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    Envelope,
    MessageAccepted,
    MessagePosted,
    RuntimeEvent,
    SessionMoved,
    TitleChanged,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import ConversationView, TurnProgress
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

KEPT = 60.0
"""Seconds for which the events of a conversation are kept after its last listener has left."""
CHECK = 2.0
"""Seconds between two comparisons with the store, which other processes may have changed."""
MAX_QUEUE = 10_000
STORED = (TurnEnded, SessionMoved, TitleChanged, MessagePosted, ApprovalAsked)
"""Events after which the stored state of a conversation is another one."""


class Conversation(Channel):
    """The events of one conversation, and what its listeners know."""

    __slots__ = (
        "known", "queue", "rendered", "session_key", "stamp", "touched", "waiting", "working",
    )  # fmt: skip

    def __init__(self, session_key: str, numbers: Numbers) -> None:
        super().__init__(tag(session_key), numbers)
        self.session_key: str = session_key
        self.known: Known | None = None
        self.stamp: str | None = None
        self.queue: list[Envelope] = []  # an empty deque takes ten times as much memory
        """Events that wait until the store has been read."""
        self.working: bool = False
        self.touched: bool = False
        """Whether the stored state has to be compared."""
        self.waiting: list[Waiter] = []
        """Clients that want to have a snapshot."""
        self.rendered: RenderedChannel | None = None
        """The same events for the web page, while somebody wants them."""

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens."""
        return bool(self.listeners) or (self.rendered is not None and self.rendered.in_use)

    def is_unused(self, since: float) -> bool:
        """Whether nobody has listened since then."""
        rendered = self.rendered
        if rendered is not None and not rendered.in_use and rendered.unused_since < since:
            self.rendered = None
        if self.is_heard or self.working or self.rendered is not None:
            return False
        return self.unused_since < since

    @property
    def last_id(self) -> str:
        """The id of the last event, of this channel or another."""
        return self.event_id(self.numbers.last)

    def restart(self) -> None:
        """Forget everything: each listener gets a new snapshot."""
        self.queue.clear()
        self.known = None
        self.forget()
        if self.rendered is not None:
            self.rendered.restart()

    def take(self, envelope: Envelope, view: ConversationView | None = None) -> None:
        """Send an event to the listeners, with what has changed in the store."""
        event, changes = envelope.event, NOTHING
        if isinstance(event, TurnStarted):
            self.begin_attempt(event.attempt)
        if self.known is not None:
            self.known.receive(event)
            changes = NOTHING if view is None else self.known.update(view)
        self.stamp = self.stamp if view is None else view.stamp
        data = ConversationEvent(
            session_key=self.session_key,
            turn_id=envelope.turn_id,
            event=event,
            changes=UNSET if changes == NOTHING else changes,
        )
        kind = f"{event.__struct_config__.tag}"
        if not isinstance(event, AssistantMessage):
            self.emit(kind, self.session_key, data)
        if self.rendered is not None:
            self.rendered.put(Sent(kind, data))

    def compare(
        self,
        view: ConversationView,
        turn: TurnProgress | None,
        published: Sequence[RuntimeEvent] = (),
    ) -> None:
        """Tell the listeners what is different in the store."""
        self.stamp = view.stamp
        if turn is not None:
            self.begin_attempt(turn.attempt)
        if self.known is None:
            self.known = Known.of(view, turn)
            return
        changes = replace(self.known.update(view), turn=self.known.update_turn(turn))
        if changes != NOTHING:
            event = ConversationEvent(session_key=self.session_key, changes=changes)
            self.emit("changed", self.session_key, event)
            if self.rendered is not None:
                self.rendered.put(Sent("changed", event, published))


class Hub:
    """Serves the event streams of one server."""

    def __init__(
        self,
        runtime: Runtime,
        nursery: trio.Nursery,
        process: str,
        renderer: Renderer | None = None,
    ) -> None:
        self._runtime = runtime
        self._nursery = nursery
        self._numbers = Numbers(process)
        self._conversations: dict[str, Conversation] = {}
        self.list: ListFeed = ListFeed(runtime, nursery, self._numbers)
        self.renderer: Renderer = renderer or Renderer(turns=runtime.api.turns_of_rows)
        self._subscription: Subscription | None = None
        self.closed: bool = False

    # Listeners

    def conversation(self, session_key: str) -> Conversation:
        """Return the channel of a conversation."""
        channel = self._conversations.get(session_key)
        if channel is None:
            channel = self._conversations[session_key] = Conversation(session_key, self._numbers)
            self._subscribe().include(session_key)
        return channel

    def rendered(self, session_key: str) -> RenderedChannel:
        """Return the rendered channel of a conversation."""
        channel = self.conversation(session_key)
        if channel.rendered is None:
            channel.rendered = RenderedChannel(
                session_key, tag(session_key), self._numbers, self._nursery, self.renderer
            )
        return channel.rendered

    @contextmanager
    def listening(self, channel: Channel) -> Iterator[Listener]:
        """Listen to a channel during the block."""
        self._subscribe()
        listener = Listener()
        channel.listeners.add(listener)
        try:
            yield listener
        finally:
            channel.listeners.discard(listener)
            channel.unused_since = trio.current_time()

    def _subscribe(self) -> Subscription:
        if self._subscription is None:
            self.list.forget()  # nobody has noted what changed before
            self._subscription = self._runtime.subscribe(callback=self._receive, messages=True)
            start_soon(self._nursery, self._check)
        return self._subscription

    async def snapshot(self, channel: Conversation, *, rendered: bool = False) -> Snapshot | None:
        """Return the state of a conversation; the events after its id follow from there.

        With `rendered`, they are those of the rendered channel, and the turn has its parts; the
        messages have no nodes yet. Returns None if the server ends.
        """
        if self.closed:
            return None
        waiter = Waiter(rendered)
        channel.waiting.append(waiter)
        self._work(channel)
        await waiter.done.wait()
        return waiter.snapshot

    def touch(self, session_key: str) -> None:
        """Say that a request has changed a conversation."""
        channel = self._conversations.get(session_key)
        if channel is not None:
            channel.touched = True
            self._work(channel)
        self.list.note(session_key)

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        if self._subscription is not None:
            self._subscription.close()
        for channel in (self.list, *self._conversations.values()):
            channel.wake()
        for conversation in self._conversations.values():
            for waiter in conversation.waiting:
                waiter.give(None)
            if conversation.rendered is not None:
                conversation.rendered.close()

    # Events

    def _receive(self, envelope: Envelope) -> None:
        """Take an event of the runtime."""
        event, key = envelope.event, envelope.session_key
        self.list.receive(envelope)
        channel = self._conversations.get(key)
        if channel is None:
            return
        if channel.working or _is_stored(event):
            channel.queue.append(envelope)
            self._work(channel)
        else:
            channel.take(envelope)

    def _work(self, channel: Conversation) -> None:
        if not channel.working:
            channel.working = True
            start_soon(self._nursery, self._run, channel)

    async def _run(self, channel: Conversation) -> None:
        """Send what waits, in order, until nothing does."""
        try:
            while not self.closed and (channel.queue or channel.waiting or channel.touched):
                with contained() as caught:
                    await self._step(channel)
                if isinstance(caught.error, ActorStopped | StoreFailed):
                    self.close()
                elif caught.error is not None:
                    log.error("events of %s were lost", channel.name, exc_info=caught.error)
                    channel.restart()
                    await trio.sleep(CHECK)
        finally:
            channel.working = False

    async def _step(self, channel: Conversation) -> None:
        """Send one event with its changes, or snapshots, after reading the store."""
        if len(channel.queue) > MAX_QUEUE:  # the store was busy for long
            channel.restart()
        while channel.queue and not _is_stored(channel.queue[0].event):
            channel.take(channel.queue.pop(0))
        known = None if channel.known is None else channel.known.rows
        if channel.queue:
            view = await self._runtime.api.view(channel.session_key, known=known)
            envelope = channel.queue.pop(0)
            channel.take(envelope, view)
            if isinstance(envelope.event, ApprovalAsked) and channel.is_heard:
                self._runtime.mark_shown(envelope.event.approval)
        elif channel.waiting or channel.touched:
            # What was published before this line was sent; what is published after it waits.
            turn = self._runtime.api.progress(channel.session_key)
            rendered = channel.rendered is not None
            published = self._runtime.api.turn_events(channel.session_key) if rendered else []
            waiters, channel.touched = [*channel.waiting], False
            view = await self._runtime.api.view(
                channel.session_key, known=None if waiters else known
            )
            channel.compare(view, turn, published)
            channel.waiting = [waiter for waiter in channel.waiting if waiter not in waiters]
            self._give(channel, waiters, snapshot(channel.last_id, view, turn), published)

    def _give(
        self,
        channel: Conversation,
        waiters: list[Waiter],
        state: Snapshot,
        published: Sequence[RuntimeEvent],
    ) -> None:
        for approval in state.approvals if waiters else ():
            self._runtime.mark_shown(approval)
        for waiter in waiters:
            if not waiter.rendered:
                waiter.give(state)
        joining = [waiter for waiter in waiters if waiter.rendered]
        if joining:
            self.rendered(channel.session_key).put(Joining(state, published, joining))

    async def _check(self) -> None:
        """Compare with the store, and forget channels without listeners, until there are none."""
        while True:
            await trio.sleep(CHECK)
            unused = trio.current_time() - KEPT
            for key, channel in [*self._conversations.items()]:
                if channel.is_unused(unused):
                    del self._conversations[key]
                    self._subscribe().exclude(key)
            if not (self._conversations or self.list.listeners) or self.closed:
                if self._subscription is not None:
                    self._subscription.close()
                self._subscription = None
                self.list.rest()
                return
            with contained():  # the store may be busy; the next comparison counts
                await self._compare()
                await self._compare_list()

    async def _compare(self) -> None:
        """Touch the conversations whose stored state is not the one that was read last."""
        used = {key: each for key, each in self._conversations.items() if each.is_heard}
        stamps = await self._runtime.api.stamps([*used])
        for key, channel in used.items():
            if channel.known is not None and channel.stamp != stamps.get(key):
                self.touch(key)

    async def _compare_list(self) -> None:
        if self.list.listeners:
            await self.list.compare()
        else:
            self.list.rest()


def _is_stored(event: RuntimeEvent) -> bool:
    """Whether the stored state of the conversation is another one after this event."""
    if isinstance(event, MessageAccepted):
        return event.decided_call is not None
    return isinstance(event, STORED)


def tag(session_key: str) -> str:
    """Return the name of a conversation in event ids."""
    return hashlib.sha256(session_key.encode()).hexdigest()[:16]
