"""Files that clients send in chunks. The bytes go straight to the store, which writes them."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Self

import trio

from hermes.adapters.jsonrpc.frames import FILE_REFUSED, NO_UPLOAD, Refused
from hermes.background import cancel, set_event
from hermes.errors import AttachmentRefused
from hermes.messages import Attachment, StoredFile
from hermes.user_code import contained

IDLE_TIMEOUT = 60.0
"""Seconds that an upload waits for its next chunk."""


class Upload:
    """A file on its way from a client to the store. For one caller at a time, except for `stop`.

    `run` passes the chunks to the store as an asynchronous iterator. A chunk is acknowledged when
    the store asks for the next one, so a client is never far ahead of the disk.
    """

    def __init__(
        self, session_key: str, name: str | None, size: int | None, idle: float = IDLE_TIMEOUT
    ) -> None:
        self.id: str = f"upload_{secrets.token_hex(8)}"
        self.session_key: str = session_key
        self.received: int = 0
        """Bytes that the store has taken."""
        self._name = name
        self._size = size
        self._idle = idle
        self._chunk: bytes | None = None
        """The chunk that the store is taking."""
        self._complete = False
        self._asked = False
        """Whether the store has asked for the first chunk."""
        self._ended = False
        self._file: StoredFile | None = None
        self._error: BaseException | None = None
        self._scope = trio.CancelScope()
        self._changed = trio.Event()

    # The store's side

    async def run(self, put_file: Callable[[Attachment], Awaitable[StoredFile]]) -> None:
        """Store the file, until it is complete, refused or stopped."""
        attachment = Attachment(chunks=self, name=self._name, size=self._size)
        try:
            with self._scope, contained() as caught:
                self._file = await put_file(attachment)
            self._error = caught.error
        finally:
            self._ended = True
            self._notify()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._acknowledge()
        with trio.move_on_after(self._idle):
            while not (self._writing or self._complete):
                await self._changed.wait()
        if self._chunk is not None:
            return self._chunk
        if self._complete:
            raise StopAsyncIteration
        raise AttachmentRefused(f"nothing of the file arrived for {self._idle:g} seconds")

    def _acknowledge(self) -> None:
        """Note that the store has taken everything so far."""
        self.received += len(self._chunk or b"")
        self._chunk, self._asked = None, True
        self._notify()

    @property
    def _writing(self) -> bool:
        return self._chunk is not None

    # The client's side

    async def wait_begun(self) -> None:
        """Wait until the store takes chunks. Raises why it does not."""
        while not (self._asked or self._ended):
            await self._changed.wait()
        self._require_open()

    async def write(self, offset: int, chunk: bytes) -> None:
        """Pass the next bytes to the store; it has taken them when this returns."""
        self._require_open()
        if offset != self.received:
            raise Refused(
                FILE_REFUSED, f"The next chunk has the offset {self.received:,}, not {offset:,}."
            )
        if self._size is not None and offset + len(chunk) > self._size:
            raise Refused(
                FILE_REFUSED, f"The file has more than the announced {self._size:,} bytes."
            )
        self._chunk = chunk
        self._notify()
        while self._writing and not self._ended:
            await self._changed.wait()
        self._require_open()

    async def finish(self) -> StoredFile:
        """Say that the file is complete, and return it once it is stored."""
        self._complete = True
        self._notify()
        while not self._ended:
            await self._changed.wait()
        if self._file is None:
            self._require_open()
        assert self._file is not None
        return self._file

    def _require_open(self) -> None:
        """Raise why the file is not stored, if it has ended."""
        if self._error is not None:
            raise self._error
        if self._ended:
            raise Refused(NO_UPLOAD)

    async def stop(self) -> None:
        """Discard the file. When this returns, nothing of it is on disk."""
        cancel(self._scope)
        while not self._ended:
            await self._changed.wait()

    def _notify(self) -> None:
        set_event(self._changed)
        self._changed = trio.Event()
