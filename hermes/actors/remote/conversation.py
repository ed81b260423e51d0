"""A conversation that another node serves, as the listeners on this node see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from hermes.actors.remote.frames import Ended, FeedId, Item, Published
from hermes.actors.remote.items import Items, missing
from hermes.actors.remote.turn import RemoteTurn
from hermes.events import (
    AgentEvent,
    MessageAccepted,
    MessageWaiting,
    RuntimeEvent,
    Steered,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import MessageOutcome

MAX_HELD = 100
"""Frames that wait until the end of a turn has been read from the database."""
REMEMBERED = 1000
"""Messages whose end was published, so that it is not published again."""
OF_TURNS = (*get_args(AgentEvent), Steered)
"""Events that `RunningTurn.published_events` has."""
Publish: TypeAlias = Callable[[int | None, RuntimeEvent], None]


class Position(msgspec.Struct, frozen=True, order=True):
    """A feed, and the number of an event in it."""

    feed: FeedId
    number: int


class RemoteConversation:
    """Puts the frames of the owner in order, and publishes each event once.

    Since the last `TurnStarted`, what it has published is always the beginning of what the owner
    has published. The end of a turn is published when `settle` brings its reply from the database;
    what follows it waits meanwhile.
    """

    def __init__(
        self,
        key: str,
        publish: Publish,
        wall: Callable[[], float],
        ended: deque[int] | None = None,
    ) -> None:
        self.key = key
        self._publish = publish
        self._wall = wall
        self.turn: RemoteTurn | None = None
        """The running turn."""
        self.position: Position | None = None
        """The last event that was received; None before the first state."""
        self._target: Position | None = None
        """The last event of which this node knows."""
        self.open: set[int] = set()
        """Messages of which this node knows, and whose end was not published."""
        self.reading: tuple[int, ...] = ()
        """Messages whose outcomes must be read before anything else is published."""
        self._dropped_by: int | None = None
        self._held: deque[Published] = deque()
        """Frames that wait for these outcomes."""
        self._ended: deque[int] = deque(maxlen=REMEMBERED) if ended is None else ended
        """Messages whose end was published."""

    @property
    def behind(self) -> bool:
        """Whether the owner must be asked for what is missing."""
        if self.reading or self.position is None:
            return not self.reading
        return self._target is not None and self.position < self._target

    @property
    def source(self) -> int | None:
        """The node that can be asked for what is missing; None if nothing was ever received."""
        return None if self._target is None else self._target.feed.node

    # From the owner

    def receive(self, frame: Published) -> None:
        """Take a frame. Frames may be lost, repeated, or in any order."""
        if not self.reading:
            self._process(frame)
        elif len(self._held) < MAX_HELD:
            self._held.append(frame)
        else:
            self._note(frame)
            self._held.clear()  # the owner is asked for them

    def _process(self, frame: Published) -> None:
        self._note(frame)
        position = self.position
        if frame.whole:
            if position is None or position <= Position(frame.feed, frame.before):
                self._take_state(frame)
        elif position is not None and position.feed == frame.feed:
            skipped = position.number - frame.before
            if skipped >= 0:  # else something is missing before
                self._take(frame, frame.items[skipped:])

    def _note(self, frame: Published) -> None:
        count = 0 if frame.whole else len(frame.items)
        end = Position(frame.feed, frame.before + count)
        self._target = end if self._target is None else max(self._target, end)

    def _take(self, frame: Published, items: Sequence[Item]) -> None:
        """Publish the next events, up to the end of a turn."""
        for at, item in enumerate(items, 1):
            number = frame.before + len(frame.items) - len(items) + at
            self.position = Position(frame.feed, number)
            if isinstance(item.event, Ended):
                if self._look_up(item.event.inbox_ids):
                    self._dropped_by = item.event.dropped_by
                    rest = replace(frame, before=number, items=items[at:])
                    self._held.appendleft(rest)
                    return
            else:
                self._pass_on(item, item.event)

    def _take_state(self, frame: Published) -> None:
        """Publish what is missing to the state of the owner."""
        announced = [item for item in frame.items if item.turn_id is None]
        items = [item for item in frame.items if item.turn_id is not None]
        turn_id = items[0].turn_id if items else None
        if self.turn is not None and self.turn.turn_id != turn_id:
            # Its end is not known here.
            ids, self.turn = self.turn.inbox_ids, None
            if self._look_up(ids):
                self._held.appendleft(frame)
                return
        self.position = Position(frame.feed, frame.before)
        seen = [] if self.turn is None else self.turn.items
        fresh = None if seen is None else missing(seen, Items(items).take())
        for item in [*announced, *(items if fresh is None else fresh)]:
            assert not isinstance(item.event, Ended)
            self._pass_on(item, item.event)
        if self.turn is not None and frame.started_at is not None:
            self.turn.started_at = frame.started_at

    def _pass_on(self, item: Item, event: RuntimeEvent) -> None:
        """Publish an event, unless the end of its turn was published."""
        if isinstance(event, MessageWaiting | MessageAccepted):
            if event.inbox_id in self._ended:
                return
            self.open.add(event.inbox_id)
        elif isinstance(event, TurnStarted):
            if item.turn_id in self._ended:
                return
            self.turn = RemoteTurn(item, event, self._wall())
            self.open.update(event.inbox_ids)
        elif isinstance(event, OF_TURNS):
            if self.turn is None or self.turn.turn_id != item.turn_id:
                return
            self.turn.add(item)
            self.open.update(self.turn.inbox_ids)
        self._publish(item.turn_id, event)

    # From the database

    def _look_up(self, inbox_ids: Collection[int]) -> bool:
        """Wait for the outcomes of these messages, unless their end was published."""
        self.reading = tuple([each for each in inbox_ids if each not in self._ended])
        return bool(self.reading)

    def settle(self, looked_up: Collection[int], outcomes: Sequence[MessageOutcome]) -> None:
        """Publish the ends of turns. `outcomes` is what the database says about these messages.

        A message that the database does not know has ended, too.
        """
        still_open = {each.receipt.inbox_id for each in outcomes if each.state == "open"}
        fresh = set(looked_up) - still_open - set(self._ended)
        read = set(self.reading).intersection(looked_up)
        self._ended.extend(sorted(fresh))
        self.open -= fresh
        if self.turn is not None and self.turn.turn_id in fresh | read:
            self.turn = None
        for end in ends_of([each for each in outcomes if each.receipt.inbox_id in fresh]):
            dropped_by = self._dropped_by if read.issuperset(end.inbox_ids) else None
            self._publish(end.reply.turn_id, replace(end, dropped_by=dropped_by))
        if self.reading and len(read) == len(self.reading):
            self._go_on()

    def _go_on(self) -> None:
        self.reading, self._dropped_by = (), None
        while self._held and not self.reading:
            self._process(self._held.popleft())


def ends_of(outcomes: Sequence[MessageOutcome]) -> list[TurnEnded]:
    """Return the ends of the turns that have answered these messages."""
    ends: dict[int, TurnEnded] = {}
    for outcome in outcomes:
        if (reply := outcome.reply) is not None:
            before = ends.get(reply.turn_id)
            ids = (*(() if before is None else before.inbox_ids), outcome.receipt.inbox_id)
            ends[reply.turn_id] = TurnEnded(reply, ids, outcome.identity[0])
    return [*ends.values()]
