"""A small HTTP server on a loopback port, for the fake services of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias

import attrs
import h11
import trio

_RECEIVE_SIZE = 2**18
_CLIENT_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


@attrs.frozen(kw_only=True)
class Request:
    """An HTTP request."""

    path: str
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)
    at: float
    """When it was received, on Trio's clock."""


@attrs.frozen(kw_only=True)
class Response:
    """An HTTP response."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    chunks: Iterable[bytes] = ()
    """The body. Without a pause the chunks of a list are sent together, others one by one."""
    pause: float = 0.0
    """Seconds before each chunk."""
    complete: bool = True
    """If False, the connection is closed after the chunks, without the end of the response."""


Respond: TypeAlias = Callable[[Request], Awaitable[Response]]


class BodyFilter(Protocol):
    """Changes a body while it arrives, for example so that less of it is kept."""

    def feed(self, chunk: bytes) -> bytes:
        """Return what is kept of the body so far, after what was returned before."""
        ...

    def finish(self) -> bytes:
        """Return the rest, at the end of the body."""
        ...


async def serve_connection(
    stream: trio.SocketStream, respond: Respond, new_filter: Callable[[], BodyFilter] | None = None
) -> None:
    """Answer the requests of one connection until it ends."""
    connection = h11.Connection(h11.SERVER)
    try:
        while (request := await _receive(connection, stream, new_filter)) is not None:
            if not await _send(connection, stream, await respond(request)):
                break
            if connection.our_state is h11.MUST_CLOSE:
                break
            connection.start_next_cycle()
    except _CLIENT_GONE:
        pass  # clients may disconnect at any time
    finally:
        await trio.aclose_forcefully(stream)


async def _receive(
    connection: h11.Connection,
    stream: trio.SocketStream,
    new_filter: Callable[[], BodyFilter] | None,
) -> Request | None:
    """Return the next request; None if the client has disconnected."""
    head: h11.Request | None = None
    body: list[bytes] = []
    kept = new_filter() if new_filter is not None else None
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(_RECEIVE_SIZE))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data) if kept is None else kept.feed(bytes(event.data)))
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            body.append(b"" if kept is None else kept.finish())
            return Request(
                path=head.target.decode("ascii").partition("?")[0],
                headers={name.decode(): value.decode() for name, value in head.headers},
                body=b"".join(body),
                at=trio.current_time(),
            )
        else:
            return None


async def _send(connection: h11.Connection, stream: trio.SocketStream, response: Response) -> bool:
    """Send a response; returns `response.complete`."""
    if not response.complete and not response.chunks:
        return False
    head = h11.Response(status_code=response.status, headers=list(response.headers))
    pending = connection.send(head) or b""
    together = isinstance(response.chunks, Sequence) and not response.pause
    for chunk in [b"".join(response.chunks)] if together else response.chunks:
        if not together:
            await stream.send_all(pending)
            pending = b""
            await trio.sleep(response.pause)
        pending += connection.send(h11.Data(chunk)) or b""
    if response.complete:
        pending += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(pending)
    return response.complete


@asynccontextmanager
async def serve_http(
    respond: Respond, port: int = 0, *, new_filter: Callable[[], BodyFilter] | None = None
) -> AsyncIterator[int]:
    """Answer HTTP requests on a loopback port until the end of the block; yields the port.

    Port 0 is a free port. `new_filter` makes a filter for the body of each request.
    """

    async def serve(stream: trio.SocketStream) -> None:
        await serve_connection(stream, respond, new_filter)

    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        try:
            yield listeners[0].socket.getsockname()[1]
        finally:
            nursery.cancel_scope.cancel()
