"""Frames on their way to one client: numbered when they leave, and kept a while for replay.

A client that does not read costs a bounded amount of memory and holds nobody up. Pieces of text
that wait are put together; where too much waits they are left out, since the whole text follows,
and then what is told of tools. Answers to requests and what became of messages always stay. Only
what leaves has a number, so numbers have no gaps.
"""

from __future__ import annotations

from collections import deque
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

ROOM = 1024 * 1024
"""Bytes of what may be left out that may wait; with four times as much no requests are read."""
REPLAY_FRAMES = 10_000
REPLAY_BYTES = 4 * 1024 * 1024
MINOR = ("tool.start", "tool.complete", "status.update")
PIECES = ("message.delta", "reasoning.delta")
LIGHT = (*PIECES, *MINOR)


@attrs.define(eq=False)
class _Answer:
    id: Id | None
    body: msgspec.Raw | Problem
    kept: bool = True
    """Whether it can be replayed itself."""

    @property
    def size(self) -> int:
        return 100 + (len(self.body.message) if isinstance(self.body, Problem) else _len(self.body))

    def frame(self, seq: int) -> Result | Failure:
        if isinstance(self.body, Problem):
            return Failure(seq=seq, id=self.id, error=self.body)
        return Result(seq=seq, id=self.id, result=self.body)


@attrs.define(eq=False)
class _Event:
    type: str
    session_id: str | None
    payload: msgspec.Raw
    kept = True

    @property
    def size(self) -> int:
        return 100 + _len(self.payload)

    def frame(self, seq: int) -> EventFrame:
        return EventFrame(params=EventParams(seq, self.type, self.session_id, self.payload))


@attrs.define(eq=False)
class _Piece:
    type: str
    session_id: str | None
    turn_id: int | None
    texts: list[str]
    size: int
    kept = True

    def frame(self, seq: int) -> EventFrame:
        payload = Delta(self.turn_id, "".join(self.texts))
        return EventFrame(params=EventParams(seq, self.type, self.session_id, payload))


_Waiting: TypeAlias = _Answer | _Event | _Piece


@attrs.frozen
class Replay:
    """Frames that left before; not `complete` where the oldest of those asked for are gone."""

    frames: list[msgspec.Raw]
    complete: bool
    last: int


class SendBuffer:
    """What waits for one client, and what has left; `take` is for one writer."""

    def __init__(self, room: int = ROOM) -> None:
        self.seq = 0
        self._limit = room
        self._waiting: deque[_Waiting] = deque()
        self._last: dict[str | None, _Waiting] = {}
        self._size = 0
        self._light = 0
        """Bytes of those that wait and could be left out."""
        self._shed = 0
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_size = 0
        self._forgotten = 0
        self._closed = False
        self._arrived = trio.Event()
        self._room = trio.Event()

    # In

    def answer(self, request_id: Id | None, result: object, *, kept: bool = True) -> None:
        """The result of a request."""
        body = msgspec.Raw(encode(result))
        self._last.clear()  # it may tell what was said so far: later pieces must stand behind it
        self._put(_Answer(request_id, body, kept))

    def refuse(self, request_id: Id | None, code: int, text: str) -> None:
        """Why a request was not done."""
        self._put(_Answer(request_id, Problem(code, text)))

    def tell(self, kind: str, session_id: str | None, payload: msgspec.Struct) -> None:
        """An event; those of minor kinds may be left out."""
        event = _Event(kind, session_id, msgspec.Raw(encode(payload)))
        self._last[session_id] = event
        self._put(event)

    def piece(self, kind: str, session_id: str | None, turn_id: int | None, text: str) -> None:
        """A piece of text, put together with the one before it where that still waits."""
        last = self._last.get(session_id)
        if isinstance(last, _Piece) and (last.type, last.turn_id) == (kind, turn_id):
            last.texts.append(text)
            last.size += len(text)
            self._size += len(text)
            self._light += len(text)
            self._bound()
        else:
            piece = _Piece(kind, session_id, turn_id, [text], 100 + len(text))
            self._last[session_id] = piece
            self._put(piece)

    def _put(self, item: _Waiting) -> None:
        self._waiting.append(item)
        self._count(item, 1)
        self._bound()
        self._arrived.set()

    def _count(self, item: _Waiting, sign: int) -> None:
        self._size += sign * item.size
        if _type(item) in LIGHT:
            self._light += sign * item.size

    def _bound(self) -> None:
        """Leave out pieces of text where too much waits, and then what is told of tools."""
        for light in (PIECES, MINOR):
            if self._light > self._limit:
                every, self._waiting = self._waiting, deque()
                for item in every:
                    if _type(item) in light:
                        self._count(item, -1)
                        self._shed += 1
                    else:
                        self._waiting.append(item)
                self._last.clear()

    @property
    def full(self) -> bool:
        """Whether so much waits that no more should be asked for."""
        return self._size > 4 * self._limit

    async def wait_room(self) -> None:
        """Wait while too much waits."""
        while self.full and not self._closed:
            self._room = trio.Event()
            await self._room.wait()

    # Out

    async def take(self) -> bytes | None:
        """The next frame, with its number; None once it was closed and nothing waits."""
        while not self._waiting and not self._shed:
            if self._closed:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._number(self._next())

    def _next(self) -> _Waiting:
        if self._shed:
            text = f"{self._shed} events were left out, since they were not read in time."
            self._shed = 0
            notice = msgspec.Raw(encode(StatusUpdate("shed", text)))
            return _Event("status.update", None, notice)
        item = self._waiting.popleft()
        self._count(item, -1)
        if not isinstance(item, _Answer) and self._last.get(item.session_id) is item:
            del self._last[item.session_id]
        if not self.full:
            self._room.set()
        return item

    def _number(self, item: _Waiting) -> bytes:
        self.seq += 1
        line = encode(item.frame(self.seq))
        if item.kept:
            self._sent.append((self.seq, line))
            self._sent_size += len(line)
        while len(self._sent) > REPLAY_FRAMES or (
            self._sent_size > REPLAY_BYTES and len(self._sent) > 1
        ):
            self._forgotten, gone = self._sent.popleft()
            self._sent_size -= len(gone)
        return line

    def replay(self, after: int) -> Replay:
        """The frames that left after this number, as they were."""
        frames = [msgspec.Raw(line) for seq, line in self._sent if seq > after]
        return Replay(frames, self._forgotten <= after <= self.seq, self.seq)

    def close(self) -> None:
        """Nothing more will come; what waits can still be taken."""
        self._closed = True
        self._arrived.set()
        self._room.set()


def _type(item: _Waiting) -> str:
    return "" if isinstance(item, _Answer) else item.type


def _len(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))
