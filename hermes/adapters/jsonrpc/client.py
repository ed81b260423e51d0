"""A client of the protocol: requests and their responses, and events, over one stream."""

from __future__ import annotations

import binascii
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import BinaryIO, TypeVar

import msgspec
import trio

from hermes.adapters.jsonrpc import events as e, types as t
from hermes.adapters.jsonrpc.files.sources import open_source
from hermes.adapters.jsonrpc.frames import MAX_LINE, EventParams, Problem, encode
from hermes.adapters.jsonrpc.socket_server import peer_uid
from hermes.adapters.lines import LineSplitter, TooLong
from hermes.background import open_background, protected, set_event, start_soon
from hermes.errors import ActorStopped, AttachmentRefused, HermesError
from hermes.messages import Attachment, StoredFile

CHUNK = 65536
CANCEL_TIMEOUT = 2.0
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
        self._unsent: deque[bytes] = deque()
        self._given = trio.Event()
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
            self._send(line + b"\n")
            if not self.ended:
                await pending.answered.wait()
        finally:
            del self._pending[request_id]
        if pending.frame is None:
            raise self._end()
        if pending.frame.error is not None:
            raise RequestFailed(pending.frame.error)
        return results[0]

    async def upload(self, session_id: str, attachment: Attachment) -> StoredFile:
        """Send a file to the conversation with this handle, and return it as the bot stores it.

        A path or an open file is read here, in a thread; a chunk is read when the bot has taken the
        one before. For a message, pass `t.Part(file=stored.id)`. Raises `AttachmentRefused` if the
        file cannot be read, and what `call` raises; then the bot keeps nothing of it.
        """
        async with open_source(attachment) as source:
            begin = t.BeginParams(
                session_id=session_id, name=attachment.file_name, size=source.size
            )
            upload = (await self.call("file.begin", begin, t.BeginResult)).upload
            try:
                offset = 0
                async for chunk in source.chunks:
                    data = binascii.b2a_base64(chunk, newline=False).decode()
                    params = t.ChunkParams(upload=upload, offset=offset, data=data)
                    offset = (await self.call("file.chunk", params, t.ChunkResult)).received
                done = await self.call("file.end", t.UploadParams(upload=upload), e.FilePart)
            except BaseException:
                await self._cancel(upload)
                raise
        return done.stored

    async def _cancel(self, upload: str) -> None:
        """Discard an upload, unless the bot has done so."""
        deadline = trio.current_time() + CANCEL_TIMEOUT
        with (
            trio.CancelScope(shield=True, deadline=deadline),
            suppress(RequestFailed, ActorStopped),
        ):
            await self.call("file.cancel", t.UploadParams(upload=upload), t.CancelResult)

    async def download(self, session_id: str, file_id: str, to: BinaryIO) -> StoredFile:
        """Write the content of a file of a conversation to an open file, in a thread.

        Raises what `call` and `to.write` raise, and `AttachmentRefused` if bytes are missing.
        """
        offset = 0
        while True:
            params = t.ReadParams(session_id=session_id, file=file_id, offset=offset)
            read = await self.call("file.read", params, t.ReadResult)
            await trio.to_thread.run_sync(to.write, read.data)
            offset += len(read.data)
            if offset >= read.stored.size:
                return read.stored
            if not read.data:
                raise AttachmentRefused("a part of the file is missing")

    def _send(self, line: bytes) -> None:
        self._unsent.append(line)
        set_event(self._given)

    async def write(self) -> None:
        """Send requests until the connection ends: each entirely, also if its call is cancelled."""
        # A broken connection may still have a frame that says why: `listen` reads it.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                if not self._unsent:
                    self._given = trio.Event()
                    await self._given.wait()
                await self._stream.send_all(self._unsent.popleft())

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
        start_soon(background, client.write)
        yield client


async def connect(path: str | os.PathLike[str]) -> trio.SocketStream:
    """Connect to the socket of a bot. Raises `OSError`, also if another user has created it."""
    stream = await trio.open_unix_socket(os.fspath(path))
    if peer_uid(stream.socket) not in {None, os.geteuid()}:
        await stream.aclose()
        raise PermissionError(0, "another user has created the socket", os.fspath(path))
    return stream
