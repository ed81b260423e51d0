"""The prompt_toolkit side of the terminal: the input line, and printing above it.

The input line is always visible, also while an answer is running. The Markdown block that is still
being written is redrawn above it as a preview; finished blocks are printed permanently. Everything
here runs in the terminal's thread.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.output.vt100 import Vt100_Output

from hermes.adapters.console.activity import FRAMES_PER_SECOND, Activity
from hermes.adapters.console.chat import NamedSession
from hermes.adapters.console.completion import ATTACH, RESUME, choices
from hermes.adapters.console.files.paths import path_choices
from hermes.adapters.console.history import ConsoleHistory, is_recorded
from hermes.adapters.console.markdown import plain, render
from hermes.adapters.console.markdown_stream import BlockSplitter
from hermes.adapters.console.pastes import Pastes
from hermes.adapters.console.view import PROMPT
from hermes.sanitize import sanitize

REFRESH_INTERVAL = 0.05
MAX_PREVIEW = 10_000
"""A longer preview shows only its end, as plain text: rendering it again and again is slow."""
MENU_ROWS = 6
"""Rows for the menu of completions, while a command is typed."""


class Interrupt:
    """Ctrl-C was pressed on an empty line."""


class SessionsRequest:
    """Completion asks for the sessions that can be resumed."""

    def __init__(self) -> None:
        self.sessions: asyncio.Future[Sequence[NamedSession]] = (
            asyncio.get_running_loop().create_future()
        )

    def answer(self, sessions: Sequence[NamedSession]) -> None:
        """Provide the sessions."""
        if not self.sessions.done():  # the completion may have been cancelled
            self.sessions.set_result(sessions)


class Typed:
    """A line that the operator has entered, with long pastes in their short form."""

    def __init__(self, line: str, pastes: Pastes) -> None:
        self.line = line
        self._pastes = pastes

    def expand(self, line: str) -> str:
        """Return a form of the line with the pastes themselves."""
        return self._pastes.expand(line)


Input: TypeAlias = Typed | Interrupt | SessionsRequest


class TerminalView:
    """The contents of the terminal. `report` is called with each input of the operator."""

    def __init__(self, history: Path | None, report: Callable[[Input], None]) -> None:
        self._report = report
        self._splitter = BlockSplitter()
        self._in_answer = False
        """Whether a block of the current answer was printed: a gap goes before the next one."""
        self._preview: StyleAndTextTuples = []
        self._refresh: asyncio.TimerHandle | None = None
        self._activity = Activity()
        self._tick: asyncio.TimerHandle | None = None
        self._pastes = Pastes()
        self._output = _open_output()
        self._session: PromptSession[str] = PromptSession(
            self._prompt,
            output=self._output,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            history=None if history is None else ConsoleHistory(history),
            completer=_InputCompleter(report),
            complete_while_typing=Condition(self._is_command),
            key_bindings=self._key_bindings(),
            reserve_space_for_menu=MENU_ROWS,
            color_depth=ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None,
        )

    async def run(self) -> None:
        """Edit lines until the end of the input."""
        await self._session.prompt_async(set_exception_handler=False, handle_sigint=False)

    # Input

    def _is_command(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _key_bindings(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter")(self._enter)
        keys.add("escape", "enter")(self._new_line)
        keys.add("c-c")(self._interrupt)
        keys.add("<sigint>")(self._interrupt)
        keys.add(Keys.BracketedPaste)(self._paste)
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
            return
        text = buffer.text
        if text.strip():
            buffer.reset(append_to_history=is_recorded(text))
            self._report(Typed(text, self._pastes))

    def put_back(self, line: str) -> None:
        """Put a line that was not accepted back into the input, unless something is typed there."""
        buffer = self._session.default_buffer
        if not buffer.text:
            buffer.text = line
            buffer.cursor_position = len(line)

    def _paste(self, event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(self._pastes.collapse(text))

    def _new_line(self, event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    def _interrupt(self, event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            self._report(Interrupt())

    # Output

    def _prompt(self) -> StyleAndTextTuples:
        # What is drawn last stays on the terminal, so it must not include the preview.
        if self._session.app.is_done:
            return [("bold", PROMPT)]
        now = time.monotonic()
        lines = "".join(f"{line}\n" for line in self._activity.lines(now, self.columns))
        return [*self._preview, ("dim", lines), ("bold", PROMPT)]

    def update(self, activity: Activity) -> None:
        """Show what is going on; the spinner turns by itself while a turn is running."""
        self._activity = activity
        self._session.app.invalidate()
        if activity.phase and self._tick is None and self._session.app.is_running:
            self._turn_spinner()

    def _turn_spinner(self) -> None:
        self._tick = None
        if self._activity.phase and self._session.app.is_running:
            self._session.app.invalidate()
            loop = asyncio.get_running_loop()
            self._tick = loop.call_later(1 / FRAMES_PER_SECOND, self._turn_spinner)

    def stream(self, text: str) -> None:
        """Add a piece of Markdown, and print the blocks that are finished."""
        for block in self._splitter.feed(text):
            self._print_block(block)
        if self._refresh is None and self._session.app.is_running:
            loop = asyncio.get_running_loop()
            self._refresh = loop.call_later(REFRESH_INTERVAL, self._show_preview)

    def finish(self) -> None:
        """Print the rest of an answer."""
        for block in self._splitter.end():
            self._print_block(block)
        self._in_answer = False
        self._clear_preview()

    def echo(self, text: str) -> None:
        """Print a message of the operator; a long paste in its short form."""
        indented = sanitize(self._pastes.shown(text).strip("\n")).replace(
            "\n", "\n" + " " * len(PROMPT)
        )
        self._print(plain(PROMPT + indented, self.columns, "bold"))

    def show(self, text: str, draw: Callable[[str, int], str]) -> None:
        """Print a text that is not part of the answer, which may continue after it."""
        self._print(draw(text, self.columns))

    def _print_block(self, block: str) -> None:
        if block.strip():
            self._clear_preview()
            gap = "\n" if self._in_answer else ""
            self._in_answer = True
            self._print(gap + render(block, self.columns))

    def _print(self, text: str) -> None:
        """Print above the input line, permanently."""
        app = self._session.app
        if app.is_running:
            app.renderer.erase()
        self._output.write_raw(text.replace("\n", "\r\n") + "\x1b[0m\r\n")
        self._output.flush()
        app.invalidate()

    def _show_preview(self) -> None:
        """Show the end of the block that is still being written."""
        self._refresh = None
        text = self._splitter.pending
        if not text.strip():
            return
        size = self._output.get_size()
        if len(text) <= MAX_PREVIEW:
            rendered = render(text, size.columns)
        else:
            rendered = plain(text[-MAX_PREVIEW:], size.columns)
        rows = max(size.rows - self._rows_below(), 1)
        lines = ([""] if self._in_answer else []) + rendered.split("\n")
        self._preview = to_formatted_text(ANSI("\n".join([*lines[-rows:], ""])))
        self._session.app.invalidate()

    def _rows_below(self) -> int:
        """Return how many rows the preview leaves free: for the lines below it, and one more."""
        menu = MENU_ROWS if self._is_command() else 0
        input_rows = max(self._session.default_buffer.document.line_count, menu)
        return len(self._activity.lines(0.0, self.columns)) + input_rows + 1

    def _clear_preview(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            self._refresh = None
        if self._preview:
            self._preview = []
            self._session.app.invalidate()

    @property
    def columns(self) -> int:
        """The width of the terminal."""
        return self._output.get_size().columns


class _InputCompleter(Completer):
    def __init__(self, report: Callable[[Input], None]) -> None:
        self._report = report

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Return nothing: completions are asynchronous."""
        return ()

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the completions of the text before the cursor."""
        line = document.text_before_cursor
        sessions: Sequence[NamedSession] = ()
        if line.lower().startswith(RESUME):
            request = SessionsRequest()
            self._report(request)
            sessions = await request.sessions
        for each in choices(line, sessions):
            yield Completion(each.text, start_position=-each.replaces, display_meta=each.summary)
        if "@" in line or line.lower().startswith(ATTACH):
            loop = asyncio.get_running_loop()
            command = ATTACH if line.lower().startswith(ATTACH) else None
            for path in await loop.run_in_executor(None, path_choices, line, command):
                yield Completion(path.text, start_position=-path.replaces)


def _open_output() -> Output:
    """Open the terminal without cursor position requests: over a slow line the reply is late."""
    output = Vt100_Output.from_pty(sys.stdout, term=os.environ.get("TERM"))
    output.enable_cpr = False
    return output
