"""Frames on their way to one client: numbered when they are sent, and kept for replay.

A client that does not read uses a bounded amount of memory and delays nothing else. Waiting deltas
of one answer are merged. If too much waits, deltas are dropped, because the complete text follows,
and then events of tools, status and messages of others. Responses and the results of messages are
never dropped.
Numbers are assigned when a frame is sent, so they have no gaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import msgspec
import trio

from hermes.adapters.jsonrpc.events import Delta, StatusUpdate
from hermes.adapters.jsonrpc.frames import (
    EventFrame,
    EventParams,
    Failure,
    Id,
    Problem,
    Result,
    encode,
)
from hermes.background import set_event
from hermes.messages import Approval

MAX_SHEDDABLE = 1024 * 1024
"""Bytes of waiting events that may be dropped. With four times as many bytes waiting in all, no
more requests are read."""
REPLAY_FRAMES = 10_000
REPLAY_BYTES = 4 * 1024 * 1024
DELTAS = ("message.delta", "reasoning.delta")
MINOR = ("tool.start", "tool.complete", "status.update", "message.accepted")
SHEDDABLE = (*DELTAS, *MINOR)
OVERHEAD = 100
"""Estimated bytes of a frame without its content."""


@attrs.define(eq=False)
class _Response:
    id: Id | None
    body: msgspec.Raw | Problem
    replayable: bool = True

    @property
    def size(self) -> int:
        body = self.body
        return OVERHEAD + (len(body.message) if isinstance(body, Problem) else _len(body))

    def frame(self, seq: int) -> Result | Failure:
        if isinstance(self.body, Problem):
            return Failure(seq=seq, id=self.id, error=self.body)
        return Result(seq=seq, id=self.id, result=self.body)


@attrs.define(eq=False)
class _Event:
    type: str
    session_id: str | None
    payload: msgspec.Raw
    shows: Sequence[Approval] = ()
    replayable = True

    @property
    def size(self) -> int:
        return OVERHEAD + _len(self.payload)

    def frame(self, seq: int) -> EventFrame:
        return EventFrame(params=EventParams(seq, self.type, self.session_id, self.payload))


@attrs.define(eq=False)
class _MergedDelta:
    type: str
    session_id: str | None
    turn_id: int | None
    texts: list[str]
    size: int
    replayable = True

    def frame(self, seq: int) -> EventFrame:
        payload = Delta(self.turn_id, "".join(self.texts))
        return EventFrame(params=EventParams(seq, self.type, self.session_id, payload))


_Item: TypeAlias = _Response | _Event | _MergedDelta


@attrs.frozen
class Replay:
    """Frames that were sent before; not `complete` if the oldest requested ones are gone."""

    frames: list[msgspec.Raw]
    complete: bool
    last: int


class SendBuffer:
    """Frames that wait for one client, and frames that were sent. For one writer.

    `max_sheddable` limits the bytes of waiting events that may be dropped; `replay_frames` and
    `replay_bytes` limit what is kept for `replay`. `on_shown` is called with each question when its
    frame is taken, and again, with False, if the frame was lost.
    """

    def __init__(
        self,
        max_sheddable: int = MAX_SHEDDABLE,
        *,
        replay_frames: int = REPLAY_FRAMES,
        replay_bytes: int = REPLAY_BYTES,
        on_shown: Callable[[Approval, bool], None] = lambda _question, _shown: None,
    ) -> None:
        self._on_shown = on_shown
        self._questions: Sequence[Approval] = ()
        """The questions in the last frame."""
        self.seq: int = 0
        self._max_sheddable = max_sheddable
        self._replay_frames = replay_frames
        self._replay_bytes = replay_bytes
        self._waiting: deque[_Item] = deque()
        self._last: dict[str | None, _Item] = {}
        """The last waiting item of each session, to which a delta may be added."""
        self._size = 0
        self._sheddable_size = 0
        self._shed_count = 0
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_size = 0
        self._forgotten = 0
        self._closed = False
        self._arrived = trio.Event()
        self._writable = trio.Event()

    # In

    def send_result(
        self, request_id: Id | None, result: object, *, replayable: bool = True
    ) -> None:
        """Queue the response to a request."""
        body = msgspec.Raw(encode(result))
        self._last.clear()  # a result may contain the text so far: later deltas must follow it
        self._put(_Response(request_id, body, replayable))

    def send_error(self, request_id: Id | None, code: int, text: str) -> None:
        """Queue an error response."""
        self._put(_Response(request_id, Problem(code, text)))

    def send_event(
        self,
        kind: str,
        session_id: str | None,
        payload: msgspec.Struct,
        shows: Sequence[Approval] = (),
    ) -> None:
        """Queue an event; `shows` are the questions that it shows to the user."""
        event = _Event(kind, session_id, msgspec.Raw(encode(payload)), shows)
        self._last[session_id] = event
        self._put(event)

    def send_delta(self, kind: str, session_id: str | None, turn_id: int | None, text: str) -> None:
        """Queue a delta, merged with the one before it if that is still waiting."""
        last = self._last.get(session_id)
        if isinstance(last, _MergedDelta) and (last.type, last.turn_id) == (kind, turn_id):
            last.texts.append(text)
            last.size += len(text)
            self._size += len(text)
            self._sheddable_size += len(text)
            self._shed()
        else:
            delta = _MergedDelta(kind, session_id, turn_id, [text], OVERHEAD + len(text))
            self._last[session_id] = delta
            self._put(delta)

    def _put(self, item: _Item) -> None:
        self._waiting.append(item)
        self._account(item, 1)
        self._shed()
        set_event(self._arrived)

    def _account(self, item: _Item, sign: int) -> None:
        self._size += sign * item.size
        if _type(item) in SHEDDABLE:
            self._sheddable_size += sign * item.size

    def _shed(self) -> None:
        """If too much waits, drop the deltas, and then minor events."""
        for types in (DELTAS, MINOR):
            if self._sheddable_size > self._max_sheddable:
                items, self._waiting = self._waiting, deque()
                for item in items:
                    if _type(item) in types:
                        self._account(item, -1)
                        self._shed_count += 1
                    else:
                        self._waiting.append(item)
                self._last.clear()

    @property
    def full(self) -> bool:
        """Whether the queue is so long that no more requests should be read."""
        return self._size > 4 * self._max_sheddable

    async def wait_writable(self) -> None:
        """Wait while the buffer is full."""
        while self.full and not self._closed:
            if self._writable.is_set():
                self._writable = trio.Event()
            await self._writable.wait()

    # Out

    async def next_frame(self) -> bytes | None:
        """Wait for the next frame, and number it; None once closed and empty."""
        while not self._waiting and not self._shed_count:
            if self._closed:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        item = self._next_item()
        self._questions = item.shows if isinstance(item, _Event) else ()
        for question in self._questions:
            self._on_shown(question, True)
        return self._number(item)

    def lose_last(self) -> None:
        """The last frame could not be written, so the user was not shown what it contains."""
        for question in self._questions:
            self._on_shown(question, False)

    def _next_item(self) -> _Item:
        if self._shed_count:
            text = f"{self._shed_count} events were dropped because they were not read in time."
            self._shed_count = 0
            return _Event("status.update", None, msgspec.Raw(encode(StatusUpdate("shed", text))))
        item = self._waiting.popleft()
        self._account(item, -1)
        if not isinstance(item, _Response) and self._last.get(item.session_id) is item:
            del self._last[item.session_id]
        if not self.full:
            set_event(self._writable)
        return item

    def _number(self, item: _Item) -> bytes:
        self.seq += 1
        line = encode(item.frame(self.seq))
        if item.replayable:
            self._sent.append((self.seq, line))
            self._sent_size += len(line)
        while len(self._sent) > self._replay_frames or (
            self._sent_size > self._replay_bytes and len(self._sent) > 1
        ):
            self._forgotten, dropped = self._sent.popleft()
            self._sent_size -= len(dropped)
        return line

    def replay(self, after: int) -> Replay:
        """Return the frames that were sent after this number, unchanged."""
        frames = [msgspec.Raw(line) for seq, line in self._sent if seq > after]
        return Replay(frames, self._forgotten <= after <= self.seq, self.seq)

    def close(self) -> None:
        """Queue nothing more; waiting frames can still be taken."""
        self._closed = True
        set_event(self._arrived)
        set_event(self._writable)


def _type(item: _Item) -> str:
    return "" if isinstance(item, _Response) else item.type


def _len(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))
