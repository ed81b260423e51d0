"""Responses whose connection is tracked: a retry of the client attaches to one that was cut."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

import trio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hermes.adapters.http.errors import as_api_error
from hermes.adapters.http.turns.endings import Ending
from hermes.background import cancel, open_background, start_soon
from hermes.user_code import contained

KEEP_ALIVE = 15.0
"""Seconds of silence after which a stream sends a comment."""
COMMENT = b": keep-alive\n\n"
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
ON_DISCONNECT = "hermes.on_disconnect"
"""In the scope of a request: takes a callback for the end of its connection. Our own server has it;
on another one, a task has to wait for that."""
HOLD_HEAD = "hermes.hold_head"
"""In the first message of a response: its body begins at once, so that both are sent together."""
Answer: TypeAlias = Callable[[], Awaitable[Response]]


class Tracked(Response):
    """Writes an answer, and records whether it was written in full.

    `answer` makes the response; it may wait for a turn. If the client goes away first, the wait
    ends, and the connection is recorded as cut.
    """

    def __init__(self, ending: Ending, answer: Answer) -> None:
        super().__init__()
        self._ending = ending
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        complete = False
        try:
            with trio.CancelScope() as waiting:
                client = _Client(send, waiting, self._ending)
                if ON_DISCONNECT in scope:
                    scope[ON_DISCONNECT](client.gone)
                    complete = await self._write(scope, receive, client.send)
                else:
                    async with open_background() as background:
                        start_soon(background, client.watch, receive)
                        complete = await self._write(scope, receive, client.send)
        finally:
            await self._ending.record(complete=complete)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Write the answer. Returns whether it is one that the client must not ask for again."""
        response = None
        with contained() as caught:
            response = await self._answer()
        if response is None:
            assert caught.error is not None
            response = as_api_error(caught.error).response()
        if not isinstance(response, EventStream):
            await self._ending.begin()
        await response(scope, receive, send)
        return response.headers.get("x-should-retry") != "true"


class EventStream(Response):
    """Server-sent events. The chunks are whole frames, and `at_once` says that one is ready.

    If a retry can attach to the response, `Ending.begin` is called before the last chunk.
    """

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], *, at_once: bool = False) -> None:
        super().__init__(headers=STREAM_HEADERS)
        del self.headers["content-length"]
        self._chunks = chunks
        self._extra = {HOLD_HEAD: True} if at_once else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames as they come."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send({**start, **self._extra})
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                if scope["method"] == "HEAD":
                    break
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Client:
    """The connection of a client: what waits for one that has gone away is cancelled."""

    def __init__(self, send: Send, scope: trio.CancelScope, ending: Ending) -> None:
        self._send = send
        self._scope = scope
        self._ending = ending
        self._written = False

    async def send(self, message: Message) -> None:
        """Send a message. The server may say that the stream has ended while it sends the last.

        A client of a stream may leave after its last event.
        """
        is_body = message["type"] == "http.response.body"
        if is_body and not message.get("more_body"):
            await trio.lowlevel.checkpoint()  # the client may be known to have gone away
            self._written = True
        await self._send(message)
        self._written |= is_body and self._ending.begun

    async def watch(self, receive: Receive) -> None:
        """Wait until the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone()

    def gone(self) -> None:
        """Cancel the scope, unless the end of the response has been sent."""
        if not self._written:
            cancel(self._scope)
