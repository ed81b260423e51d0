"""The HTTP APIs inside an asyncio program: an ASGI app that runs on the runtime's own loop.

Each request is a task in the runtime's thread. What it receives and sends crosses to the host's
loop one message at a time, so a slow client slows down its own request only.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import trio

from hermes.actors.runtime import Runtime
from hermes.agents.threads import HOST_LOOP
from hermes.background import set_event
from hermes.embed.asyncio_host import AsyncioRuntime
from hermes.errors import HermesError
from hermes.settings.http import HttpConfig

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

UNAVAILABLE = b'{"error":{"message":"The runtime has ended.","type":"server_error"}}'
_SCOPE = frozenset({
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string",
    "root_path", "headers", "client", "server", "subprotocols",
})  # fmt: skip
"""What the app needs of a scope. The host's frameworks add objects that belong to its loop."""
_DENIAL = "websocket.http.response"


@asynccontextmanager
async def open_http_app(
    runtime: AsyncioRuntime, config: HttpConfig | None = None
) -> AsyncIterator[AsgiApp]:
    """Open an ASGI app for the server or framework of the host, such as `app.mount("/", http)`.

    It serves HTTP and WebSocket requests during the block. The server of the host has its own
    limits for connections and times; those of `config` are considered for bodies and tokens.

    Raises what `AsyncioRuntime.run_on_trio` raises. Needs the extra `http`.
    """
    opened: Future[AsgiApp] = Future()
    leaving = trio.Event()

    async def hold(on_trio: Runtime) -> None:
        from hermes.adapters.http import open_app  # noqa: PLC0415 - it needs an extra

        async with open_app(on_trio, config) as app:
            opened.set_result(app)
            await leaving.wait()

    async def leave(_: Runtime) -> None:
        await trio.lowlevel.checkpoint()
        set_event(leaving)

    holding = asyncio.ensure_future(runtime.run_on_trio(hold))
    try:
        first: set[asyncio.Future[Any]] = {holding, asyncio.wrap_future(opened)}
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await holding  # raises why it could not be opened
        yield functools.partial(_serve, runtime, opened.result())
        with suppress(HermesError):  # the runtime has ended; whoever opened it is told
            await runtime.run_on_trio(leave)
            await holding
    finally:
        holding.cancel()


async def _serve(
    runtime: AsyncioRuntime, app: AsgiApp, scope: Message, receive: Receive, send: Send
) -> None:
    """Serve one request: cancelled here, it is cancelled in the runtime's thread."""
    if scope["type"] not in {"http", "websocket"}:
        raise ValueError(f"the app serves no requests of the type {scope['type']!r}")
    started = False

    async def send_here(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    async def serve(_: Runtime) -> None:
        host = HOST_LOOP.get()
        assert host is not None, "the runtime was opened by an asyncio program"
        to_host = host.run
        await app(
            _clean(scope),
            lambda: to_host(receive),
            lambda message: to_host(lambda: send_here(message)),
        )

    try:
        await runtime.run_on_trio(serve)
    except HermesError:  # the runtime has ended
        if not started:
            await _refuse(scope, send)


def _clean(scope: Message) -> Message:
    kept = {name: value for name, value in scope.items() if name in _SCOPE}
    denial = _DENIAL in (scope.get("extensions") or {})
    return {**kept, "extensions": {_DENIAL: {}} if denial else {}}


async def _refuse(scope: Message, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1012})
        return
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": UNAVAILABLE})
