"""The screen that is a terminal: a line to edit at the bottom, and the conversation above it.

prompt_toolkit lives on asyncio, so it has a loop and a thread of its own. The line is always there,
also while an answer comes. Above it stands the block of Markdown that is still being written;
finished blocks are printed for good. All writing to the terminal is done in that one thread.
"""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import math
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeAlias

import outcome
import trio
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import History
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output

from hermes.adapters.console.completion import RESUME, choices
from hermes.adapters.console.history import Remembered
from hermes.adapters.console.markdown import plain, render
from hermes.adapters.console.markdown_stream import Blocks
from hermes.messages import SessionSummary
from hermes.sanitize import sanitize

PROMPT = "> "
REFRESH_SECONDS = 0.05
LARGEST_PREVIEW = 10_000
"""Characters of an unfinished block that are still worth showing as Markdown."""
ROOM = 4
"""Rows that the preview leaves for the input."""


class Interrupt:
    """Ctrl-C was pressed on an empty line."""


class Wanted:
    """A line is about to name a conversation: which are there?"""

    def __init__(self) -> None:
        self.sessions: asyncio.Future[Sequence[SessionSummary]] = (
            asyncio.get_running_loop().create_future()
        )

    def offer(self, sessions: Sequence[SessionSummary]) -> None:
        """These."""
        if not self.sessions.done():  # it may have been given up
            self.sessions.set_result(sessions)


Typed: TypeAlias = str | Interrupt | Wanted


class Terminal:
    """A screen, and where the operator's lines come from. Use `open_terminal`.

    After its end it is still a screen, without a line to edit: answers may be on their way.
    """

    def __init__(self, remembered: Remembered) -> None:
        self._token = trio.lowlevel.current_trio_token()
        send, self.typed = trio.open_memory_channel[Typed](math.inf)  # a person fills it
        self._send = send
        self._begun = trio.Event()
        self._ended = False
        self._waiting: set[trio.Event] = set()
        self._outcome: outcome.Outcome[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._paper = _Paper(remembered, self._tell)

    # On Trio

    async def piece(self, text: str) -> None:
        """Show a piece of Markdown."""
        await self._there(functools.partial(self._paper.piece, sanitize(text)))

    async def finish(self) -> None:
        """Print what is still a preview."""
        await self._there(self._paper.finish)

    async def say(self, text: str, *, markdown: bool = False) -> None:
        """Print a text above an answer that is still being written."""
        write = render if markdown else plain
        await self._there(functools.partial(self._paper.say, sanitize(text), write))

    async def aside(self, text: str) -> None:
        """Print it faintly."""
        write = functools.partial(plain, style="dim")
        await self._there(functools.partial(self._paper.say, sanitize(text), write))

    def say_soon(self, text: str) -> None:
        """Print it faintly; from any thread, and without a wait."""
        write = functools.partial(plain, style="dim")
        assert self._loop is not None
        with suppress(RuntimeError):  # the terminal is gone
            self._loop.call_soon_threadsafe(self._paper.say, sanitize(text), write)

    async def offer(self, wanted: Wanted, sessions: Sequence[SessionSummary]) -> None:
        """Answer which conversations there are."""
        await self._there(functools.partial(wanted.offer, sessions))

    async def _there(self, function: Callable[[], None]) -> None:
        """Call it in the terminal's thread, and wait: who shows too much is slowed down."""
        done: list[outcome.Outcome[None]] = []
        wake = trio.Event()

        def call() -> None:
            done.append(outcome.capture(function))
            self._soon(wake.set)

        if not self._ended:
            assert self._loop is not None
            self._waiting.add(wake)
            with suppress(RuntimeError):  # its loop is closed, and it is about to end
                self._loop.call_soon_threadsafe(call)
            with trio.CancelScope(shield=True):  # it will be done, so it must be known to be done
                await wake.wait()
            self._waiting.discard(wake)
        if not done:  # that thread is over: the terminal is ours
            call()
        done[0].unwrap()

    # In the terminal's thread

    def _main(self) -> None:
        self._outcome = outcome.capture(asyncio.run, self._edit())
        self._soon(self._end)

    async def _edit(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._soon(self._begun.set)
        with suppress(EOFError, asyncio.CancelledError):
            await self._paper.run()

    def _tell(self, typed: Typed) -> None:
        self._soon(self._send.send_nowait, typed)

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(trio.RunFinishedError):  # then nobody waits any more
            self._token.run_sync_soon(function, *arguments)

    # Beginning and end

    async def begin(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._main, name="hermes terminal", daemon=True).start()
        with trio.CancelScope(shield=True):  # what was not begun could not be ended
            await self._begun.wait()

    def _end(self) -> None:
        self._ended = True
        self._send.close()
        for each in self._waiting:
            each.set()

    async def end(self) -> None:
        """Give the terminal back as it was; raises what has gone wrong there."""
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
async def open_terminal(remembered: Remembered) -> AsyncIterator[Terminal]:
    """The terminal of this process, for the time of a block."""
    terminal = Terminal(remembered)
    try:
        await terminal.begin()
        with _complaints(terminal.say_soon):
            yield terminal
    finally:
        await terminal.end()


@contextmanager
def _complaints(say: Callable[[str], None]) -> Iterator[None]:
    """What the program logs to this terminal is printed above the line, and not across it."""
    usual = sys.stderr
    if usual is None or not usual.isatty():
        yield
        return
    sys.stderr = aside = _Aside(say)
    logs = [
        each
        for each in logging.getLogger().handlers
        if isinstance(each, logging.StreamHandler) and each.stream is usual
    ]
    try:
        for each in logs:
            each.setStream(aside)
        yield
    finally:
        sys.stderr = usual
        for each in logs:
            each.setStream(usual)


class _Aside(io.TextIOBase):
    """A file whose lines are said."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = ""

    def write(self, text: str, /) -> int:
        """Say the lines that are whole."""
        lines, newline, rest = f"{self._begun}{text}".rpartition("\n")
        self._begun = rest
        if newline:
            self._say(lines)
        return len(text)

    def isatty(self) -> bool:
        """It ends on one."""
        return True


class _Paper:
    """What is on the terminal; of its thread alone."""

    def __init__(self, remembered: Remembered, tell: Callable[[Typed], None]) -> None:
        self._tell = tell
        self._blocks = Blocks()
        self._begun = False
        """Whether a block of the present answer was printed: the next one stands apart."""
        self._preview: StyleAndTextTuples = []
        self._refresh: asyncio.TimerHandle | None = None
        self._output = _output()
        self._session: PromptSession[str] = PromptSession(
            self._message,
            output=self._output,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            history=_Kept(remembered),
            completer=_Completing(tell),
            complete_while_typing=Condition(self._is_command),
            key_bindings=self._keys(),
            reserve_space_for_menu=6,
        )

    async def run(self) -> None:
        """Edit lines until the end of the input."""
        await self._session.prompt_async(set_exception_handler=False, handle_sigint=False)

    # The input

    def _is_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter")(self._enter)
        keys.add("escape", "enter")(self._new_line)
        keys.add("c-c")(self._interrupt)
        keys.add("<sigint>")(self._interrupt)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
            return
        text = buffer.text
        if text.strip():
            buffer.reset(append_to_history=True)
            self._echo(text)
            self._tell(text)

    def _new_line(self, event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    def _interrupt(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            self._tell(Interrupt())

    # The output

    def _message(self) -> StyleAndTextTuples:
        done = self._session.app.is_done  # what is drawn then stays, and the block comes as a whole
        return [*([] if done else self._preview), ("bold", PROMPT)]

    def piece(self, text: str) -> None:
        """Take a piece of Markdown: blocks that are whole are printed."""
        for block in self._blocks.feed(text):
            self._print_block(block)
        if self._refresh is None and self._session.app.is_running:
            loop = asyncio.get_running_loop()
            self._refresh = loop.call_later(REFRESH_SECONDS, self._show_preview)

    def finish(self) -> None:
        """Print what is left of an answer."""
        for block in self._blocks.end():
            self._print_block(block)
        self._begun = False
        self._stop_preview()

    def _echo(self, text: str) -> None:
        shown = sanitize(text.strip("\n")).replace("\n", "\n" + " " * len(PROMPT))
        self._print(plain(PROMPT + shown, self._columns, "bold"))

    def say(self, text: str, write: Callable[[str, int], str]) -> None:
        """Print a text apart from an answer, which may go on after it."""
        self._print(write(text, self._columns))

    def _print_block(self, block: str) -> None:
        if block.strip():
            self._stop_preview()
            gap = "\n" if self._begun else ""
            self._begun = True
            self._print(gap + render(block, self._columns))

    def _print(self, shown: str) -> None:
        """Print above the line, for good."""
        app = self._session.app
        if app.is_running:
            app.renderer.erase()
        self._output.write_raw(shown.replace("\n", "\r\n") + "\x1b[0m\r\n")
        self._output.flush()
        app.invalidate()

    def _show_preview(self) -> None:
        """Show the end of the block that is still being written."""
        self._refresh = None
        text = self._blocks.rest
        if not text.strip():
            return
        size = self._output.get_size()
        if len(text) <= LARGEST_PREVIEW:
            shown = render(text, size.columns)
        else:
            shown = plain(text[-LARGEST_PREVIEW:], size.columns)
        input_rows = self._session.default_buffer.document.line_count
        rows = max(size.rows - ROOM - input_rows, 1)
        lines = ([""] if self._begun else []) + shown.split("\n")
        self._preview = to_formatted_text(ANSI("\n".join([*lines[-rows:], ""])))
        self._session.app.invalidate()

    def _stop_preview(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            self._refresh = None
        if self._preview:
            self._preview = []
            self._session.app.invalidate()

    @property
    def _columns(self) -> int:
        return self._output.get_size().columns


class _Kept(History):
    """The history, as prompt_toolkit asks for it."""

    def __init__(self, remembered: Remembered) -> None:
        super().__init__()
        self._remembered = remembered

    def load_history_strings(self) -> Iterable[str]:
        """The latest first."""
        return reversed(self._remembered.load())

    def append_string(self, string: str) -> None:
        """Remember a line, if it is one to remember."""
        if self._remembered.takes(string):
            super().append_string(string)

    def store_string(self, string: str) -> None:
        """Keep it for the next start."""
        self._remembered.add(string)


class _Completing(Completer):
    def __init__(self, tell: Callable[[Typed], None]) -> None:
        self._tell = tell

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Nothing: it takes a while."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """How the text before the cursor may go on."""
        line = document.text_before_cursor
        sessions: Sequence[SessionSummary] = ()
        if line.lower().startswith(RESUME):
            wanted = Wanted()
            self._tell(wanted)
            sessions = await wanted.sessions
        for each in choices(line, sessions):
            yield Completion(each.text, start_position=-each.replaces, display_meta=each.summary)


def _output() -> Output:
    """The terminal, which is not asked where its cursor is: over a slow line the answer is late."""
    usual = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
    usual.enable_cpr = False
    return usual
