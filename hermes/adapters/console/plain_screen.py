"""The screen for pipes, files and simple terminals: plain text without escape codes."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import AsyncGenerator

import trio

from hermes.adapters.console.activity import Activity
from hermes.adapters.lines import LineSplitter, TooLong
from hermes.background import holding
from hermes.sanitize import sanitize
from hermes.standard_output import OutputFailed

CHUNK = 65536
MAX_LINE = 1_000_000
STDERR = 2
COLUMNS = 80


class PlainScreen:
    """Writes plain text to a file descriptor. `notes`: whether `note` writes anything."""

    def __init__(self, descriptor: int, *, notes: bool) -> None:
        self._descriptor = descriptor
        self._notes = notes
        self._at_line_start = True
        self._prompt: str | None = None
        """The prompt behind which the user is typing."""
        self._overwritten = False
        """Whether something was written since the prompt."""
        self._lock = trio.Lock()
        self.closed: bool = False
        """Whether the reader has closed its end, or nothing can be written."""
        self.failed: bool = False
        """Whether nothing can be written, for example because the disk is full."""

    @property
    def columns(self) -> int:
        """The width of a line; 80 if it is not a terminal."""
        try:
            return os.get_terminal_size(self._descriptor).columns or COLUMNS
        except OSError:
            return COLUMNS

    async def stream(self, text: str) -> None:
        """Write the next piece of an answer."""
        await self._write(sanitize(text))

    async def finish(self) -> None:
        """End the current line."""
        if not self._at_line_start:
            await self._write("\n")

    async def show(self, text: str, *, markdown: bool = False) -> None:
        """Write a text on separate lines."""
        await self.finish()
        await self.stream(text)
        await self.finish()

    async def note(self, text: str) -> None:
        """Write a text at a terminal only."""
        if self._notes:
            await self.show(text)

    async def alert(self, text: str) -> None:
        """Write a text at a terminal, or else to standard error."""
        if self._notes:
            await self.show(text)
        else:
            await self._report(text)

    async def _report(self, text: str) -> None:
        line = sanitize(text).encode(errors="replace") + b"\n"
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(os.write, STDERR, line)

    async def echo(self, text: str) -> None:
        """Do nothing: the terminal has shown the line while it was typed."""

    async def update(self, activity: Activity) -> None:
        """Do nothing: a line that was written cannot be changed."""

    async def prompt(self, text: str) -> None:
        """Write the prompt; the user's Enter ends its line."""
        await self.finish()
        await self._write(text, is_prompt=True)

    def entered(self) -> None:
        """Note that the user has ended the line of the prompt."""
        self._prompt = None

    async def restore_prompt(self) -> None:
        """Write the prompt again, if something else was written while the user was typing."""
        if self._prompt is not None and self._overwritten:
            await self.prompt(self._prompt)

    async def _write(self, text: str, *, is_prompt: bool = False) -> None:
        async with holding(self._lock):
            rest = text.encode(errors="replace")
            if text and self._prompt is not None and not self._overwritten:
                self._overwritten = True
                rest = b"\n" + rest
            if is_prompt:  # before it is written: the user may answer at once
                self._prompt, self._overwritten = text, False
            while rest and not self.closed:
                rest = rest[await self._write_some(rest[: select.PIPE_BUF]) :]
                self._at_line_start = is_prompt or text.endswith("\n")

    async def _write_some(self, content: bytes) -> int:
        """Wait until the descriptor is writable, write, and return the number of bytes written.

        A caller that is cancelled during the wait has written nothing. The write itself runs in a
        thread, so a reader that stops reading blocks nothing else.
        """
        try:
            with contextlib.suppress(PermissionError):  # regular files are always writable
                await trio.lowlevel.wait_writable(self._descriptor)
            return await trio.to_thread.run_sync(_write, self._descriptor, content)
        except BrokenPipeError:
            self.closed = True
        except OSError as error:
            self.closed = self.failed = True
            await self._report(str(OutputFailed(error.errno, error.strerror)))
        return 0


def _write(descriptor: int, content: bytes) -> int:
    try:
        return os.write(descriptor, content)
    except BlockingIOError:  # another process made the descriptor non-blocking, and it is full
        return 0


async def read_lines(descriptor: int) -> AsyncGenerator[str | TooLong, None]:
    """Yield the lines of a descriptor until its end."""
    splitter = LineSplitter(MAX_LINE)
    while chunk := await trio.to_thread.run_sync(_read, descriptor, abandon_on_cancel=True):
        for line in splitter.feed(chunk):
            yield _decoded(line)
    for line in splitter.end():
        yield _decoded(line)


def _decoded(line: bytes | TooLong) -> str | TooLong:
    return line if isinstance(line, TooLong) else line.decode(errors="replace")


def _read(descriptor: int) -> bytes:
    # Not through sys.stdin: an abandoned thread would hold its lock when the program ends.
    while True:
        try:
            return os.read(descriptor, CHUNK)
        except BlockingIOError:
            select.select([descriptor], [], [])
        except OSError:  # closed, or the terminal is gone
            return b""
