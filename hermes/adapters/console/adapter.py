"""The console: lines in, answers out, and what others have to say to the operator."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

import attrs
import trio

from hermes.actors.event_bus import Subscription
from hermes.actors.runtime import Runtime
from hermes.actors.session.commands import parse
from hermes.adapters.console.display_queue import Hole, Item, Queue, WaitingRow
from hermes.adapters.console.history import Remembered
from hermes.adapters.console.line_reader import MAX_LINE, TooLong
from hermes.adapters.console.plain_screen import PlainScreen, read_lines
from hermes.adapters.console.view import ConversationView
from hermes.errors import Draining, HermesError, StoreFailed
from hermes.messages import Inbound, OutboxRow, SessionSummary, Source
from hermes.session_keys import session_key

if TYPE_CHECKING:
    from hermes.adapters.console.terminal import Terminal

SOURCE = Source(platform="console", chat_id="console", user_id="operator")
LEAVE_SECONDS = 2.0
OFFERED = 50
HOW_TO_LEAVE = "Ctrl-D ends the chat, and so does another Ctrl-C."
STILL_RUNNING = "The running answer is waited for; Ctrl-C ends at once."
LONG = f"That line was not taken: it is longer than {MAX_LINE} bytes."
PROMPT = "> "


@attrs.define(eq=False)
class Console:
    """The adapter of the platform "console": register it with the runtime, then `run` it there.

    It shows its conversation as it happens, and whatever else the outbox has for the console.
    """

    platform: ClassVar[str] = SOURCE.platform
    session_key: str = session_key(SOURCE)
    greeting: str = ""
    """Said at a terminal; nothing is added to what goes through a pipe."""
    history: Path | None = None
    stdin: int = 0
    stdout: int = 1
    left: bool = attrs.field(init=False, default=False)
    """Whether the operator has left by Ctrl-C."""
    _showing: ConversationView = attrs.field(init=False)
    _open: trio.Event = attrs.field(init=False, factory=trio.Event)
    _queue: Queue | None = attrs.field(init=False, default=None)
    _asked_to_leave: float = attrs.field(init=False, default=-LEAVE_SECONDS)
    _chatting: trio.CancelScope = attrs.field(init=False, factory=trio.CancelScope)
    _terminal: Terminal | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        self._showing = ConversationView(self.session_key, self._plain())

    @property
    def at_terminal(self) -> bool:
        """Whether a person sits there."""
        return os.isatty(self.stdin) and os.isatty(self.stdout)

    def _plain(self) -> PlainScreen:
        return PlainScreen(self.stdout, asides=self.at_terminal)

    # What the runtime sends

    async def send(self, row: OutboxRow, /) -> None:
        """Show an outbox row, after all that has happened before it."""
        await self._open.wait()
        if self._queue is not None:
            waiting = self._queue.add_row(row)
            await waiting.over.wait()
            if waiting.shown:
                return
        await self._showing.row(row)  # the chat is over, and the runtime ends

    async def _hear(self, heard: Subscription, queue: Queue) -> None:
        async for envelope in heard:
            queue.add(envelope, heard.lost)
        queue.close()

    async def _show(self, queue: Queue) -> None:
        """Show one thing after the other, until the chat is over."""
        try:
            while (item := await queue.take()) is not None:
                await self._show_item(item)
        finally:
            self._queue = None
            queue.give_up()
            self._showing.end()

    async def _show_item(self, item: Item) -> None:
        match item:
            case Hole():
                self._showing.lose()
            case WaitingRow():
                shown = False
                try:
                    await self._showing.row(item.row)
                    shown = True
                finally:
                    item.end(shown=shown)
            case _:
                await self._showing.event(item)

    # The chat

    async def run(self, runtime: Runtime) -> bool:
        """Chat until the input ends, or `left`; says whether every turn was answered."""
        async with self._screen():
            with runtime.events(self.session_key) as heard:
                self._queue = queue = Queue()
                self._open.set()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._hear, heard, queue)
                    nursery.start_soon(self._show, queue)
                    with self._chatting:
                        await self._chat(runtime)
                    heard.close()  # what was heard is still shown
        return not self.failed

    @property
    def failed(self) -> bool:
        """Whether something that was said had no answer."""
        return self._showing.failed

    @asynccontextmanager
    async def _screen(self) -> AsyncIterator[None]:
        terminal = self._find_terminal()
        if terminal is None:
            yield
            return
        async with terminal as opened:
            self._terminal = self._showing.screen = opened
            yield

    def _find_terminal(self) -> contextlib.AbstractAsyncContextManager[Terminal] | None:
        """The terminal, where there is one that can be used and what it needs is installed."""
        able = os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")
        if not self.at_terminal or not able or (self.stdin, self.stdout) != (0, 1):
            return None
        try:
            from hermes.adapters.console.terminal import open_terminal  # noqa: PLC0415 - 0.3 s
        except ImportError:
            return None
        return open_terminal(Remembered(self.history))

    async def _chat(self, runtime: Runtime) -> None:
        if not self.at_terminal:
            await self._take_lines(runtime, None)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_signals, runtime)
            if self.greeting:
                await self._showing.screen.aside(self.greeting)
            if self._terminal is None:
                await self._take_lines(runtime, PROMPT)
            else:
                await self._take_typed(runtime, self._terminal)
            nursery.cancel_scope.cancel()
        if self._showing.running is not None and not self.left:
            await self._showing.screen.aside(STILL_RUNNING)

    async def _take_lines(self, runtime: Runtime, prompt: str | None) -> None:
        """One line after the other: the next is read when this one is answered."""
        screen = self._showing.screen
        assert isinstance(screen, PlainScreen)
        if prompt:
            await screen.prompt(prompt)
        async with contextlib.aclosing(read_lines(self.stdin)) as lines:
            async for line in lines:
                if isinstance(line, TooLong):
                    await self._refuse(LONG)
                elif line.strip():
                    await self._ask(runtime, line.strip())
                if screen.gone:
                    return
                if prompt:
                    await screen.prompt(prompt)

    async def _ask(self, runtime: Runtime, text: str) -> None:
        try:
            reply = await runtime.ask(self.session_key, text, source=SOURCE)
        except (StoreFailed, Draining):
            raise
        except (HermesError, ValueError) as error:
            await self._refuse(f"That was not taken: {error}")
        else:
            await self._showing.wait_shown(reply.turn_id)

    async def _take_typed(self, runtime: Runtime, terminal: Terminal) -> None:
        """Each line as it is typed, whether an answer runs or not."""
        from hermes.adapters.console.terminal import Interrupt, Wanted  # noqa: PLC0415 - loaded

        async for typed in terminal.typed:
            match typed:
                case str():
                    await self._submit(runtime, typed)
                case Interrupt():
                    await self._interrupt(runtime)
                case Wanted():
                    await terminal.offer(typed, await self._sessions(runtime))

    async def _sessions(self, runtime: Runtime) -> list[SessionSummary]:
        try:
            return await runtime.sessions(self.session_key, limit=OFFERED)
        except StoreFailed:
            raise
        except HermesError:
            return []  # it was only to spare some typing

    async def _submit(self, runtime: Runtime, text: str) -> None:
        text = text.strip()
        inbound = Inbound(
            self.session_key, uuid4().hex, text, SOURCE, command=parse(text) is not None
        )
        try:
            await runtime.submit(inbound)
        except (StoreFailed, Draining):
            raise
        except (HermesError, ValueError) as error:
            await self._refuse(f"That was not taken: {error}")

    async def _refuse(self, why: str) -> None:
        self._showing.failed = True
        await self._showing.screen.say(why)

    # Ctrl-C

    async def _hear_signals(self, runtime: Runtime) -> None:
        """Ctrl-C as a signal: of a terminal that sends no keys, or from another program."""
        if threading.current_thread() is not threading.main_thread():
            return
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                await self._interrupt(runtime)

    async def _interrupt(self, runtime: Runtime) -> None:
        """Stop the running turn; without one say how to leave, and leave if asked again."""
        if await runtime.interrupt(self.session_key):
            return
        if trio.current_time() - self._asked_to_leave < LEAVE_SECONDS:
            self.left = True
            self._chatting.cancel()
        else:
            self._asked_to_leave = trio.current_time()
            await self._showing.screen.aside(HOW_TO_LEAVE)
