"""The full terminal: an input line at the bottom, and the conversation above it.

prompt_toolkit needs asyncio, so it runs in its own event loop and thread; `Terminal` is its
interface to Trio. Only that thread writes to the terminal (see `TerminalView`).
"""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import math
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import outcome
import trio

from hermes.adapters.console.activity import Activity
from hermes.adapters.console.chat import NamedSession
from hermes.adapters.console.markdown import plain, render_all
from hermes.adapters.console.terminal_view import Input, SessionsRequest, TerminalView
from hermes.background import or_crash, set_event, until_memory
from hermes.sanitize import sanitize


class Terminal:
    """A screen, and the source of the operator's input. Use `open_terminal`.

    After its end it still works as a screen, without an input line, because answers may follow.
    """

    def __init__(self, history: Path | None) -> None:
        self._trio_token = trio.lowlevel.current_trio_token()
        self.inputs: trio.MemoryReceiveChannel[Input]
        send, self.inputs = trio.open_memory_channel[Input](math.inf)  # filled by a person
        self._send = send
        self._started = trio.Event()
        self._ended = False
        self._waiting: set[trio.Event] = set()
        self._outcome: outcome.Outcome[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._view = TerminalView(history, self._report)

    # In the Trio thread

    @property
    def columns(self) -> int:
        """The width of a line."""
        return self._view.columns

    async def stream(self, text: str) -> None:
        """Show the next piece of an answer in Markdown."""
        await self._call(functools.partial(self._view.stream, sanitize(text)))

    async def finish(self) -> None:
        """Print the part of the answer that is still a preview."""
        await self._call(self._view.finish)

    async def show(self, text: str, *, markdown: bool = False) -> None:
        """Print a text above an answer that is still running."""
        draw = render_all if markdown else plain
        await self._call(functools.partial(self._view.show, sanitize(text), draw))

    async def note(self, text: str) -> None:
        """Print a text in a dim style."""
        await self._call(self._note(text))

    async def alert(self, text: str) -> None:
        """Print a text in a dim style."""
        await self.note(text)

    async def echo(self, text: str) -> None:
        """Print a message of the operator."""
        await self._call(functools.partial(self._view.echo, text))

    async def put_back(self, line: str) -> None:
        """Put a line that was not accepted back into the input, unless something is typed there."""
        await self._call(functools.partial(self._view.put_back, line))

    async def update(self, activity: Activity) -> None:
        """Show what is going on, around the input line."""
        await self._call(functools.partial(self._view.update, activity))

    def note_soon(self, text: str) -> None:
        """Print a text in a dim style, from any thread and without waiting."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note(text))

    def _note(self, text: str) -> Callable[[], None]:
        draw = functools.partial(plain, style="dim")
        return functools.partial(self._view.show, sanitize(text), draw)

    async def answer(self, request: SessionsRequest, sessions: Sequence[NamedSession]) -> None:
        """Answer a request for the sessions that can be resumed."""
        await self._call(functools.partial(request.answer, sessions))

    async def _call(self, function: Callable[[], None]) -> None:
        """Call a function in the terminal's thread and wait for it, as backpressure."""
        done: list[outcome.Outcome[None]] = []
        wake = trio.Event()

        def call() -> None:
            done.append(outcome.capture(function))
            self._run_in_trio(set_event, wake)

        if not self._ended:
            assert self._loop is not None
            self._waiting.add(wake)
            with suppress(RuntimeError):  # the loop is closed, and the thread is about to end
                self._loop.call_soon_threadsafe(call)
            with trio.CancelScope(shield=True):  # the call will run, so its end must be known
                await wake.wait()
            self._waiting.discard(wake)
        if not done:  # the thread has ended, so this thread may write to the terminal
            call()
        done[0].unwrap()

    # In the terminal's thread

    def _main(self) -> None:
        self._outcome = outcome.capture(asyncio.run, self._edit())
        self._run_in_trio(self._end)

    async def _edit(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._run_in_trio(set_event, self._started)
        with suppress(EOFError, asyncio.CancelledError):
            await self._view.run()

    def _report(self, item: Input) -> None:
        self._run_in_trio(self._send.send_nowait, item)

    def _run_in_trio(self, function: Callable[..., object], *args: object) -> None:
        with suppress(trio.RunFinishedError):  # the caller no longer waits
            until_memory(self._trio_token.run_sync_soon, or_crash(function), *args)

    # Start and end

    async def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._main, name="hermes terminal", daemon=True).start()
        with trio.CancelScope(shield=True):  # `stop` needs a thread that has started
            await self._started.wait()

    def _end(self) -> None:
        self._ended = True
        self._send.close()
        for each in self._waiting:
            set_event(each)

    async def stop(self) -> None:
        """Stop the thread and restore the terminal; raises the exception that ended the thread."""
        with trio.CancelScope(shield=True):
            if not self._ended and self._loop is not None and self._task is not None:
                with suppress(RuntimeError):  # it has just ended by itself
                    self._loop.call_soon_threadsafe(self._task.cancel)
            wake = trio.Event()
            self._waiting.add(wake)
            if not self._ended:
                await wake.wait()
        assert self._outcome is not None
        self._outcome.unwrap()


@asynccontextmanager
async def open_terminal(history: Path | None) -> AsyncIterator[Terminal]:
    """Open the terminal of this process for the duration of a block.

    `history` is the file that keeps the lines typed; None keeps them in memory.
    """
    terminal = Terminal(history)
    try:
        await terminal.start()
        with _redirect_stderr(terminal.note_soon):
            yield terminal
    finally:
        await terminal.stop()


@contextmanager
def _redirect_stderr(write: Callable[[str], None]) -> Iterator[None]:
    """Print what goes to stderr, including log lines, above the input line."""
    original = sys.stderr
    if original is None or not original.isatty():
        yield
        return
    sys.stderr = redirected = _LineWriter(write)
    handlers = [
        each
        for each in logging.getLogger().handlers
        if isinstance(each, logging.StreamHandler) and each.stream is original
    ]
    try:
        for each in handlers:
            each.setStream(redirected)
        yield
    finally:
        sys.stderr = original
        for each in handlers:
            each.setStream(original)


class _LineWriter(io.TextIOBase):
    """A text file that passes complete lines to a function."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._partial = ""

    def write(self, text: str, /) -> int:
        """Pass on the lines that are complete."""
        lines, newline, rest = f"{self._partial}{text}".rpartition("\n")
        self._partial = rest
        if newline:
            self._write(lines)
        return len(text)

    def isatty(self) -> bool:
        """Return True: the lines end up on a terminal."""
        return True
