"""What of a conversation is shown, each thing once, however it comes.

Two ways lead to a screen: the events of the operator's own turns, while they run, and outbox rows,
which are on disk: answers, notices, what was done in the background, what an earlier process did
not show any more. Most things come on both, and the first one counts.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from hermes.events import (
    Envelope,
    Notice,
    RuntimeEvent,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import OutboxRow
from hermes.sanitize import shorten

REMEMBERED = 200
SHORT = 100
AGAIN = "This may have been shown before:"
INTERRUPTED = "(interrupted)"


class Screen(Protocol):
    """Where things are shown. Nothing given to it needs to be sanitize."""

    async def piece(self, text: str) -> None:
        """A piece of an answer, which is Markdown."""
        ...

    async def finish(self) -> None:
        """The answer goes on no further."""
        ...

    async def say(self, text: str, *, markdown: bool = False) -> None:
        """A text of its own, also in the midst of an answer, which goes on after it."""
        ...

    async def aside(self, text: str) -> None:
        """Something beside the conversation; people see it, programs do not."""
        ...


class ConversationView:
    """Shows on a screen; one call at a time."""

    def __init__(self, session_key: str, screen: Screen) -> None:
        self.screen = screen
        self.failed = False
        """Whether a turn had no answer."""
        self.running: int | None = None
        """The turn whose answer is being shown."""
        self._key = session_key
        self._said = ""
        self._part = ""  # of it, since the last tool
        self._whole = True  # whether no piece of it is missing
        self._told: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        self._tools: dict[str, str] = {}
        self._ended: deque[int] = deque(maxlen=REMEMBERED)
        self._news = trio.Event()

    # What happens

    async def event(self, envelope: Envelope) -> None:
        """Show an event of the conversation."""
        event, turn_id = envelope.event, envelope.turn_id
        match event:
            case TurnEnded():
                await self._end(event)
            case Notice():
                if not self._was_told(turn_id or 0, event.text):
                    await self.screen.finish()
                    await self.screen.say(event.text)
                    self._told.append((turn_id or 0, event.text))
            case TurnStarted() | TextDelta() | ToolStarted() | ToolFinished():
                if turn_id is not None and turn_id not in self._ended:
                    await self._go_on(turn_id, event)

    async def _go_on(self, turn_id: int, event: RuntimeEvent) -> None:
        if turn_id != self.running:
            self.running, self._said, self._part, self._whole = turn_id, "", "", True
            self._tools.clear()
        match event:
            case TextDelta() if self._whole:
                await self.screen.piece(event.text)
                self._said += event.text  # not before: a piece that was not shown is not said
                self._part += event.text
            case ToolStarted():
                call = event.call
                self._tools[call.id] = call.name
                await self._aside(f"· {call.name} {call.arguments}")
            case ToolFinished():
                name = self._tools.pop(event.call_id, "a tool")
                await self._aside(f"· {name}{' failed' if event.failed else ''}: {event.content}")

    async def _aside(self, text: str) -> None:
        self._part = ""
        await self.screen.finish()
        await self.screen.aside(shorten(text, SHORT))

    async def _end(self, event: TurnEnded) -> None:
        reply = event.reply
        if reply.status in {"failed", "refused"}:
            self.failed = True
        told_as = min(event.inbox_ids, default=reply.turn_id)
        if not reply.text or event.dropped_by is not None:  # which is said at the command's end
            if self.running == reply.turn_id:
                await self.screen.finish()
        elif not self._was_told(told_as, reply.text):
            await self._answer(reply.turn_id, reply.text, markdown=reply.status == "complete")
            self._told.append((told_as, reply.text))  # not before: a row may still have to tell it
        if reply.status == "interrupted":
            await self.screen.aside(INTERRUPTED)
        if self.running == reply.turn_id:
            self.running = None
        self._ended.append(reply.turn_id)
        self._wake()

    def lose(self) -> None:
        """Pieces are missing: the rest of the running answer is shown at its end, as a whole."""
        self._whole = False

    async def row(self, row: OutboxRow) -> None:
        """Show what is in the outbox, if it was not shown as it happened."""
        text = str(row.body.get("text") or "")
        kind = row.body.get("kind")
        own = row.session_key == self._key and row.turn_id
        if not text or (own and self._was_told(row.turn_id, text)):
            return
        if row.recovered:
            await self.screen.aside(AGAIN)
        ours = row.turn_id if own and kind == "reply" else None
        await self._answer(ours, text, markdown=kind == "reply")
        if own:
            self._told.append((row.turn_id, text))

    async def _answer(self, turn_id: int | None, text: str, *, markdown: bool) -> None:
        """Show an answer, without what of it was shown while it came."""
        if turn_id is not None and turn_id == self.running and self._said:
            rest = _rest(text, self._said, self._part)
            await self.screen.piece(rest or "")
            await self.screen.finish()
            if rest is not None:
                return
        await self.screen.say(text, markdown=markdown)

    def _was_told(self, turn_id: int, text: str) -> bool:
        """Whether it was shown before; each thing comes twice at most."""
        if (turn_id, text) not in self._told:
            return False
        self._told.remove((turn_id, text))
        return True

    # Who waits

    async def wait_shown(self, turn_id: int) -> None:
        """Wait until the end of a turn was shown, or nothing will be any more."""
        while turn_id not in self._ended and not self.over:
            await self._news.wait()

    over = False

    def end(self) -> None:
        """There are no more events."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()


def _rest(text: str, said: str, part: str) -> str | None:
    """What of an answer was not said while it came; None where it is another one."""
    if said.rstrip().endswith(text.strip()):
        return ""
    for begun in (part, said):
        if text.startswith(begun):
            return text.removeprefix(begun)
    return None
