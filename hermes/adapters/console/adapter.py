"""The console adapter: reads lines, shows answers and other messages for the operator."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from hermes.actors.commands import parse, recognize
from hermes.actors.runtime import Runtime
from hermes.adapters.console.activity import facts_of
from hermes.adapters.console.chat import Chat, Events, NamedSession, RuntimeChat
from hermes.adapters.console.display_queue import DisplayQueue, Gap, Item, QueuedRow
from hermes.adapters.console.files.commands import LocalFiles, Prepared, console_help
from hermes.adapters.console.plain_screen import MAX_LINE, PlainScreen, read_lines
from hermes.adapters.console.view import PROMPT, ConversationView
from hermes.adapters.lines import TooLong
from hermes.background import cancel, open_background, set_event, start_soon
from hermes.errors import ActorStopped, Draining, HermesError, StoreFailed
from hermes.events import MessageAccepted, TurnEnded
from hermes.messages import OutboxRow, Source
from hermes.protocols import FileReader
from hermes.session_keys import CLIENT_PLATFORM, session_key

if TYPE_CHECKING:
    from hermes.adapters.console.terminal import Terminal
    from hermes.adapters.console.terminal_view import Typed

SOURCE = Source(platform="console", chat_id="console", user_id="operator")
SESSION_KEY = session_key(SOURCE)
QUIT_WINDOW = 2.0
"""Seconds within which a second Ctrl-C quits."""
MAX_COMPLETIONS = 50
ROW_TIMEOUT = 2.0
"""Seconds that a question may take to arrive. Later, it is shown when it comes."""
HOW_TO_QUIT = "Press Ctrl-C again or Ctrl-D to quit."
CONTINUES = "This continues {name} ({messages} messages); /new starts another conversation."
STILL_RUNNING = "Waiting for the answer to finish. Press Ctrl-C to stop it."
LINE_TOO_LONG = f"Line skipped: it is longer than {MAX_LINE:,} bytes."
NOT_ACCEPTED = "Message not accepted: {}"


class Console:
    """The adapter for the platform "console": register it with a runtime, then `run` it there.

    It shows its conversation as it happens, and every outbox row for the console.

    - `greeting` is shown at a terminal; nothing is added to the output of a pipe.
    - `history` is the file that keeps the lines typed at a terminal.
    - `stdin` and `stdout` are file descriptors.
    """

    platform: str = SOURCE.platform
    local: bool = True
    on_trio: bool = True

    def __init__(
        self,
        *,
        session_key: str = SESSION_KEY,
        greeting: str = "",
        history: Path | None = None,
        stdin: int = 0,
        stdout: int = 1,
    ) -> None:
        self.session_key = session_key
        self.greeting = greeting
        self.history = history
        self.stdin = stdin
        self.stdout = stdout
        self.left: bool = False
        """Whether the operator quit with Ctrl-C."""
        self._plain = screen = PlainScreen(stdout, notes=self.at_terminal)
        self._view = ConversationView(session_key, screen)
        self._opened = trio.Event()
        self._queue: DisplayQueue | None = None
        self._last_interrupt = -QUIT_WINDOW
        self._chat_scope = trio.CancelScope()
        self._terminal: Terminal | None = None
        self._conversation: Chat | None = None
        self._files = LocalFiles()

    @property
    def at_terminal(self) -> bool:
        """Whether both input and output are a terminal."""
        return os.isatty(self.stdin) and os.isatty(self.stdout)

    @property
    def failed(self) -> bool:
        """Whether a turn failed, a line was not accepted, or the output cannot be written.

        At a terminal only the output counts: the user has seen the rest.
        """
        return self._plain.failed or (self._view.failed and not self.at_terminal)

    # Output

    async def ready(self, row: OutboxRow, /) -> None:
        """Wait until the chat has begun: before that nothing is shown."""
        await self._opened.wait()

    async def send(self, row: OutboxRow, /) -> None:
        """Show an outbox row, after everything that happened before it."""
        await self._opened.wait()
        if self._queue is not None:
            queued = self._queue.put_row(row)
            await queued.done.wait()
            if queued.shown:
                return
        await self._view.show_row(row)  # the chat is over, and the runtime is closing

    async def send_file(self, row: OutboxRow, file: FileReader, /) -> None:
        """Show what a file is; the user decides whether to save it."""
        await self.send(row)

    async def _collect(self, chat: Chat, events: Events, queue: DisplayQueue) -> None:
        async for envelope in events:
            event = envelope.event
            if not (isinstance(event, MessageAccepted) and chat.has_sent(event)):
                queue.put_event(envelope, events.lost)
        queue.close()

    async def _display(self, queue: DisplayQueue) -> None:
        """Show the items of the queue one after the other, until the chat is over."""
        try:
            while (item := await queue.get()) is not None:
                await self._show_item(item)
                if self._view.expected:
                    await self._show_expected(queue)
                if queue.is_empty and self._view.running is None:
                    await self._plain.restore_prompt()
        finally:
            self._queue = None
            queue.abandon()
            self._view.close()
            cancel(self._chat_scope)  # if the events have ended, so has the conversation

    async def _show_expected(self, queue: DisplayQueue) -> None:
        """Show outbox rows until they had the questions for all calls that wait for an approval.

        They are on their way, and the user reads them before the rest of the turn.
        """
        deadline = trio.current_time() + ROW_TIMEOUT
        while self._view.expected:
            row = None
            with trio.move_on_at(deadline):
                row = await queue.get_question()
            if row is None:
                await self._view.stop_expecting()
                return
            if (asked := queue.take_asked(row.row.body.get("approval"))) is not None:
                await self._view.show_event(asked)  # two calls may be asked for at the same time
            await self._show_item(row)

    async def _show_item(self, item: Item) -> None:
        match item:
            case Gap():
                self._view.mark_incomplete()
            case QueuedRow():
                shown = False
                try:
                    await self._view.show_row(item.row)
                    shown = True
                finally:
                    item.finish(shown=shown)
            case _:
                await self._view.show_event(item)
                if isinstance(item.event, TurnEnded):
                    if item.event.platform == CLIENT_PLATFORM:  # no outbox row has its questions
                        await self._view.show_questions(item.event.reply.approvals)
                    await self._refresh()

    async def _refresh(self) -> None:
        """Update the status line."""
        if self._terminal is not None and self._conversation is not None:
            with contextlib.suppress(HermesError):  # the runtime is about to end
                status = await self._conversation.status()
                await self._view.set_facts(facts_of(status))

    # The chat

    async def run(self, runtime: Runtime) -> bool:
        """Chat until the input ends or the operator quits; return whether nothing failed."""
        return await self.run_chat(RuntimeChat(runtime, self.session_key, SOURCE))

    async def run_chat(self, chat: Chat) -> bool:
        """Same as `run`, for a conversation that may be in another process."""
        self._conversation = chat
        self._view.texts = chat.texts
        self._view.rows_ask = isinstance(chat, RuntimeChat)
        async with self._open_screen():
            with chat.subscribe() as events:
                self._queue = queue = DisplayQueue()
                set_event(self._opened)
                async with trio.open_nursery() as nursery:
                    start_soon(nursery, self._collect, chat, events, queue)
                    start_soon(nursery, self._display, queue)
                    with self._chat_scope:
                        await self._chat(chat)
                    events.close()  # events received so far are still shown
        return not self.failed

    @asynccontextmanager
    async def _open_screen(self) -> AsyncIterator[None]:
        terminal = self._find_terminal()
        if terminal is None:
            yield
            return
        async with terminal as opened:
            self._terminal = self._view.screen = opened
            yield

    def _find_terminal(self) -> contextlib.AbstractAsyncContextManager[Terminal] | None:
        """Return the terminal to open; None if it is too simple or packages are not installed."""
        capable = os.environ.get("TERM", "dumb") != "dumb"
        if not self.at_terminal or not capable or (self.stdin, self.stdout) != (0, 1):
            return None
        try:
            from hermes.adapters.console.terminal import open_terminal  # noqa: PLC0415 - 0.3 s
        except ImportError:
            return None
        return open_terminal(self.history)

    async def _chat(self, chat: Chat) -> None:
        if not self.at_terminal:
            await self._ask_lines(chat, None)
            return
        async with open_background() as background:
            start_soon(background, self._handle_signals, chat)
            if self.greeting:
                await self._view.screen.note(self.greeting)
            await self._show_current(chat)
            if self._terminal is None:
                await self._ask_lines(chat, PROMPT)
            else:
                await self._submit_inputs(chat, self._terminal)
            if self._view.busy:
                await self._view.screen.note(STILL_RUNNING)
                await self._view.wait_idle()

    async def _show_current(self, chat: Chat) -> None:
        """Say which conversation continues."""
        with contextlib.suppress(HermesError):
            status = await chat.status()
            if status.message_count:
                name = status.title or status.session_id or ""
                text = CONTINUES.format(name=name, messages=status.message_count)
                await self._view.screen.note(text)
        await self._refresh()

    async def _ask_lines(self, chat: Chat, prompt: str | None) -> None:
        """Ask one line after the other: the next one is read after the answer to this one."""
        screen = self._view.screen
        assert isinstance(screen, PlainScreen)
        if prompt:
            await screen.prompt(prompt)
        async with contextlib.aclosing(read_lines(self.stdin)) as lines:
            async for line in lines:
                screen.entered()
                if isinstance(line, TooLong):
                    await self._reject(LINE_TOO_LONG)
                elif line.strip():
                    if _quits(line):
                        return
                    await self._ask(chat, line.rstrip())
                if screen.closed:
                    return
                if prompt:
                    await screen.prompt(prompt)

    async def _ask(self, chat: Chat, line: str) -> None:
        if await self._run_locally(chat, line):
            return
        try:
            async with self._files.prepare(line, mentions=self.at_terminal) as message:
                turn_id = await chat.ask(message.text, message.files)
        except (StoreFailed, Draining):
            raise
        except (HermesError, ValueError) as error:
            await self._reject(NOT_ACCEPTED.format(error))
        else:
            await self._view.wait_shown(turn_id)

    async def _submit_inputs(self, chat: Chat, terminal: Terminal) -> None:
        """Submit each line as it is entered, also while an answer is running."""
        from hermes.adapters.console.terminal_view import (  # noqa: PLC0415 - loaded already
            Interrupt,
            SessionsRequest,
            Typed,
        )

        async for item in terminal.inputs:
            match item:
                case Typed():
                    if _quits(item.expand(item.line)):
                        return
                    await self._submit(chat, terminal, item)
                case Interrupt():
                    await self._interrupt(chat)
                case SessionsRequest():
                    await terminal.answer(item, await self._sessions(chat))

    async def _sessions(self, chat: Chat) -> Sequence[NamedSession]:
        try:
            return await chat.sessions(MAX_COMPLETIONS)
        except StoreFailed:
            raise
        except HermesError:
            return []  # completion is a convenience

    async def _submit(self, chat: Chat, terminal: Terminal, typed: Typed) -> None:
        line = typed.line.rstrip()
        if await self._run_locally(chat, line):
            return
        _, command = recognize(typed.expand(line))
        busy = self._view.busy and not command
        try:
            async with self._files.prepare(line, mentions=True) as message:
                if not busy:
                    await self._view.screen.echo(line)
                    await self._note_files(message)
                inbox_id = await chat.submit(typed.expand(message.text), message.files)
            if busy:
                await self._view.queue(inbox_id, line)
                await self._note_files(message)
        except (StoreFailed, Draining, ActorStopped):
            raise
        except (HermesError, ValueError) as error:
            await self._reject(NOT_ACCEPTED.format(error))
            await terminal.put_back(line)

    async def _note_files(self, message: Prepared) -> None:
        if message.files:
            await self._view.screen.note(message.described)

    async def _run_locally(self, chat: Chat, line: str) -> bool:
        """Run a command about files; return whether it was one."""
        if (answer := await self._files.run(chat, line, list(self._view.files))) is None:
            await self._help_locally(line)
            return False
        if self._terminal is not None:
            await self._view.screen.echo(line)
        if answer.failed:
            await self._reject(answer.text)
        else:
            await self._view.screen.show(answer.text)
        return True

    async def _help_locally(self, line: str) -> None:
        """Before the help of a bot in another process, show the commands of the console itself."""
        parsed = parse(line)
        if parsed is not None and parsed.name == "help" and not self._view.rows_ask:
            await self._view.screen.show(console_help(self._view.texts))

    async def _reject(self, reason: str) -> None:
        self._view.failed = True
        await self._view.screen.show(reason)

    # Ctrl-C

    async def _handle_signals(self, chat: Chat) -> None:
        """Handle SIGINT, from a terminal without key events or from another program."""
        if threading.current_thread() is not threading.main_thread():
            return
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                await self._interrupt(chat)

    async def _interrupt(self, chat: Chat) -> None:
        """Interrupt the running turn. Without one, explain how to quit; quit the second time."""
        if await chat.interrupt():
            return
        if trio.current_time() - self._last_interrupt < QUIT_WINDOW:
            self.left = True
            cancel(self._chat_scope)
        else:
            self._last_interrupt = trio.current_time()
            await self._view.screen.note(HOW_TO_QUIT)
            await self._plain.restore_prompt()


def _quits(line: str) -> bool:
    parsed = parse(line.rstrip())
    return parsed is not None and parsed.name == "quit"
