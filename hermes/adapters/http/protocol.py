"""HTTP/1.1 and WebSocket on one connection: hypercorn's protocol, with stricter requests.

Answers are sent with less work, and what is no valid request gets an error with a body.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus

import h11
from hypercorn.events import Closed, RawData
from hypercorn.protocol.events import EndBody, Event as StreamEvent, Response
from hypercorn.protocol.h11 import H11Protocol, H11WSConnection
from hypercorn.protocol.ws_stream import WSStream

from hermes.adapters.http.errors import protocol_error

_VERSIONS = frozenset({b"1.0", b"1.1"})
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding", b"upgrade"})
"""Headers of an answer that say how its body is sent, and what follows it."""


@lru_cache(maxsize=100)
def _encoded(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Return headers as they are sent. Raises `h11.LocalProtocolError` if one is not valid."""
    valid = h11.Response(status_code=HTTPStatus.OK, headers=list(headers)).headers
    return b"".join([b"%s: %s\r\n" % header for header in valid])


class Refused(Exception):
    """A request that is not served; `status` is the answer."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Protocol(H11Protocol):
    """HTTP/1.0, HTTP/1.1 and WebSocket. A request to upgrade to HTTP/2 is ignored."""

    holds_head: bool = False
    """Whether what is sent next is the head of an answer whose body follows at once."""

    async def _check_protocol(self, event: h11.Request) -> None:
        """Refuse other versions, long heads, and bodies whose length has two meanings.

        h11 limits what it keeps of a head that is not complete, so the last piece may exceed it.
        """
        headers = event.headers.raw_items()  # a list: h11's own sequence is slow to read
        names = {name.lower() for name, _ in headers}
        size = len(event.target) + sum([len(name) + len(value) + 4 for name, value in headers])
        if size > self.config.h11_max_incomplete_size:
            raise Refused(431)
        if event.http_version not in _VERSIONS:
            raise Refused(505)
        if b"transfer-encoding" in names and (
            b"content-length" in names or event.http_version == b"1.0"
        ):
            raise Refused(400)

    async def stream_send(self, event: StreamEvent) -> None:
        """Send a part of an answer. It says so if the connection cannot be used again.

        That is so if the answer begins before the end of the request: the rest is not read. A
        WebSocket client that sends frames before its handshake is answered gets 400 and no more.
        """
        try:
            if isinstance(event, Response) and event.status_code >= HTTPStatus.OK:
                await self._send_head(event)
            else:
                await super().stream_send(event)
        except h11.LocalProtocolError:
            is_known = self.connection.their_state is h11.ERROR  # the client was told
            if not (is_known or isinstance(self.connection, H11WSConnection)):
                raise
        if isinstance(event, EndBody) and isinstance(self.connection, H11WSConnection):
            await self.send(Closed())  # a refused handshake; hypercorn leaves some of them open

    async def _send_head(self, response: Response) -> None:
        """Send the head of an answer. h11 gets only the headers that it has to consider.

        It validates and copies the headers three times, and most of them are always the same.
        """
        considered = self.config.response_headers("h11")
        considered += [header for header in response.headers if header[0].lower() in _FRAMING]
        others = [header for header in response.headers if header[0].lower() not in _FRAMING]
        rest = _encoded(tuple(others)) + b"\r\n"
        last = self.keep_alive_requests >= self.config.keep_alive_max_requests
        if last or self.connection.their_state is h11.SEND_BODY:
            considered.append((b"connection", b"close"))
        self.holds_head |= any(name == b"content-length" for name, _ in considered)
        head = h11.Response(status_code=response.status_code, headers=considered)
        await self.send(RawData(self.connection.send(head).removesuffix(b"\r\n") + rest))

    async def refuse(self, status: int) -> None:
        """Answer a request that is not served, and close the connection."""
        await self._send_error_response(status)
        await self.send(Closed())

    async def _send_error_response(self, status_code: int) -> None:
        """Answer a request that does not reach the app, with an error as the app sends it."""
        response = protocol_error(status_code).response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        headers += self.config.response_headers("h11")
        data = self.connection.send(h11.Response(status_code=status_code, headers=headers))
        with suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
            data += self.connection.send(h11.Data(data=bytes(response.body)))
        await self.send(RawData(data))

    def refuse_compression(self) -> None:
        """Ignore the extensions of a WebSocket: a compressed message could become any size."""
        if isinstance(self.stream, WSStream):
            self.stream.handshake.extensions = None

    @property
    def is_body_open(self) -> bool:
        """Whether the client may still be sending a request that was answered already."""
        return self.connection.their_state in {h11.SEND_BODY, h11.ERROR}
