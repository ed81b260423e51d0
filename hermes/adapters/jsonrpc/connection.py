"""One client, whatever carries its frames: lines in, frames out.

Requests run beside each other, so that none waits behind a slow one. Messages of one session keep
their order. A transport may come and go; handles, numbers and what waits stay with the peer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import msgspec
import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc import events as e, types as v
from hermes.adapters.jsonrpc.frames import (
    BAD_PARAMS,
    BUSY,
    INTERNAL,
    INVALID,
    MAX_LINE,
    NOT_FOUND,
    NOT_NOW,
    UNKNOWN_METHOD,
    BadLine,
    Id,
    Refused,
    Request,
    decode,
)
from hermes.adapters.jsonrpc.handlers import Conversations
from hermes.adapters.jsonrpc.handles import MAX_HANDLES, Handles
from hermes.adapters.jsonrpc.methods import METHODS, Method
from hermes.adapters.jsonrpc.send_buffer import ROOM, SendBuffer
from hermes.errors import Draining, HermesError, Overloaded, StoreBusy, StoreFull, UnknownSession
from hermes.events import Envelope

log = logging.getLogger(__name__)

PROTOCOL = 1
MAX_RUNNING = 1000
"""Requests of one client that run at once; more are refused, so that an interrupt still comes."""
_DECODERS = {name: msgspec.json.Decoder(method.params).decode for name, method in METHODS.items()}


@attrs.frozen
class Call:
    """A request that is going to be done."""

    id: Id | None
    method: Method
    params: v.Params


class Peer:
    """One client. `receive` never waits; `take` is what a transport writes."""

    def __init__(
        self, runtime: Runtime, nursery: trio.Nursery, max_handles: int, room: int
    ) -> None:
        self._nursery = nursery
        self._outgoing = SendBuffer(room)
        self._conversations = Conversations(runtime, self._outgoing, Handles(max_handles))
        self._running: set[Id | None] = set()
        self._count = 0
        self._lanes: dict[str, deque[Call]] = {}
        self._done = trio.Event()

    # In

    def greet(self) -> None:
        """A transport is there: say which run this is."""
        ready = e.Ready(self._conversations.epoch, PROTOCOL)
        self._outgoing.tell("gateway.ready", None, ready)

    def receive(self, line: bytes) -> None:
        """Take a line: it is answered by one frame, unless it is a notification or empty."""
        if not line.strip():
            return
        try:
            self._start(decode(line))
        except BadLine as bad:
            self._outgoing.refuse(bad.request_id, bad.code, str(bad))

    def refuse_long(self) -> None:
        """A line was longer than any request may be, and was skipped."""
        text = f"A line has at most {MAX_LINE} bytes; this one was skipped."
        self._outgoing.refuse(None, INVALID, text)

    def _start(self, request: Request) -> None:
        if request.id is not None and request.id in self._running:
            text = f"A request with the id {request.id!r} is still running."
            raise BadLine(INVALID, text)  # an answer with this id belongs to that one
        try:
            call = self._call(request)
        except Refused as refused:
            self._refuse(request.id, refused)
            return
        self._count += 1
        if request.id is not None:
            self._running.add(request.id)
        if isinstance(call.params, v.Session) and call.method.in_order:
            self._queue(call.params.session_id, call)
        else:
            self._nursery.start_soon(self._run, call)

    def _call(self, request: Request) -> Call:
        method = METHODS.get(request.method)
        if method is None:
            raise Refused(UNKNOWN_METHOD, f"There is no method {request.method[:100]!r}.")
        if self._count >= MAX_RUNNING:
            raise Refused(NOT_NOW, f"{MAX_RUNNING} requests are still running; try again later.")
        try:
            return Call(request.id, method, _DECODERS[request.method](request.params))
        except ValueError as error:
            raise Refused(BAD_PARAMS, f"{error}.") from None

    def _queue(self, lane: str, call: Call) -> None:
        if lane in self._lanes:
            self._lanes[lane].append(call)
        else:
            self._lanes[lane] = deque([call])
            self._nursery.start_soon(self._run_lane, lane)

    async def _run_lane(self, lane: str) -> None:
        calls = self._lanes[lane]
        while calls:
            await self._run(calls[0])
            calls.popleft()
        del self._lanes[lane]  # no checkpoint since the last look

    async def _run(self, call: Call) -> None:
        """Do what was asked, and answer it once, whatever happens."""
        try:
            result = await call.method.run(self._conversations, call.params)
        except Exception as error:  # noqa: BLE001 - this request's failure, and nobody else's
            self._refuse(call.id, _refusal(error))
        else:
            if call.id is not None:
                self._outgoing.answer(call.id, result, kept=call.method.kept)
        finally:
            self._count -= 1
            self._running.discard(call.id)
            self._done.set()
            self._done = trio.Event()

    def _refuse(self, request_id: Id | None, refused: Refused) -> None:
        if request_id is None:
            self._outgoing.tell("error", None, e.Error(refused.code, str(refused)))
        else:
            self._outgoing.refuse(request_id, refused.code, str(refused))

    def hear(self, envelope: Envelope) -> None:
        """Something happened in the runtime."""
        self._conversations.hearing.hear(envelope)

    # Out

    async def take(self) -> bytes | None:
        """The next frame; None once nothing more will come."""
        return await self._outgoing.take()

    async def wait_room(self) -> None:
        """Wait while the client does not read what is there for it."""
        await self._outgoing.wait_room()

    async def wait_idle(self) -> None:
        """Wait until every request is answered, and every message that was taken."""
        while self._count:
            await self._done.wait()
        await self._conversations.wait_answered()

    def close(self) -> None:
        """Take no more; what waits can still be taken away."""
        self._outgoing.close()


def _refusal(error: Exception) -> Refused:
    """What a client is told of an error: one sentence, and nothing of our insides."""
    if isinstance(error, Refused):
        return error
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return Refused(code, f"{str(error).rstrip('.')}.")
    log.error("a request failed", exc_info=error)
    return Refused(INTERNAL)


_CODES: dict[type[Exception], int] = {
    UnknownSession: NOT_FOUND,
    Overloaded: BUSY,
    Draining: NOT_NOW,
    StoreBusy: NOT_NOW,
    StoreFull: NOT_NOW,
    HermesError: INTERNAL,
}


@asynccontextmanager
async def open_peer(
    runtime: Runtime, *, max_handles: int = MAX_HANDLES, room: int = ROOM
) -> AsyncIterator[Peer]:
    """A client of this runtime; leaving the block ends its requests, and no turn."""
    async with trio.open_nursery() as nursery:
        peer = Peer(runtime, nursery, max_handles, room)
        with runtime.events(call=peer.hear):  # no checkpoint since the running turns were noted
            try:
                yield peer
            finally:
                peer.close()
                nursery.cancel_scope.cancel()
