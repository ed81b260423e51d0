"""JSON-RPC over a Unix socket beside the database, for clients of the same user.

Only the owner of the runtime lock creates or removes the socket, so one that exists already is
stale and is replaced. The socket starts to listen after its mode is 0600: nobody else can connect,
not even for a moment. The user of each client is checked as well.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc.frames import NOT_NOW, Failure, Problem, encode
from hermes.adapters.jsonrpc.stdio import serve
from hermes.background import open_background, protected, set_event, start_soon
from hermes.user_code import contained

log: logging.Logger = logging.getLogger(__name__)

MAX_CLIENTS = 32
MAX_ADDRESS = 100
"""Bytes; operating systems allow a few more."""
CLOSE_TIMEOUT = 2.0
BACKLOG = 16
TOO_MANY_CLIENTS = f"{MAX_CLIENTS} clients are connected; try again later."
_CREDENTIALS = struct.Struct("3i")


def socket_path(database: Path) -> Path:
    """Return the path of the socket of the bot that owns a database."""
    return database.with_name(f"{database.name}.socket")


def peer_uid(connected: trio.socket.SocketType) -> int | None:
    """Return the user of the process at the other end; None if the system does not tell."""
    try:
        option = socket.SO_PEERCRED
    except AttributeError:  # not on this system: the mode of the socket protects it
        return None
    raw = connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)


@protected
async def serve_socket(
    runtime: Runtime, database: Path, *, max_clients: int = MAX_CLIENTS
) -> AsyncIterator[None]:
    """Serve clients during the block. If there are any at its end, the runtime is drained first.

    So they see the end of the answers that are running. If the socket cannot be created, that is
    logged, and the block runs without it.
    """
    path = socket_path(database)
    listener = _listen(path)
    if listener is None:
        yield
        return
    server = _Server(runtime, max_clients)
    try:
        async with open_background() as background:
            start_soon(background, server.accept, trio.SocketListener(listener), background)
            yield
            await server.finish()
    finally:
        listener.close()
        with suppress(OSError):
            path.unlink()


def _listen(path: Path) -> trio.socket.SocketType | None:
    """Return a listening socket at this path, for this user only; None if that is impossible."""
    new = path.with_name(f"{path.name}.new")
    if len(os.fsencode(new)) > MAX_ADDRESS:
        log.info("no console can attach: the path %s is longer than %d bytes", new, MAX_ADDRESS)
        return None
    listener = socket.socket(socket.AF_UNIX)
    try:
        new.unlink(missing_ok=True)
        listener.bind(os.fspath(new))
        new.chmod(0o600)
        listener.listen(BACKLOG)  # before this, connecting is refused
        new.rename(path)
    except OSError as error:
        log.warning("no console can attach: %s: %s", path, error.strerror)
        listener.close()
        return None
    return trio.socket.from_stdlib_socket(listener)


class _Server:
    def __init__(self, runtime: Runtime, max_clients: int) -> None:
        self._runtime = runtime
        self._max_clients = max_clients
        self._clients = 0
        self._stop = trio.Event()
        self._left = trio.Event()

    async def accept(self, listener: trio.SocketListener, background: trio.Nursery) -> None:
        """Accept clients until cancelled."""
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # no descriptors are left: try again later
                log.warning("a client could not connect: %s", error.strerror)
                await trio.sleep(1)
            else:
                start_soon(background, self._serve, stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            if peer_uid(stream.socket) not in {None, os.geteuid()}:
                log.warning("a client of another user was refused")
                return
            if self._clients >= self._max_clients:
                await _refuse(stream)
                return
            self._clients += 1
            try:
                with contained() as caught:  # a failing client must not end the bot
                    await serve(self._runtime, stream, stream, stop=self._stop)
                if caught.error is not None:
                    log.error("the connection to a client failed", exc_info=caught.error)
            finally:
                self._clients -= 1
                set_event(self._left)
                self._left = trio.Event()

    async def finish(self) -> None:
        """Drain the runtime if clients are connected, and disconnect them."""
        if self._clients:
            await self._runtime.drain()
        set_event(self._stop)
        with trio.move_on_after(CLOSE_TIMEOUT):
            while self._clients:
                await self._left.wait()


async def _refuse(stream: trio.SocketStream) -> None:
    """Tell a client that there are too many."""
    frame = Failure(seq=1, id=None, error=Problem(NOT_NOW, TOO_MANY_CLIENTS))
    with trio.move_on_after(CLOSE_TIMEOUT), suppress(trio.BrokenResourceError):
        await stream.send_all(encode(frame) + b"\n")
