"""The transport: lines over two Trio streams, or over standard input and output.

Standard input and output are read and written in threads. They may be pipes, terminals or files,
and other processes may share them, so they must not be made non-blocking.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import trio

from hermes.actors.runtime import Runtime
from hermes.adapters.jsonrpc.connection import Connection, open_connection
from hermes.adapters.jsonrpc.frames import MAX_LINE
from hermes.adapters.lines import LineSplitter, TooLong
from hermes.background import cancel, open_background, set_event, start_soon

CHUNK = 65536
LINGER_TIMEOUT = 30.0
FLUSH_TIMEOUT = 5.0
_DISCONNECTED = (trio.BrokenResourceError, trio.ClosedResourceError)


async def serve(
    runtime: Runtime,
    source: trio.abc.ReceiveStream,
    sink: trio.abc.SendStream,
    *,
    linger: float = LINGER_TIMEOUT,
    stop: trio.Event | None = None,
) -> bool:
    """Serve one client until its input ends or `stop` is set.

    Then it waits up to `linger` seconds for the answers to what the client has sent, and returns
    whether that was long enough. It also ends if the client stops reading.
    """
    lingering = trio.CancelScope()
    async with open_connection(runtime) as connection, open_background() as background:
        with trio.CancelScope() as serving:
            written = trio.Event()
            start_soon(background, _write, connection, sink, serving, written)
            connection.greet()
            await _read_until(stop, connection, source)
            lingering.deadline = trio.current_time() + linger
            with lingering:
                await connection.wait_idle()
            connection.close()
            with trio.move_on_after(FLUSH_TIMEOUT):
                await written.wait()
    return not lingering.cancelled_caught


async def _read_until(
    stop: trio.Event | None, connection: Connection, source: trio.abc.ReceiveStream
) -> None:
    with trio.CancelScope() as reading:
        async with open_background() as background:
            if stop is not None:
                start_soon(background, _cancel_when_set, stop, reading)
            await _read(connection, source)


async def _cancel_when_set(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    cancel(scope)


async def _read(connection: Connection, source: trio.abc.ReceiveStream) -> None:
    splitter = LineSplitter(MAX_LINE)
    ended = False
    while not ended:
        await connection.wait_writable()
        try:
            chunk = await source.receive_some(CHUNK)
        except _DISCONNECTED:
            return
        ended = not chunk
        for line in splitter.end() if ended else splitter.feed(chunk):
            await connection.wait_writable()
            if isinstance(line, TooLong):
                connection.reject_long_line()
            else:
                connection.receive(line)


async def _write(
    connection: Connection,
    sink: trio.abc.SendStream,
    serving: trio.CancelScope,
    written: trio.Event,
) -> None:
    try:
        while (frame := await connection.next_frame()) is not None:
            try:
                await sink.send_all(frame + b"\n")
            except BaseException:
                connection.lose_last_frame()
                raise
        set_event(written)
    except _DISCONNECTED:
        cancel(serving)  # the client has stopped reading


class _FdReceiveStream(trio.abc.ReceiveStream):
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


class _FdSendStream(trio.abc.SendStream):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            try:
                written = await trio.to_thread.run_sync(
                    os.write, self._descriptor, rest, abandon_on_cancel=True
                )
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error
            rest = rest[written:]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@contextmanager
def reserve_stdio() -> Iterator[tuple[int, int]]:
    """Reserve standard input and output for frames; yields private descriptors of both.

    During the block, other code of this process and its children reads an empty input, and what it
    prints goes to standard error.
    """
    sys.stdout.flush()
    reserved = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    try:
        yield reserved
    finally:
        sys.stdout.flush()
        for number, descriptor in enumerate(reserved):
            os.dup2(descriptor, number)
            os.close(descriptor)


async def serve_stdio(
    runtime: Runtime,
    *,
    linger: float = LINGER_TIMEOUT,
    stop: trio.Event | None = None,
    descriptors: tuple[int, int] | None = None,
) -> bool:
    """Serve the client at standard input and output; see `serve`.

    `descriptors` is the value of `reserve_stdio`, if the caller has reserved them already.
    """
    with reserve_stdio() if descriptors is None else nullcontext(descriptors) as (source, sink):
        return await serve(
            runtime, _FdReceiveStream(source), _FdSendStream(sink), linger=linger, stop=stop
        )
