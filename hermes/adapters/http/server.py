"""The HTTP server: accepts connections, and ends them in the right order."""

from __future__ import annotations

import ipaddress
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from starlette.types import ASGIApp

from hermes.actors.runtime import Runtime
from hermes.adapters.http.app import open_app
from hermes.adapters.http.config import HttpConfig
from hermes.adapters.http.socket_connections import Connection
from hermes.background import cancel, open_background, protected, set_event, start_soon
from hermes.errors import HermesError
from hermes.telemetry.collecting import Collected

log: logging.Logger = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that wait to be accepted."""
PING_INTERVAL = 30.0
RESERVED = 100
"""Descriptors for other things than connections, such as the store."""
RETRY = 1.0
"""Seconds until the next attempt if a connection cannot be accepted."""
POLL = 0.05
"""Seconds between two looks at the connections at the end."""


@protected
async def serve_http(
    runtime: Runtime,
    config: HttpConfig | None = None,
    *,
    collected: Collected | None = None,
) -> AsyncIterator[str]:
    """Serve HTTP during the block, which gets the URL.

    `collected` returns the metrics of the runtime for `/metrics`, and the state of its host for
    `/api/status`; by default the server collects them.

    At its end no more connections are accepted. If requests are running, the runtime is drained, so
    that their clients see the end of their turns; then those that have not ended are cut. Clients
    that do not read are not waited for.

    Raises `OSError` if it cannot listen at the address.
    """
    config = config or HttpConfig()
    listener = await _listen(config)
    try:
        async with (
            open_app(runtime, config, collected=collected) as app,
            _serve(app, config, listener, runtime.drain),
        ):
            yield _url(listener)
    finally:
        listener.socket.close()


@protected
async def serve_app(app: ASGIApp, config: HttpConfig) -> AsyncIterator[str]:
    """Serve an ASGI app on Trio during the block, within the limits of `serve_http`."""
    listener = await _listen(config)
    try:
        async with _serve(app, config, listener, trio.lowlevel.checkpoint):
            yield _url(listener)
    finally:
        listener.socket.close()


@protected
async def _serve(
    app: ASGIApp,
    config: HttpConfig,
    listener: trio.SocketListener,
    drain: Callable[[], Awaitable[None]],
) -> AsyncIterator[None]:
    async with open_background() as background:
        server = _Server(app, config)
        start_soon(background, server.accept, listener, background)
        try:
            yield
            await server.finish(drain)
        finally:
            server.abort()


async def _listen(config: HttpConfig) -> trio.SocketListener:
    [(family, _, _, _, address), *_] = await trio.socket.getaddrinfo(
        config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    # The address is resolved, so this does not block.
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


def _url(listener: trio.SocketListener) -> str:
    host, port = listener.socket.getsockname()[:2]
    return f"http://[{host}]:{port}" if _is_ipv6(host) else f"http://{host}:{port}"


def _is_ipv6(host: str) -> bool:
    return isinstance(ipaddress.ip_address(host.partition("%")[0]), ipaddress.IPv6Address)


def _hypercorn_config(config: HttpConfig) -> Config:
    settings = Config()
    settings.accesslog, settings.errorlog = None, log
    settings.include_server_header = False
    settings.h11_max_incomplete_size = config.max_header
    settings.websocket_max_message_size = config.max_body
    settings.websocket_ping_interval = PING_INTERVAL
    return settings


def _affordable(limit: int) -> int:
    """Return how many connections there may be. They leave descriptors for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or limit <= files - RESERVED:
        return limit
    most = min(limit, max(files // 2, files - RESERVED))
    text = "at most %d connections are accepted, because the process may open %d files (ulimit -n)"
    log.info(text, most, files)
    return most


class _Server:
    """The connections.

    If there are as many as allowed, a new one replaces the one that has been without a request for
    the longest time, or else has the oldest request without a valid token: nobody can occupy the
    server without one. If there is none, new ones wait in the queue of the system: a short peak is
    served late instead of refused, and costs nothing here.
    """

    def __init__(self, app: ASGIApp, config: HttpConfig) -> None:
        self._app = app
        self._config = config
        self._most = _affordable(config.max_connections)
        self._settings = _hypercorn_config(config)
        self._context = WorkerContext(None)
        self._connections: dict[Connection, None] = {}
        self._accepting = trio.CancelScope()
        self._left = trio.Event()

    async def accept(self, listener: trio.SocketListener, background: trio.Nursery) -> None:
        """Accept connections until the end."""
        with self._accepting:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # no descriptors are left, for example
                    log.warning("a client could not connect: %s", error.strerror)
                    await self._replace_one()
                else:
                    await self._admit(stream, background)
        listener.socket.close()

    async def _admit(self, stream: trio.SocketStream, background: trio.Nursery) -> None:
        """Serve a connection, as soon as another one is allowed."""
        try:
            await self._make_room()
        except trio.Cancelled:
            stream.socket.close()
            raise
        connection = Connection(stream, self._app, self._config, self._settings, self._context)
        self._connections[connection] = None
        start_soon(background, self._serve, connection)

    async def _make_room(self) -> None:
        """Wait until another connection is allowed."""
        while len(self._connections) >= self._most:
            await self._replace_one()

    async def _replace_one(self) -> None:
        """Close a connection that can be closed, and wait until one has ended."""
        replaceable = [each for each in self._connections if each.replaceable]
        if replaceable:
            min(replaceable, key=lambda each: (not each.idle, each.since)).replace()
        with trio.move_on_after(RETRY):  # or until one is idle
            await self._left.wait()

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            set_event(self._left)
            self._left = trio.Event()

    async def finish(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Let the running requests end, within the time of the drain."""
        cancel(self._accepting)
        await self._context.terminated.set()
        for connection in self._connections:
            connection.close_idle()
        if not all(each.idle for each in self._connections):
            with suppress(HermesError):  # the runtime has failed; its own block raises why
                await drain()
        with trio.move_on_after(self._config.close_timeout):
            while not all(each.is_stalled for each in self._connections):
                with trio.move_on_after(POLL):
                    await self._left.wait()

    def abort(self) -> None:
        """Cut all connections."""
        cancel(self._accepting)
        for connection in self._connections:
            connection.abort()
