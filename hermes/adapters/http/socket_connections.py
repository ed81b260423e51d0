"""One connection: hypercorn's HTTP/1.1 and WebSocket protocol on a socket, with time limits.

hypercorn's own server sends in a shielded scope without a timeout, and does not limit how long a
request may take to arrive. So its protocol is used, but not its server.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp, Message, Scope
from wsproto.utilities import ProtocolError

from hermes.adapters.http.access.requests import REPLACEABLE
from hermes.adapters.http.config import HttpConfig
from hermes.adapters.http.connections import HOLD_HEAD, ON_DISCONNECT
from hermes.adapters.http.endpoints import WHOLE_BODY
from hermes.adapters.http.errors import ClientGone
from hermes.adapters.http.incoming import Incoming
from hermes.adapters.http.protocol import Protocol, Refused
from hermes.background import cancel, open_background, release, start_soon
from hermes.user_code import contained, leaf

log: logging.Logger = logging.getLogger(__name__)

MAX_READ = 65536
LINGER = 2.0
"""Seconds in which the rest of a refused body is discarded, so that the client sees the answer."""
STALLED = 0.25
"""Seconds after which a client that does not read is no longer waited for at the end."""
_OF_CLIENTS = (OSError, h11.RemoteProtocolError, ProtocolError)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards what was not sent


class Connection:
    """A connection of a client, from its first byte to its end."""

    def __init__(
        self,
        stream: trio.SocketStream,
        app: ASGIApp,
        config: HttpConfig,
        settings: Config,
        context: WorkerContext,
    ) -> None:
        self.idle: bool = True
        """Whether no request is being served."""
        self.since: float = trio.current_time()
        """When it became idle, or the request began to be served."""
        self.replaceable: bool = True
        """Whether a new connection may take its place: nobody is known to wait for an answer."""
        self._stream = stream
        self._app = app
        self._config = config
        self._settings = settings
        self._context = context
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._writing = trio.Lock()
        self._waiting_since: float | None = None
        self._head = b""
        """The head of an answer; it is sent together with the first piece of its body."""
        self._begun = False
        """Whether a part of the next request has arrived."""
        self._closed = False
        """Whether this side has closed the connection."""
        self._lost = False
        """Whether something could not be sent."""
        self._arrived: Callable[[], Awaitable[None]] | None = None
        """A request that is not served yet, because more of it may have arrived."""
        self._protocol: Protocol
        self._requests: trio.Nursery
        self._pings: trio.Nursery

    @property
    def is_stalled(self) -> bool:
        """Whether the client does not read what is sent to it."""
        since = self._waiting_since
        return since is not None and trio.current_time() - since > STALLED

    def close_idle(self) -> None:
        """Close the connection if no request is being served."""
        if self.idle:
            cancel(self._reading)

    def replace(self) -> None:
        """Close the connection, because a new one needs its place."""
        if self.idle:
            self.close_idle()
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once, and cancel the request that is being served."""
        self._cut()
        cancel(self._scope)

    async def run(self) -> None:
        """Serve the requests of the connection, one after the other."""
        with self._scope, contained() as caught:
            try:
                async with open_background() as self._pings, trio.open_nursery() as self._requests:
                    await self._serve()
            finally:
                self._stream.socket.close()
        if caught.error is not None and not isinstance(leaf(caught.error), _OF_CLIENTS):
            log.error("a connection failed", exc_info=caught.error)

    async def _serve(self) -> None:
        own = self._stream.socket
        self._protocol = Protocol(
            self._app,  # type: ignore[arg-type]  # only passed on to `spawn_app`
            self._settings,
            self._context,
            self,  # type: ignore[arg-type]  # has the methods that are called
            ConnectionState({}),
            False,
            parse_socket_addr(own.family, own.getpeername()),
            parse_socket_addr(own.family, own.getsockname()),
            self._send,
        )
        self._reading.deadline = trio.current_time() + self._config.header_timeout
        with self._reading:
            await self._read()
        if self._begun and not self._closed and not self._lost:
            await self._protocol.refuse(408)
        await self._protocol.handle(Closed())
        if self._closed and self._protocol.is_body_open:
            await self._discard()

    # Receiving

    async def _read(self) -> None:
        """Pass on what the client sends, until its end."""
        while True:
            self._begin()
            streaming = isinstance(self._protocol.stream, HTTPStream)
            try:
                size = MAX_READ if streaming else self._config.max_header
                data = await self._stream.socket.recv(size)
            except (OSError, trio.ClosedResourceError):
                data = b""
            if data and self.idle and not self._begun:
                self._begun = True
                self._reading.deadline = trio.current_time() + self._config.header_timeout
            if self._reading.cancel_called:  # it was idle, and a request came at the same time
                return
            try:
                await self._protocol.handle(RawData(data))
            except Refused as refused:
                await self._protocol.refuse(refused.status)
            if not data:
                self._begun = False
                return

    async def _discard(self) -> None:
        """Read the rest of a body that was refused: closing now could destroy the answer."""
        with trio.move_on_after(LINGER), suppress(OSError, trio.ClosedResourceError):
            while not self._context.terminated.is_set():
                if not await self._stream.socket.recv(MAX_READ):
                    return

    # Sending

    async def _send(self, event: Event) -> None:
        """Do what the protocol asks for."""
        if isinstance(event, RawData):
            data, self._head = self._head + event.data, b""
            if self._protocol.holds_head:
                self._protocol.holds_head, self._head = False, data
            else:
                await self._write(data)
        elif isinstance(event, Updated):
            self.idle = self.replaceable = event.idle
            self.since, self._begun = trio.current_time(), False
            self._reading.deadline = (
                self.since + self._config.keep_alive if event.idle else math.inf
            )
        elif isinstance(event, Closed) and not self._closed:
            self._closed = True
            with suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)
            cancel(self._reading)

    async def _write(self, data: bytes) -> None:
        """Send bytes. If the client reads nothing for too long, the connection is cut."""
        if not data:
            return
        try:
            self._writing.acquire_nowait()  # without a checkpoint: what is ready is sent first
        except trio.WouldBlock:
            await self._writing.acquire()
        try:
            rest = memoryview(data)[await self._write_now(data) :]
            while rest and not self._lost:
                self._waiting_since = now = trio.current_time()
                sent = 0
                limit = trio.CancelScope(deadline=now + self._config.send_timeout)
                with limit, suppress(OSError, trio.ClosedResourceError):
                    sent = await self._stream.socket.send(rest)
                self._waiting_since = None
                rest = rest[sent:]
                if not sent:
                    self._cut()
        finally:
            release(self._writing)

    async def _write_now(self, data: bytes) -> int:
        """Send what the socket takes without waiting, so without a time limit; return how much."""
        sent = 0
        with suppress(OSError):
            sent = os.write(self._stream.socket.fileno(), data)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return sent

    def _cut(self) -> None:
        """Close the socket; what the client has not read is discarded."""
        self._lost = True
        own = self._stream.socket
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        own.close()
        cancel(self._reading)

    # Requests: what hypercorn calls a task group

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a task that sends pings."""
        start_soon(self._pings, function, *arguments)

    async def spawn_app(
        self,
        _app: object,
        _config: Config,
        scope: Scope,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> Callable[[Message], Awaitable[None]]:
        """Start the app for a request; returns a function that passes events to it."""
        incoming = Incoming(f"{scope['type']}.disconnect")
        self._protocol.refuse_compression()
        scope[ON_DISCONNECT] = incoming.on_disconnect
        scope[WHOLE_BODY] = incoming.take_whole_body
        scope[REPLACEABLE] = self._set_replaceable

        async def put(event: Message) -> None:
            if incoming.is_full or not event.get("more_body"):
                self._begin()
            await incoming.put(event)

        async def run() -> None:
            try:
                await self._run_app(scope, incoming.receive, send)
            finally:
                incoming.close()

        self._arrived = run
        return put

    def _set_replaceable(self, value: bool) -> None:
        self.replaceable = value

    def _begin(self) -> None:
        """Serve the request whose beginning has arrived.

        This waits until everything that was received is parsed. Otherwise an answer that needs no
        body might come before the body is seen, and would close the connection for nothing.
        """
        if self._arrived is not None and not self._closed:
            start_soon(self._requests, self._arrived)
        self._arrived = None

    async def _run_app(
        self,
        scope: Scope,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message | None], Awaitable[None]],
    ) -> None:
        async def send_or_raise(message: Message) -> None:
            if HOLD_HEAD in message:
                self._protocol.holds_head = True
            await send(message)
            if self._lost:
                raise ClientGone("the client is gone")

        with contained() as caught:
            await self._app(scope, receive, send_or_raise)
        if caught.error is not None and not isinstance(leaf(caught.error), ClientGone):
            log.error("a request failed", exc_info=caught.error)
        await send(None)  # answers with 500 if the app has not answered
