"""HTTP on this machine, for the servers of tests: requests in, answers out, whole or broken off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import h11
import trio

_RECEIVED = 2**18
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


@attrs.frozen(kw_only=True)
class Request:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)
    at: float
    """On Trio's clock."""


@attrs.frozen(kw_only=True)
class Response:
    """What goes back: pieces with pauses between them; not whole where the connection then ends."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    pieces: Sequence[bytes] = ()
    pause: float = 0.0
    whole: bool = True


Respond = Callable[[Request], Awaitable[Response]]


async def converse(stream: trio.SocketStream, respond: Respond) -> None:
    """Answer the requests of one connection, until it ends."""
    connection = h11.Connection(h11.SERVER)
    try:
        while (request := await _receive(connection, stream)) is not None:
            if not await _send(connection, stream, await respond(request)):
                break
            if connection.our_state is h11.MUST_CLOSE:
                break
            connection.start_next_cycle()
    except _GONE:
        pass  # Clients may leave whenever they like.
    finally:
        await trio.aclose_forcefully(stream)


async def _receive(connection: h11.Connection, stream: trio.SocketStream) -> Request | None:
    """The next request; None where the client has left."""
    head: h11.Request | None = None
    body: list[bytes] = []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_RECEIVED))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return Request(
                path=head.target.decode("ascii").partition("?")[0],
                headers={name.decode(): value.decode() for name, value in head.headers},
                body=b"".join(body),
                at=trio.current_time(),
            )
        else:
            return None


async def _send(connection: h11.Connection, stream: trio.SocketStream, response: Response) -> bool:
    """Send a response; False where it was not to be whole."""
    if not response.whole and not response.pieces:
        return False
    head = h11.Response(status_code=response.status, headers=list(response.headers))
    waiting = connection.send(head) or b""
    for piece in response.pieces if response.pause else [b"".join(response.pieces)]:
        if response.pause:
            await stream.send_all(waiting)
            waiting = b""
            await trio.sleep(response.pause)
        waiting += connection.send(h11.Data(piece)) or b""
    if response.whole:
        waiting += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(waiting)
    return response.whole


@asynccontextmanager
async def listening(respond: Respond, port: int = 0) -> AsyncIterator[int]:
    """Answer on a port of this machine, which is given, for as long as the block lasts."""

    async def serve(stream: trio.SocketStream) -> None:
        await converse(stream, respond)

    bus = await trio.open_tcp_listeners(port, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, bus)
        try:
            yield bus[0].socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()
