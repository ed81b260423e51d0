"""What one subscriber receives: a bounded queue of events, in which text is never dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import UnionType
from typing import Protocol, Self, TypeAlias

import attrs
import trio
from msgspec.structs import replace

from hermes.actors.kernel.mailbox import Request
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
from hermes.messages import Reply

BEHIND = 100
"""Once this many events are unread, deltas of the same turn are joined."""
MAX_BUFFERED = 1000
KEPT = (TextDelta, TurnStarted, Steered, TurnEnded)
"""Events that a reader needs to get the whole answer."""
TurnKey: TypeAlias = tuple[str, int | None]
EventCallback: TypeAlias = Callable[[Envelope], None]
Announcement: TypeAlias = MessageWaiting | MessageAccepted
Announced: TypeAlias = type[Announcement] | UnionType
"""In which form a subscriber wants to know of messages before their turn; a union is both."""


class Bus(Protocol):
    """Where the events come from."""

    lost: int
    on_received: Callable[[RuntimeEvent], None]

    def unsubscribe(self, subscription: Subscription, /) -> None: ...
    def include(self, subscription: Subscription, session_key: str, /) -> None: ...
    def exclude(self, subscription: Subscription, session_key: str, /) -> None: ...


class Subscription:
    """Events for one subscriber, in order.

    For a subscriber that falls behind, adjacent deltas of a turn are joined, so that no text is
    lost. If a thousand other events wait, the oldest are dropped; `lost` counts them. Iterating
    ends when the runtime ends, and raises `StoreFailed` if the store has failed.
    """

    def __init__(
        self,
        bus: Bus,
        session_key: str | None,
        callback: EventCallback | None = None,
        *,
        deltas: bool = True,
        until: Request[Reply] | None = None,
        announced: Announced | None = None,
    ) -> None:
        self._bus = bus
        # A log does not show questions to a user, and a stream notes itself what it does.
        self._shows = session_key is not None and deltas and until is None
        self._until = until
        self._key = session_key
        self.announced: Announced | None = announced
        self.included: set[str] = set()
        """The conversations whose events it also receives while another node serves them."""
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

    @property
    def session_key(self) -> str | None:
        """The conversation whose events it receives; None for those of all."""
        return self._key

    @property
    def is_of_stream(self) -> bool:
        """Whether it ends with the reply to a message."""
        return self._until is not None

    def include(self, session_key: str) -> None:
        """Receive the events of a conversation also while another node of a cluster serves it.

        A subscription to one conversation does so from the start.
        """
        self._bus.include(self, session_key)

    def exclude(self, session_key: str) -> None:
        """Take back `include`."""
        self._bus.exclude(self, session_key)

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
