"""One client, independent of the transport: lines in, frames out.

Requests run concurrently, so none waits behind a slow one; messages of one session keep their
order. A transport may be replaced by another one: handles, sequence numbers and unsent frames
belong to the connection.
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
from hermes.adapters.jsonrpc import events as e, types as t
from hermes.adapters.jsonrpc.files.uploads import IDLE_TIMEOUT
from hermes.adapters.jsonrpc.frames import (
    BAD_PARAMS,
    BUSY,
    FILE_REFUSED,
    INTERNAL,
    INVALID,
    MAX_LINE,
    NO_ACCESS,
    NO_FILE,
    NOT_FOUND,
    NOT_NOW,
    UNKNOWN_METHOD,
    BadLine,
    Id,
    Refused,
    Request,
    decode,
)
from hermes.adapters.jsonrpc.handlers import Handlers
from hermes.adapters.jsonrpc.handles import MAX_HANDLES, Handles
from hermes.adapters.jsonrpc.methods import METHODS, Method
from hermes.adapters.jsonrpc.send_buffer import MAX_SHEDDABLE, SendBuffer
from hermes.background import open_background, set_event, start_soon
from hermes.errors import (
    ActorStopped,
    AttachmentRefused,
    Draining,
    NotAdmitted,
    Overloaded,
    SessionEnded,
    StoreBusy,
    StoreFull,
    UnknownFile,
    UnknownSession,
)
from hermes.events import Envelope
from hermes.user_code import contained, new_reference

log: logging.Logger = logging.getLogger(__name__)

PROTOCOL = 1
MAX_RUNNING = 1000
"""Concurrent requests of one client; further ones are refused, so that memory is bounded."""
MAX_RUNNING_BYTES = 32 * 1024 * 1024
"""The same, for the size of the params of these requests together."""
_DECODERS = {name: msgspec.json.Decoder(method.params).decode for name, method in METHODS.items()}


@attrs.frozen
class Call:
    """A request with its decoded params."""

    id: Id | None
    method: Method
    params: t.Params
    size: int


class Connection:
    """The connection of one client; use `open_connection`.

    A transport passes lines to `receive`, which never waits, and writes what `next_frame` returns.
    If it cannot write a frame, it calls `lose_last_frame`.
    """

    def __init__(
        self, runtime: Runtime, nursery: trio.Nursery, handles: Handles, buffer: SendBuffer,
        max_running: int, upload_idle: float,
    ) -> None:  # fmt: skip
        self._nursery = nursery
        self._buffer = buffer
        self._handlers = Handlers(runtime, buffer, handles, nursery, upload_idle)
        self._max_running = max_running
        self._running_ids: set[Id | None] = set()
        self._running = 0
        self._running_bytes = 0
        self._queues: dict[str, deque[Call]] = {}
        """Calls by session or upload that must keep their order."""
        self._finished = trio.Event()

    # Requests

    def greet(self) -> None:
        """Send the first frame of a transport, which identifies this connection."""
        ready = e.Ready(self._handlers.epoch, PROTOCOL)
        self._buffer.send_event("gateway.ready", None, ready)

    def receive(self, line: bytes) -> None:
        """Handle a line. One frame answers it, unless it is a notification or empty."""
        if not line.strip():
            return
        try:
            self._start(decode(line))
        except BadLine as bad:
            self._buffer.send_error(bad.request_id, bad.code, str(bad))

    def reject_long_line(self) -> None:
        """Answer a line that was skipped because of its length."""
        text = f"The line is longer than {MAX_LINE} bytes and was skipped."
        self._buffer.send_error(None, INVALID, text)

    def _start(self, request: Request) -> None:
        if request.id is not None and request.id in self._running_ids:
            # The error has no id: a response with this id belongs to the other request.
            raise BadLine(INVALID, f"A request with the id {request.id!r} is still running.")
        try:
            call = self._decode(request)
        except Refused as refused:
            self._refuse(request.id, refused)
            return
        self._running += 1
        self._running_bytes += call.size
        if request.id is not None:
            self._running_ids.add(request.id)
        if call.method.in_order is not None:
            self._enqueue(call.method.in_order(call.params), call)
        else:
            start_soon(self._nursery, self._run, call)

    def _decode(self, request: Request) -> Call:
        method = METHODS.get(request.method)
        if method is None:
            raise Refused(UNKNOWN_METHOD, f"Unknown method {request.method[:100]!r}.")
        if self._running >= self._max_running:
            raise Refused(NOT_NOW, f"{self._max_running} requests are running; try again later.")
        size = len(memoryview(request.params))
        if self._running_bytes + size > MAX_RUNNING_BYTES:
            raise Refused(NOT_NOW, "Requests of too many bytes are running; try again later.")
        try:
            return Call(request.id, method, _DECODERS[request.method](request.params), size)
        except ValueError as error:
            raise Refused(BAD_PARAMS, f"{error}.") from None

    def _enqueue(self, name: str, call: Call) -> None:
        if name in self._queues:
            self._queues[name].append(call)
        else:
            self._queues[name] = deque([call])
            start_soon(self._nursery, self._run_queue, name)

    async def _run_queue(self, name: str) -> None:
        calls = self._queues[name]
        while calls:
            await self._run(calls[0])
            calls.popleft()
        del self._queues[name]  # no checkpoint since the queue was seen empty

    async def _run(self, call: Call) -> None:
        """Run a call and answer it exactly once, whatever happens."""
        result: msgspec.Struct | None = None
        try:
            with contained() as caught:
                result = await call.method.run(self._handlers, call.params)
            if caught.error is not None:
                self._refuse(call.id, _refusal(caught.error))
            elif call.id is not None:
                self._buffer.send_result(call.id, result, replayable=call.method.replayable)
        finally:
            self._running -= 1
            self._running_bytes -= call.size
            self._running_ids.discard(call.id)
            set_event(self._finished)
            self._finished = trio.Event()

    def _refuse(self, request_id: Id | None, refused: Refused) -> None:
        if request_id is None:
            self._buffer.send_event("error", None, e.Error(refused.code, str(refused)))
        else:
            self._buffer.send_error(request_id, refused.code, str(refused))

    def handle_event(self, envelope: Envelope) -> None:
        """Forward an event of the runtime, if it concerns this client."""
        self._handlers.notifier.handle(envelope)

    # Frames

    async def next_frame(self) -> bytes | None:
        """Wait for the next frame to write; None once the connection is closed and drained."""
        return await self._buffer.next_frame()

    def lose_last_frame(self) -> None:
        """Say that the last frame could not be written: the user has not seen its question."""
        self._buffer.lose_last()

    async def wait_writable(self) -> None:
        """Wait while the client is too far behind in reading."""
        await self._buffer.wait_writable()

    async def wait_idle(self) -> None:
        """Wait until every request and every accepted message is answered."""
        while self._running:
            await self._finished.wait()
        await self._handlers.wait_answered()

    def close(self) -> None:
        """Send nothing more; frames that wait can still be taken."""
        self._buffer.close()


def _refusal(error: BaseException) -> Refused:
    """Return the error for the client: one sentence, and of unexpected errors only a reference."""
    if isinstance(error, Refused):
        return error
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return Refused(code, f"{str(error).rstrip('.')}.")
    reference = new_reference()
    log.error("a request failed (reference %s)", reference, exc_info=error)
    return Refused(INTERNAL, f"Internal error (reference {reference}); the log has the details.")


_CODES: dict[type[Exception], int] = {
    UnknownSession: NOT_FOUND,
    UnknownFile: NO_FILE,
    AttachmentRefused: FILE_REFUSED,
    NotAdmitted: NO_ACCESS,
    Overloaded: BUSY,
    Draining: NOT_NOW,
    StoreBusy: NOT_NOW,
    StoreFull: NOT_NOW,
    SessionEnded: INTERNAL,
    ActorStopped: NOT_NOW,
}


@asynccontextmanager
async def open_connection(
    runtime: Runtime,
    *,
    max_handles: int = MAX_HANDLES,
    max_running: int = MAX_RUNNING,
    max_sheddable: int = MAX_SHEDDABLE,
    upload_idle: float = IDLE_TIMEOUT,
) -> AsyncIterator[Connection]:
    """Open a connection for one client. The end of the block cancels its requests, but no turn.

    `max_handles` limits its open sessions, `max_running` its concurrent requests, `max_sheddable`
    the bytes of unsent events that may be dropped (see `send_buffer`), and `upload_idle` the
    seconds between two chunks of a file.
    """
    async with open_background() as background:
        buffer = SendBuffer(
            max_sheddable, on_shown=lambda asked, shown: runtime.mark_shown(asked, shown=shown)
        )
        handles = Handles(max_handles)
        connection = Connection(runtime, background, handles, buffer, max_running, upload_idle)
        # No checkpoint since the constructor has read the running turns: no event is missed.
        with runtime.subscribe(callback=connection.handle_event, messages=True) as handles.events:
            try:
                yield connection
            finally:
                connection.close()
