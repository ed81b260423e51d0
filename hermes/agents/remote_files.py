"""Attachments that come from another thread, and how the runtime's thread reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from typing import Final, TypeVar

import attrs
import outcome
import trio
from msgspec.structs import replace

from hermes.agents.crossing import thread_context
from hermes.agents.threads import HostLoop, ThreadResult, start_task
from hermes.messages import Attachment, TurnResult

R = TypeVar("R")
T = TypeVar("T")
CLOSE_SECONDS: Final = 5.0
"""How long a generator on another loop may take to close; then it is no longer waited for."""


def from_thread(attachment: Attachment) -> Attachment:
    """Return an attachment of a thread without an event loop. Raises `TypeError` for `chunks`."""
    if attachment.chunks is not None:
        raise TypeError(
            "chunks are read on an event loop, and this program has none: pass file= instead, "
            "an open binary file or any object with read(size)"
        )
    return attachment


def from_loop(attachment: Attachment, host: HostLoop) -> Attachment:
    """Return an attachment whose chunks, if it has any, are read on the loop of the host."""
    if attachment.chunks is None:
        return attachment
    return attrs.evolve(attachment, chunks=_read_on_loop(attachment.chunks, host))


def answer_in_thread(function: Callable[[T], R], turn: T) -> R:
    """Call an agent's function in a thread. Raises `TypeError` if it returns files in chunks."""
    return _with_files(function(turn), from_thread)


async def answer_on_loop(function: Callable[[T], Awaitable[R]], turn: T) -> R:
    """Await an agent's function on its loop; chunks of files that it returns are read there."""
    host = HostLoop(asyncio.get_running_loop(), CLOSE_SECONDS)
    return _with_files(await function(turn), lambda file: from_loop(file, host))


def _with_files(answer: R, crossing: Callable[[Attachment], Attachment]) -> R:
    """Return what an agent returned, which is not validated yet, for the runtime's thread."""
    if not (isinstance(answer, TurnResult) and isinstance(answer.files, list | tuple)):
        return answer
    files = [crossing(file) if isinstance(file, Attachment) else file for file in answer.files]
    return replace(answer, files=files) if files else answer


async def _read_on_loop(
    chunks: AsyncIterable[bytes], host: HostLoop
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of an iterator that belongs to another loop; called on Trio."""
    reader = _LoopReader(chunks, host)
    try:
        while (chunk := await reader.next()) is not None:
            yield chunk
    finally:
        with trio.move_on_after(host.grace_period, shield=True):
            await reader.close()


class _LoopReader:
    """Reads an iterator in one task on the loop of another thread, a chunk whenever one is wanted.

    One task for all chunks: a generator may hold a timeout or a cancel scope between them.
    """

    def __init__(self, chunks: AsyncIterable[bytes], host: HostLoop) -> None:
        self._chunks = chunks
        self._host = host
        self._task: asyncio.Task[None] | None = None
        self._wanted: ThreadResult[bytes | None] = ThreadResult()
        self._continue = asyncio.Event()
        self._ended: ThreadResult[None] = ThreadResult()

    async def next(self) -> bytes | None:
        """Return the next chunk, or None at the end; cancelled here, the task is cancelled."""
        wanted: ThreadResult[bytes | None] = ThreadResult()
        self._host.loop.call_soon_threadsafe(self._want, wanted, context=thread_context())
        return await wanted.wait(self._stop, self._host.grace_period)

    async def close(self) -> None:
        """Stop reading, and wait until the task has ended."""
        if not self._host.loop.is_closed():
            self._host.loop.call_soon_threadsafe(self._cancel)
            await self._ended.wait(self._stop, 0.0)

    # On the loop

    def _want(self, wanted: ThreadResult[bytes | None]) -> None:
        self._wanted = wanted
        self._continue.set()
        if self._task is None:
            self._task = start_task(self._read())
            self._task.add_done_callback(self._on_done)

    async def _read(self) -> None:
        result = await outcome.acapture(self._read_all)
        self._wanted.finish(result)  # the latest one

    async def _read_all(self) -> bytes | None:
        try:
            async for chunk in self._chunks:
                self._continue.clear()
                self._wanted.finish(outcome.Value(chunk))
                await self._continue.wait()
            return None
        finally:
            if isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before its first step
            self._wanted.finish(outcome.Error(asyncio.CancelledError()))
        self._ended.finish(outcome.Value(None))

    def _stop(self) -> None:
        if not self._host.loop.is_closed():
            self._host.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is None:
            self._ended.finish(outcome.Value(None))
        else:
            self._task.cancel()
