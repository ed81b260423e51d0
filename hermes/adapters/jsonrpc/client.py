"""A client of the protocol: requests and their responses, and events, over one stream."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
import trio

from hermes.adapters.jsonrpc import types as t
from hermes.adapters.jsonrpc.frames import MAX_LINE, EventParams, Problem, encode
from hermes.adapters.jsonrpc.socket_server import peer_uid
from hermes.adapters.lines import LineSplitter, TooLong
from hermes.background import holding, open_background, protected, set_event, start_soon
from hermes.errors import ActorStopped, HermesError

CHUNK = 65536
MAX_FRAME = 256 * 1024 * 1024
NOT_CONNECTED = "the bot has closed the connection"
R = TypeVar("R", bound=msgspec.Struct)
EventCallback = Callable[[EventParams], None]


class RequestFailed(HermesError):
    """The bot has answered a request with an error: a code and one sentence."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.code: int = problem.code


class _Frame(msgspec.Struct):
    id: int | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Problem | None = None
    params: EventParams | None = None


class _Request(msgspec.Struct):
    id: int
    method: str
    params: t.Params
    jsonrpc: str = "2.0"


class _Pending:
    def __init__(self, then: Callable[[msgspec.Raw], None]) -> None:
        self.then = then
        self.answered = trio.Event()
        self.frame: _Frame | None = None

    def answer(self, frame: _Frame) -> None:
        self.frame = frame
        if frame.error is None:
            self.then(frame.result)
        set_event(self.answered)


class Client:
    """One connection to a bot; use `open_client`. `call` may be used concurrently."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._sending = trio.Lock()
        self._refusal: Problem | None = None
        self.on_event: EventCallback = lambda _: None
        """Called with each event, in order; it must not wait."""
        self.on_end: Callable[[], None] = lambda: None
        """Called when the connection has ended."""
        self.ended: bool = False

    async def call(
        self,
        method: str,
        params: t.Params,
        result: type[R],
        *,
        then: Callable[[R], None] = lambda _: None,
    ) -> R:
        """Send a request and return its result. `then` is called with it before any later event.

        Raises `RequestFailed` if the bot refuses it, `ActorStopped` if the connection ends before
        the response, and `ValueError` if the request is too long.
        """
        request_id = next(self._ids)
        line = encode(_Request(request_id, method, params))
        if len(line) > MAX_LINE:
            raise ValueError(f"the message is too long: a request has at most {MAX_LINE:,} bytes")
        results: list[R] = []

        def answer(raw: msgspec.Raw) -> None:
            results.append(msgspec.json.decode(raw, type=result))
            then(results[0])

        pending = self._pending[request_id] = _Pending(answer)
        try:
            await self._send(line + b"\n")
            if not self.ended:
                await pending.answered.wait()
        finally:
            del self._pending[request_id]
        if pending.frame is None:
            raise self._end()
        if pending.frame.error is not None:
            raise RequestFailed(pending.frame.error)
        return results[0]

    async def _send(self, line: bytes) -> None:
        # A broken connection may still have a frame that says why: `listen` reads it.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with holding(self._sending):
                await self._stream.send_all(line)

    def _end(self) -> HermesError:
        if self._refusal is not None:
            return RequestFailed(self._refusal)
        return ActorStopped(NOT_CONNECTED)

    async def listen(self) -> None:
        """Receive frames until the connection ends."""
        splitter = LineSplitter(MAX_FRAME)
        try:
            while chunk := await self._receive():
                for line in splitter.feed(chunk):
                    self._handle(line)
        finally:
            self.ended = True
            for pending in self._pending.values():
                set_event(pending.answered)
            self.on_end()

    async def _receive(self) -> bytes | bytearray:
        try:
            return await self._stream.receive_some(CHUNK)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def _handle(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            return
        frame = msgspec.json.decode(line, type=_Frame)
        if frame.params is not None:
            self.on_event(frame.params)
        elif frame.id is None:
            self._refusal = frame.error
        elif frame.id in self._pending:
            self._pending[frame.id].answer(frame)


@protected
async def open_client(stream: trio.abc.Stream) -> AsyncIterator[Client]:
    """Speak to the bot at the other end of a stream, which is closed at the end of the block."""
    async with stream, open_background() as background:
        client = Client(stream)
        start_soon(background, client.listen)
        yield client


async def connect(path: str | os.PathLike[str]) -> trio.SocketStream:
    """Connect to the socket of a bot. Raises `OSError`, also if another user has created it."""
    stream = await trio.open_unix_socket(os.fspath(path))
    if peer_uid(stream.socket) not in {None, os.geteuid()}:
        await stream.aclose()
        raise PermissionError(0, "another user has created the socket", os.fspath(path))
    return stream
