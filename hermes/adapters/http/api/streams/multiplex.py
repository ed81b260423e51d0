"""Several event streams over one connection: browsers open only six to a host."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
import trio
from msgspec import Meta
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hermes.adapters.http.access.browsers import Outgoing
from hermes.adapters.http.api.streams.channels import frame
from hermes.adapters.http.api.streams.events import HEADERS
from hermes.adapters.http.api.types import Body
from hermes.adapters.http.endpoints import Call, Endpoint
from hermes.adapters.http.errors import ApiError
from hermes.background import cancel, open_background, start_soon

PATH = "/api/streams"
ROUTER = "hermes.router"
"""The key in the scope of the router of the app: that of a host may be another one."""
_BODY_HEADERS = {b"content-length", b"content-type", b"transfer-encoding", b"last-event-id"}


class StreamRequest(Body):
    """An event stream of the API, with its query, and the id of the last event that is known."""

    path: Annotated[str, Meta(min_length=1, max_length=2000, pattern="^/api/[!-~]+$")]
    after: Annotated[str, Meta(max_length=200, pattern="^[!-~]*$")] | None = None


class StreamsBody(Body):
    """The streams to read."""

    streams: Annotated[list[StreamRequest], Meta(min_length=1, max_length=100)]


class StreamRefused(msgspec.Struct):
    """A stream is not served; `status` is that of the response to its own request."""

    status: int


class Streams(Response):
    """The frames of several streams. Each has a field `stream` with its index in the request.

    Each stream is a request of its own within the server, with the credentials of this one.
    """

    def __init__(self, requests: list[StreamRequest]) -> None:
        super().__init__()
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames of all streams until one ends or the client leaves."""
        headers = [*HEADERS, *(each for each in self.raw_headers if each[0] != b"content-length")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        lock = trio.Lock()
        with trio.CancelScope() as connected:
            async with open_background() as background:
                start_soon(background, _watch, receive, connected)
                async with trio.open_nursery() as nursery:
                    for index, request in enumerate(self._requests):
                        part = _Part(index, send, lock)
                        start_soon(nursery, _serve, scope, request, part, nursery.cancel_scope)
        if not connected.cancel_called:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Part:
    """Sends the response of one stream as a part of the whole."""

    def __init__(self, index: int, send: Send, lock: trio.Lock) -> None:
        self._field = b"stream: %d\n" % index
        self._send = send
        self._lock = lock
        self.refused: int | None = None
        """The status of its response, if that is no stream."""

    async def __call__(self, message: Message) -> None:
        """Send a message of its response, if it is a stream."""
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            if not kind.startswith("text/event-stream"):
                status = message["status"]
                self.refused = HTTPStatus.NOT_FOUND if status == HTTPStatus.OK else status
        elif self.refused is None:
            await self.send(message.get("body", b""))

    async def send(self, body: bytes) -> None:
        """Send frames, which are whole."""
        frames = [self._field + each for each in body.split(b"\n\n") if each]
        if frames:
            whole = b"\n\n".join([*frames, b""])
            async with self._lock:
                await self._send({"type": "http.response.body", "body": whole, "more_body": True})


async def _serve(
    scope: Scope, request: StreamRequest, part: _Part, streams: trio.CancelScope
) -> None:
    """Send one stream. If it ends, all do: the client connects again."""
    await scope[ROUTER](_scope(scope, request), trio.sleep_forever, Outgoing(part))
    if part.refused is None:
        cancel(streams)
    else:
        await part.send(frame("", "refused", StreamRefused(part.refused)))


def _scope(scope: Scope, request: StreamRequest) -> Scope:
    """Return the request of one stream."""
    path, _, query = request.path.partition("?")
    path = scope.get("root_path", "") + path
    headers = [header for header in scope["headers"] if header[0] not in _BODY_HEADERS]
    if request.after is not None:
        headers.append((b"last-event-id", request.after.encode()))
    return {
        **scope, "method": "GET", "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "path_params": {}, "headers": headers,
    }  # fmt: skip


async def _watch(receive: Receive, connected: trio.CancelScope) -> None:
    """Cancel the streams when the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    cancel(connected)


async def read_streams(call: Call) -> Response:
    """Send the events of several streams."""
    body = await call.read(StreamsBody)
    if any(each.path.partition("?")[0] == PATH for each in body.streams):
        raise ApiError(400, "A stream of streams is not one of its own.", code="invalid_value")
    return Streams(body.streams)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="POST",
        path=PATH,
        handle=read_streams,
        summary="Stream several event streams over one connection.",
        body=StreamsBody,
        streams=True,
        events=(StreamRefused,),
    ),
)
