"""The screen that is a pipe, a file, or a terminal that can do nothing: text, and no codes."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import AsyncGenerator

import trio

from hermes.adapters.console.line_reader import Lines, TooLong
from hermes.sanitize import sanitize

PIECE = 65536


class PlainScreen:
    """Writes to a descriptor; one text after the other, whoever says it."""

    def __init__(self, descriptor: int, *, asides: bool) -> None:
        self._descriptor = descriptor
        self._asides = asides
        self._at_start = True
        self._writing = trio.Lock()
        self.gone = False
        """Whether nobody reads any more."""

    async def piece(self, text: str) -> None:
        """Write a piece of an answer."""
        await self.write(sanitize(text))

    async def finish(self) -> None:
        """End the line."""
        if not self._at_start:
            await self.write("\n")

    async def say(self, text: str, *, markdown: bool = False) -> None:
        """Write a text on lines of its own."""
        await self.finish()
        await self.piece(text)
        await self.finish()

    async def aside(self, text: str) -> None:
        """Write it for people."""
        if self._asides:
            await self.say(text)

    async def prompt(self, text: str) -> None:
        """Write what stands before the input; the line ends with the input."""
        await self.finish()
        await self.write(text)
        self._at_start = True

    async def write(self, text: str) -> None:
        """Write it as it is."""
        async with self._writing:
            rest = text.encode(errors="replace")
            while rest and not self.gone:
                rest = rest[await self._some(rest[: select.PIPE_BUF]) :]
                self._at_start = text.endswith("\n")

    async def _some(self, content: bytes) -> int:
        """Write some of it, when there is room: who is cancelled before that has written nothing.

        Then it does not wait, or in a thread: a reader who stops holds up nobody else.
        """
        try:
            with contextlib.suppress(PermissionError):  # a plain file has always room
                await trio.lowlevel.wait_writable(self._descriptor)
            return await trio.to_thread.run_sync(_write, self._descriptor, content)
        except OSError:  # most often a broken pipe: the reader has seen enough
            self.gone = True
            return 0


def _write(descriptor: int, content: bytes) -> int:
    try:
        return os.write(descriptor, content)
    except BlockingIOError:  # somebody else has made it so, and has filled it
        return 0


async def read_lines(descriptor: int) -> AsyncGenerator[str | TooLong, None]:
    """The lines of a descriptor, until its end."""
    lines = Lines()
    while piece := await trio.to_thread.run_sync(_read, descriptor, abandon_on_cancel=True):
        for line in lines.feed(piece):
            yield line
    for line in lines.end():
        yield line


def _read(descriptor: int) -> bytes:
    # Not through sys.stdin: an abandoned thread would hold its lock when the program ends.
    while True:
        try:
            return os.read(descriptor, PIECE)
        except BlockingIOError:
            select.select([descriptor], [], [])
        except OSError:  # closed, or the terminal is gone
            return b""
