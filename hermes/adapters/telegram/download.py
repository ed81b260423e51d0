"""Downloads the file of a message, in pieces and with a bounded number of retries.

A download that breaks off continues where it was. The number of bytes is compared with what
Telegram has said, and never exceeds the limit. The token is not part of any error.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Self, TypeAlias

import attrs
import httpx2
import msgspec
import trio

from hermes.adapters.telegram.api import FAILED, BotApi, Refused, Revoked
from hermes.adapters.telegram.bot_api_types import MALFORMED, FilePath
from hermes.adapters.telegram.media import MAX_DOWNLOAD, NOT_DOWNLOADED, TOO_LARGE, RemoteFile
from hermes.background import cancel, release
from hermes.errors import AttachmentUnavailable, HermesError, OutcomeUnknown, RetryAfter
from hermes.retry import Backoff

log: logging.Logger = logging.getLogger(__name__)

MAX_DOWNLOADS = 8
"""How many files are downloaded at the same time."""
MAX_TRIES = 8
"""How many tries in a row may bring nothing new."""
MAX_SECONDS = 180.0
"""How long one download may take, with all tries."""
MAX_DELAY = 30.0
CLOSE_SECONDS = 5.0
BeforeEnd: TypeAlias = Callable[[], Awaitable[None]]
OnFailure: TypeAlias = Callable[[], None]
_decode_path = msgspec.json.Decoder(FilePath).decode


class _Failed(HermesError):
    """The file cannot be downloaded, and another try would not help."""


@attrs.define(eq=False, kw_only=True)
class Downloads:
    """Makes the downloads of one bot."""

    api: BotApi
    limit: int = MAX_DOWNLOAD
    """The largest file to download, in bytes."""
    retry_delay: float = 1.0
    """Seconds before the first retry; doubled each time."""
    slots: trio.Semaphore = attrs.field(init=False, factory=lambda: trio.Semaphore(MAX_DOWNLOADS))

    def open(self, file: RemoteFile, before_end: BeforeEnd, on_failure: OnFailure) -> Download:
        """Return the content of a file; see `Download`."""
        return Download(self, file, before_end, on_failure)


class Download:
    """The content of a file, as an asynchronous iterator. Use it in an `async with`.

    It begins with the first chunk that is asked for. `before_end` is awaited when there is nothing
    more to download, also after a failure. Raises `AttachmentUnavailable` with a note if the file
    cannot be downloaded, after a call of `on_failure`, and `Revoked`.
    """

    def __init__(
        self,
        downloads: Downloads,
        file: RemoteFile,
        before_end: BeforeEnd,
        on_failure: OnFailure,
    ) -> None:
        self._downloads = downloads
        self._api = downloads.api
        self._file = file
        self._before_end = before_end
        self._on_failure = on_failure
        self._backoff = Backoff(downloads.retry_delay, MAX_DELAY)
        self._tries = 0
        self._received = 0
        self._skip = 0
        """How many bytes of the response are known already."""
        self._size: int | None = None
        self._response: httpx2.Response | None = None
        self._chunks: AsyncGenerator[bytes] | None = None
        self._deadline: float | None = None
        self._has_slot = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._deadline is None:
            await self._take_slot()
            self._deadline = trio.current_time() + MAX_SECONDS
        reason, chunk = NOT_DOWNLOADED, None
        with trio.CancelScope(deadline=self._deadline):
            try:
                chunk = await self._next_chunk()
            except _Failed as failed:
                reason = str(failed)
        if chunk:
            return chunk
        await self._stop()
        await self._before_end()
        if chunk is None:
            log.warning("a file of Telegram was not downloaded: %s", reason)
            self._on_failure()
            note = TOO_LARGE if reason == TOO_LARGE else NOT_DOWNLOADED
            raise AttachmentUnavailable(self._file.note(note))
        raise StopAsyncIteration

    async def _next_chunk(self) -> bytes:
        """Return the next bytes; none at the end. Tries again after failures."""
        while True:
            try:
                if self._chunks is None:
                    self._chunks = await self._open()
                return await self._read(self._chunks)
            except (_Failed, Revoked):
                raise
            except HermesError as error:
                await self._wait_after(error)

    async def _open(self) -> AsyncGenerator[bytes]:
        """Ask Telegram where the file is, and request what is missing of it."""
        try:
            found = _decode_path(await self._api.call("getFile", {"file_id": self._file.file_id}))
        except Refused as refusal:
            if "too big" in refusal.why:
                raise _Failed(TOO_LARGE) from None
            raise
        except MALFORMED:
            raise OutcomeUnknown("the result of getFile cannot be decoded") from None
        self._size = self._file.size if found.file_size is None else found.file_size
        if self._size is not None and self._size > self._downloads.limit:
            raise _Failed(TOO_LARGE)
        self._response = await self._api.open_file(found.file_path or "", self._received)
        self._check(self._response)
        return self._response.aiter_raw()

    def _check(self, response: httpx2.Response) -> None:
        """Raise if the response is not the missing part of the file."""
        status, headers = response.status_code, response.headers
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            seconds: str = headers.get("retry-after", "")
            raise RetryAfter("Telegram asks to wait", float(seconds) if seconds.isdigit() else 1.0)
        if status not in {httpx2.codes.OK, httpx2.codes.PARTIAL_CONTENT}:
            raise OutcomeUnknown(f"Telegram does not send the file ({status})")
        if headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
            raise _Failed("Telegram sends the file in another encoding")
        begins = 0
        if status == httpx2.codes.PARTIAL_CONTENT:
            begins = self._received
            if not headers.get("content-range", "").startswith(f"bytes {begins}-"):
                raise OutcomeUnknown("Telegram sends another part of the file")
        self._skip = self._received - begins
        length: str = headers.get("content-length", "")
        if length.isdigit():
            self._check_size(begins + int(length))

    async def _read(self, chunks: AsyncGenerator[bytes]) -> bytes:
        """Return the next bytes of the response that are not known yet; none at the end."""
        while True:
            try:
                chunk = await anext(chunks, b"")
            except FAILED as error:
                failure = self._api.failure(error)
            else:
                if not chunk:
                    return self._end()
                skipped = min(self._skip, len(chunk))
                self._skip -= skipped
                chunk = chunk[skipped:]
                if not chunk:
                    continue
                self._check_size(self._received + len(chunk))
                self._received += len(chunk)
                self._tries = 0
                self._backoff.reset()
                return chunk
            raise failure

    def _check_size(self, size: int) -> None:
        """Raise `_Failed` if the file is larger than Telegram has said, or than is allowed."""
        if self._size is not None and size > self._size:
            raise _Failed(f"it has more than {self._size} bytes, which Telegram has announced")
        if size > self._downloads.limit:
            raise _Failed(TOO_LARGE)

    def _end(self) -> bytes:
        if self._skip or (self._size is not None and self._received < self._size):
            raise OutcomeUnknown(f"only {self._received} of {self._size} bytes were received")
        return b""

    async def _wait_after(self, error: HermesError) -> None:
        """Wait before the next try. Raises `_Failed` after too many."""
        await self._stop()
        self._tries += 1
        if self._tries >= MAX_TRIES:
            raise _Failed(str(error))
        log.info("the download of a file is tried again: %s", error)
        delay = self._backoff.next()
        await trio.sleep(error.seconds if isinstance(error, RetryAfter) else delay)
        await self._take_slot()

    async def _take_slot(self) -> None:
        await self._downloads.slots.acquire()
        self._has_slot = True

    async def _stop(self) -> None:
        """Close the response, if there is one, and let another download begin."""
        chunks, self._chunks = self._chunks, None
        response, self._response = self._response, None
        if chunks is not None:
            # Abandoned generators would be an error. Cancelled, they finish and close all.
            with trio.CancelScope(shield=True) as scope, suppress(*FAILED):
                cancel(scope)
                async for _ in chunks:
                    pass
        if response is not None:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await response.aclose()
        if self._has_slot:
            self._has_slot = False
            release(self._downloads.slots)
