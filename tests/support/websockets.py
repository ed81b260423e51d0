"""A WebSocket client on Trio, for tests: one connection, text messages."""

from __future__ import annotations

import contextlib
from contextlib import asynccontextmanager

import msgspec
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)


class Refused(Exception):
    """The server has refused the handshake, with this status code."""

    def __init__(self, status, body):
        super().__init__(status, body)
        self.status = status


class WebSocket:
    """A connection; `receive` returns None after its end, and `code` says why it ended."""

    def __init__(self, stream, connection):
        self._stream = stream
        self._connection = connection
        self._text = ""
        self._ready = []
        self.subprotocol = None
        self.code = None

    async def open(self, host, headers, subprotocols):
        request = Request(
            host=host, target="/api/rpc", extra_headers=headers, subprotocols=subprotocols
        )
        await self._stream.send_all(self._connection.send(request))
        status, body = None, b""
        while True:
            event = await self._next()
            match event:
                case AcceptConnection():
                    self.subprotocol = event.subprotocol
                    return
                case RejectConnection():
                    status = event.status_code
                    if not event.has_body:
                        raise Refused(status, body)
                case RejectData():
                    body += bytes(event.data)
                    if event.body_finished:
                        raise Refused(status, body)

    async def _next(self):
        while not self._ready:
            data = await self._stream.receive_some(65536)
            self._connection.receive_data(data or None)
            self._ready += self._connection.events()
        return self._ready.pop(0)

    async def send(self, value):
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        await self._stream.send_all(self._connection.send(TextMessage(data=text)))

    async def receive(self):
        """Return the next message as JSON; None at the end."""
        while True:
            event = await self._next()
            if isinstance(event, TextMessage):
                self._text += event.data
                if event.message_finished:
                    text, self._text = self._text, ""
                    return msgspec.json.decode(text)
            elif isinstance(event, CloseConnection):
                self.code = event.code
                return None

    async def call(self, method, **params):
        """Send a request, and return its response; events before it are skipped."""
        await self.send({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        while (frame := await self.receive()).get("id") != 1:
            pass
        return frame


@asynccontextmanager
async def open_websocket(url, *, secret=None, subprotocols=(), headers=()):
    """Connect to `/api/rpc` of a server. Raises `Refused`."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    extra = [*headers]
    if secret is not None:
        extra.append((b"authorization", f"Bearer {secret}".encode()))
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        socket = WebSocket(stream, WSConnection(ConnectionType.CLIENT))
        await socket.open(f"{host}:{port}", extra, [*subprotocols])
        yield socket


async def hurried_websocket(url, secret, frames=(), version="13"):
    """Send a handshake and frames at once; returns all that the server sends until it closes."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    request = (
        f"GET /api/rpc HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {secret}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Sec-WebSocket-Version: {version}\r\n\r\n"
    )
    answer = b""
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(request.encode() + b"".join(map(_frame, frames)))
        with trio.fail_after(10), contextlib.suppress(trio.BrokenResourceError):
            async for data in stream:
                answer += data
    return answer


def _frame(value):
    """Return a masked text frame; the mask is zero."""
    data = msgspec.json.encode(value)
    length = bytes([0x80 | 126]) + len(data).to_bytes(2, "big")
    if len(data) < 126:
        length = bytes([0x80 | len(data)])
    return b"\x81" + length + bytes(4) + data
