"""Lines over byte streams: those of Trio, or those of the process.

The process's own are read and written in threads: they may be pipes, terminals or files, and are
shared with others, whom a descriptor that does not block would surprise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc.connection import Peer, open_peer
from hermes.adapters.jsonrpc.frames import MAX_LINE
from hermes.errors import plain

CHUNK = 65536
LINGER_SECONDS = 30.0
FLUSH_SECONDS = 5.0


class Lines:
    """The lines of a stream, each of a bounded length."""

    def __init__(self, stream: trio.abc.ReceiveStream, limit: int = MAX_LINE) -> None:
        self._stream = stream
        self._limit = limit
        self._buffer = bytearray()
        self._seen = 0
        self._ended = False

    async def read(self) -> bytes | None:
        """The next line, or None at the end; `OverflowError` for one that was too long."""
        skipping = False
        while True:
            end = self._buffer.find(b"\n", self._seen)
            if end < 0 and self._ended:
                end = len(self._buffer)
                if not end and not skipping:
                    return None
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._seen = 0
                if skipping or len(line) > self._limit:
                    raise OverflowError
                return line
            if len(self._buffer) > self._limit:
                skipping = True
            if skipping:
                self._buffer.clear()
            self._seen = len(self._buffer)
            await self._receive()

    async def _receive(self) -> None:
        chunk = await self._stream.receive_some(CHUNK)
        self._ended = not chunk
        self._buffer += chunk


async def serve(
    runtime: Runtime,
    source: trio.abc.ReceiveStream,
    sink: trio.abc.SendStream,
    *,
    linger: float = LINGER_SECONDS,
    stop: trio.Event | None = None,
) -> None:
    """Serve one client until its input ends, or `stop`, and what it has asked for is answered.

    For that it lingers so many seconds, and no longer. A client that reads no more ends it too.
    """
    try:
        async with open_peer(runtime) as peer, trio.open_nursery() as nursery:
            flushed = trio.CancelScope()
            nursery.start_soon(_write, peer, sink, nursery.cancel_scope, flushed)
            peer.greet()
            await _read_until(stop, peer, Lines(source))
            with trio.move_on_after(linger):
                await peer.wait_idle()
            peer.close()
            flushed.deadline = trio.current_time() + FLUSH_SECONDS
    except BaseExceptionGroup as group:
        raise plain(group) from None


async def _read_until(stop: trio.Event | None, peer: Peer, lines: Lines) -> None:
    async with trio.open_nursery() as nursery:
        if stop is not None:
            nursery.start_soon(_cancel_at, stop, nursery.cancel_scope)
        await _read(peer, lines)
        nursery.cancel_scope.cancel()


async def _cancel_at(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def _read(peer: Peer, lines: Lines) -> None:
    while True:
        await peer.wait_room()
        try:
            line = await lines.read()
        except OverflowError:
            peer.refuse_long()
            continue
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        if line is None:
            return
        peer.receive(line)


async def _write(
    peer: Peer,
    sink: trio.abc.SendStream,
    serving: trio.CancelScope,
    flushed: trio.CancelScope,
) -> None:
    try:
        with flushed:
            while (frame := await peer.take()) is not None:
                await sink.send_all(frame + b"\n")
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        serving.cancel()  # nobody reads any more


class _Reading(trio.abc.ReceiveStream):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await trio.to_thread.run_sync(
                os.read, self._descriptor, max_bytes or CHUNK, abandon_on_cancel=True
            )
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class _Writing(trio.abc.SendStream):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            try:
                written = await trio.to_thread.run_sync(
                    os.write, self._descriptor, left, abandon_on_cancel=True
                )
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            left = left[written:]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@contextmanager
def reserved() -> Iterator[tuple[int, int]]:
    """Keep standard input and output for frames: descriptors that only we know.

    What else reads finds an empty input, and what else prints, in this process or in one that it
    starts, goes to standard error.
    """
    sys.stdout.flush()
    ours = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield ours
    finally:
        sys.stdout.flush()
        for number, descriptor in enumerate(ours):
            os.dup2(descriptor, number)
            os.close(descriptor)


async def serve_stdio(
    runtime: Runtime,
    *,
    linger: float = LINGER_SECONDS,
    stop: trio.Event | None = None,
    kept: tuple[int, int] | None = None,
) -> None:
    """Serve the client at the other end of this process's input and output.

    Where they were `reserved` before, what that gave is `kept`.
    """
    with reserved() if kept is None else nullcontext(kept) as (source, sink):
        await serve(runtime, _Reading(source), _Writing(sink), linger=linger, stop=stop)
