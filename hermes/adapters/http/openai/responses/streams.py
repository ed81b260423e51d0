"""Streams of running responses: numbered frames that any number of clients read.

The frames of a response are built once, while its turn runs. Attempt n has the numbers from
(n - 1) * 1,000,000, or later ones if a client has seen these from an earlier process. On a cluster,
each node that streams a response has a million numbers for it, whatever the attempt. A response
whose frames are not in memory any more is streamed from the store, with numbers from 1,000,000,000,
and as a whole: numbers below that belong to another stream.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
)
from contextlib import contextmanager

import msgspec
import trio

from hermes.adapters.http.connections import COMMENT, KEEP_ALIVE
from hermes.adapters.http.endpoints import Services
from hermes.adapters.http.errors import stopping
from hermes.adapters.http.openai.responses.item_stream import ItemStream, whole_item
from hermes.adapters.http.openai.responses.items import Lost, bodies_of, has_tools
from hermes.adapters.http.openai.responses.objects import FINAL_EVENTS, response_object, status_of
from hermes.adapters.http.openai.responses.outcomes import (
    Outcome,
    lost_items,
    next_block,
    outcome_of,
    recorded,
    rows_of,
    when_ended,
)
from hermes.adapters.http.turns.endings import Ending
from hermes.adapters.http.turns.logs import TurnLog
from hermes.background import set_event, start_soon
from hermes.events import RuntimeEvent, TurnEnded, TurnStarted
from hermes.messages import JsonObject, Reply, StoredMessage, StoredResponse
from hermes.user_code import contained

_logger: logging.Logger = logging.getLogger(__name__)

BLOCK = 1_000_000
"""How many numbers an attempt has."""
FROM_STORE = 1_000_000_000
STOP_SECONDS = 5.0
_encode = msgspec.json.Encoder().encode


def frame(number: int, event: JsonObject) -> bytes:
    """Return an event as a server-sent event."""
    data = _encode({"type": event["type"], "sequence_number": number, **event})
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)


class LiveResponse:
    """The frames of a response whose turn runs in this process. It belongs to a `TurnLog`."""

    def __init__(
        self, services: Services, response: StoredResponse, block: int | None = None
    ) -> None:
        self.response: StoredResponse = response
        self.written: list[JsonObject] = list(response.items)
        """What was recorded of it."""
        self.items: ItemStream = self._new_items(lost_items(response))
        self.numbers: list[int] = []
        self.frames: list[bytes] = []
        self.outcome: Outcome | None = None
        self.dropped: int = -1
        """The number of the last frame that is not kept any more."""
        self.size: int = 0
        self.begun_at: float | None = None
        self.block: int = next_block(response) if block is None else block
        """The block of its numbers; on one process, an attempt may have a later one."""
        self.readers: int = 0
        self._services = services
        self._shared = services.shared is not None
        self._run: float | None = None
        """Identifies the run of the turn on a cluster: how long the message had waited for it."""
        self._earlier: Collection[int] = ()
        """The items of earlier runs."""
        self._count = 0
        self._next = self.block * BLOCK
        self._changed: trio.Event | None = None

    async def changed(self) -> None:
        """Wait for more frames."""
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    async def ended(self) -> Outcome:
        """Wait for the end of the response."""
        while self.outcome is None:
            await self.changed()
        return self.outcome

    @property
    def seen(self) -> list[JsonObject]:
        """What clients have seen, as it is recorded."""
        return recorded(self.items.seen(), self._next // BLOCK, self._run, self._earlier)

    @property
    def lost(self) -> list[JsonObject]:
        """What clients have seen and the store does not have, as it is recorded."""
        return recorded(self.items.lost, self._next // BLOCK, self._run, self._earlier)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note a client that reads it during the block."""
        self.readers += 1
        try:
            yield
        finally:
            self.readers -= 1

    @property
    def in_use(self) -> bool:
        """Whether a client reads it."""
        return self.readers > 0

    def has_numbers_to(self, after: int) -> bool:
        """Whether its frames follow on a number that a client has seen.

        On a cluster, numbers of later blocks are those of other nodes.
        """
        return after < ((self.block + 1) * BLOCK if self._shared else FROM_STORE)

    def _new_items(self, lost: Lost) -> ItemStream:
        return ItemStream(self.response.id, lost, mcp=has_tools(self.response))

    def open(self, log: TurnLog) -> None:
        """Take the events so far and all that follow."""
        log.listener = self
        self._services.recorder.add(self)
        starts = [at for at, each in enumerate(log.events) if isinstance(each, TurnStarted)]
        if not starts:
            self._publish([self._about("created"), self._about("queued")])
        # What clients of a cluster saw of earlier runs is recorded, whichever node they read it on.
        for event in log.events[starts[-1] if starts and self._shared else 0 :]:
            self.receive(event)

    def receive(self, event: RuntimeEvent) -> None:
        """Take an event of the turn. Its end is published after a look at the store."""
        if isinstance(event, TurnEnded):
            self._services.recorder.remove(self)
            start_soon(self._services.nursery, _publish_end, self._services, self, event.reply)
            return
        if isinstance(event, TurnStarted):
            self._begin(event)
            created = [] if self.frames or self.dropped >= 0 else [self._about("created")]
            started = [*created, self._about("in_progress", running=True)]
            lost = [_lost_event(index, item) for index, item in sorted(self.items.lost.items())]
            self._publish([*started, *lost, *self.items.feed(event)])
            return
        self._publish(self.items.feed(event))

    def _begin(self, event: TurnStarted) -> None:
        """Begin with a run of the turn: what clients saw of earlier ones is lost."""
        if not self._shared:
            self._next = max(self._next, (event.attempt - 1) * BLOCK)
            return
        if not self.items.count:
            self.items = self._new_items(lost_items(self.response, event.waited))
        self._run, self._earlier = event.waited, self.items.seen().keys()

    def finish(self, outcome: Outcome, events: Iterable[JsonObject]) -> None:
        """Publish the end of the response."""
        self.outcome = outcome
        created = [] if self.frames or self.dropped >= 0 else [self._about("created")]
        try:
            self._publish([*created, *events, final_event(self.response, outcome)])
        finally:  # whatever fails, nobody waits any longer
            self._wake()

    def stop(self) -> None:
        """Wake all clients: the server stops."""
        if self._services.recorder.remove(self):
            start_soon(self._services.nursery, _record_last, self._services, self)
        self._wake()

    def _about(self, name: str, *, running: bool = False) -> JsonObject:
        output = self.items.output
        response = response_object(self.response, output, running=running)
        return {"type": f"response.{name}", "response": response}

    def _publish(self, events: Iterable[JsonObject]) -> None:
        for event in events:
            data = frame(self._next, event)
            self.numbers.append(self._next)
            self.frames.append(data)
            self.size += len(data)
            self._next += 1
        if self.size > self._services.config.max_replay:
            self._drop()
        if self.items.count > self._count:
            self._count = self.items.count
            self.begun_at = self.begun_at or trio.current_time()
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            set_event(self._changed)
            self._changed = None

    def _drop(self) -> None:
        """Forget the older half of the frames."""
        half = len(self.frames) // 2
        self.dropped = self.numbers[half - 1] if half else self.dropped
        self.size -= sum(len(data) for data in self.frames[:half])
        del self.numbers[:half], self.frames[:half]


def _lost_event(index: int, item: JsonObject) -> JsonObject:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def final_event(response: StoredResponse, outcome: Outcome) -> JsonObject:
    """Return the last event of a stream."""
    name = FINAL_EVENTS[status_of(outcome.reply, running=False)]
    return {"type": name, "response": outcome.as_object(response)}


def live_response(services: Services, response: StoredResponse, log: TurnLog) -> LiveResponse:
    """Return the frames of a response whose turn has not ended; they are built from now on."""
    if isinstance(log.listener, LiveResponse):
        return log.listener
    live = LiveResponse(services, response)
    live.open(log)
    return live


async def _record_last(services: Services, live: LiveResponse) -> None:
    """Record what clients have seen: the next process continues after it."""
    with trio.move_on_after(STOP_SECONDS) as scope, contained():
        scope.shield = True
        await services.records.record_items(live.response.id, live.seen)


async def _publish_end(services: Services, live: LiveResponse, reply: Reply) -> None:
    """Compare what was streamed with what is stored, record the difference, and publish the end.

    If that fails, the response ends with what was streamed.
    """
    rows, events = list[StoredMessage](), list[JsonObject]()
    with contained():  # the store may be busy; then the reply has to do
        rows = await rows_of(services.runtime, live.response.session_key, reply)
    with contained() as caught:
        events = _last_events(live, rows, reply)
    if live.items.lost or live.written:
        with contained():  # the store may be busy
            await services.records.record_items(live.response.id, live.lost)
    with contained() as failed:
        live.finish(Outcome(reply, live.items.output, when_ended(rows)), events)
    if (error := caught.error or failed.error) is not None:
        _logger.error("the end of %s is not as it is stored", live.response.id, exc_info=error)


def _last_events(live: LiveResponse, rows: list[StoredMessage], reply: Reply) -> list[JsonObject]:
    """Return the events that lead from what was streamed to what is stored."""
    response = live.response
    if response.stored:
        bodies = bodies_of(response.id, rows, reply, mcp=has_tools(response))
    else:
        bodies = live.items.streamed(reply)
    return list(live.items.finish(bodies))


# Readers


async def read_live(
    services: Services, live: LiveResponse, log: TurnLog, ending: Ending, after: int = -1
) -> AsyncGenerator[bytes, None]:
    """Yield the frames with a number above `after` as they are built, until the response ends.

    A client that was slower than the frames are kept gets the whole response from the store. Raises
    `ApiError` if the server stops first, so that the connection counts as cut.
    """
    with live.reading():
        while after >= live.dropped:
            if live.outcome is not None:
                await ending.begin()
            start = bisect_right(live.numbers, after)
            if start < len(live.frames):
                chunk, after = b"".join(live.frames[start:]), live.numbers[-1]
                yield chunk
            elif live.outcome is not None:
                return
            elif log.stopped:
                raise stopping()
            elif await is_silent(live.changed):
                yield COMMENT
    reply = await log.wait()
    async for chunk in read_stored(services, live.response, reply, ending):
        yield chunk


async def is_silent(wait: Callable[[], Awaitable[object]]) -> bool:
    """Wait for something. Returns whether it did not come for a while."""
    with trio.move_on_after(KEEP_ALIVE) as waiting:
        await wait()
    return waiting.cancelled_caught


async def read_stored(
    services: Services, response: StoredResponse, reply: Reply, ending: Ending, after: int = -1
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a response that has ended, built from the store."""
    fresh = await services.runtime.api.get_response(response.id) or response
    outcome = await outcome_of(services.runtime, fresh, reply)
    about = response_object(fresh, [], running=True)
    events: list[JsonObject] = [
        {"type": "response.created", "response": about},
        {"type": "response.in_progress", "response": about},
    ]
    for index, item in enumerate(outcome.output):
        events += whole_item(index, item)
    events.append(final_event(fresh, outcome))
    await ending.begin()
    frames = [
        frame(number, event) for number, event in enumerate(events, FROM_STORE) if number > after
    ]
    yield b"".join(frames)
