"""Decides what of a conversation is shown, so that everything is shown exactly once.

A screen gets its contents from two sources: the events of the operator's own turns while they run,
and outbox rows, which are durable: answers, notices, results of background tasks, messages that an
earlier process could not show. Most things arrive from both sources; the first one is shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import trio

from hermes.adapters.console.activity import (
    THINKING,
    WRITING,
    Activity,
    approval_card,
    is_call,
    tool_card,
)
from hermes.adapters.console.chat import ChatFile
from hermes.adapters.console.screen import Screen
from hermes.background import set_event
from hermes.events import (
    ApprovalAsked,
    Envelope,
    MessageAccepted,
    Notice,
    Retrying,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hermes.messages import Approval, JsonObject, Message, OutboxRow, StoredFile, ToolCall
from hermes.sanitize import one_line, shorten
from hermes.session_keys import CLIENT_PLATFORM
from hermes.texts import ENGLISH, Texts
from hermes.transcript.attachments import describe, readable_text
from hermes.transcript.questions import question

MAX_REMEMBERED = 200
MAX_NAME = 40
MAX_OTHER = 300
"""How many characters of a message of another chat are shown."""
PROMPT = "> "
OTHER = "[other chat]"
DECISIONS = ("/approve", "/deny")
RECOVERED = "You may have seen this before:"
INTERRUPTED = "(interrupted)"
HOW_TO_SAVE = "To keep it in the current folder: /save {name}"


class ConversationView:
    """Shows one conversation on a screen. Its methods must not be called concurrently."""

    def __init__(self, session_key: str, screen: Screen, texts: Texts = ENGLISH) -> None:
        self.screen = screen
        self.texts = texts
        self.rows_ask: bool = False
        """Whether outbox rows have the questions of the console's own turns."""
        self.expected: dict[int, Approval] = {}
        """Calls that wait for an approval, by number: rows with their questions come next."""
        self.failed: bool = False
        """Whether a turn failed or was rejected."""
        self.running: int | None = None
        """The id of the turn whose answer is being shown."""
        self._session_key = session_key
        self._streamed = ""
        """The text of the running answer that was shown."""
        self._since_tool = ""
        """The part of it after the last tool call."""
        self._complete = True
        """Whether no delta of the running answer was lost."""
        self._shown: deque[tuple[int, str]] = deque(maxlen=MAX_REMEMBERED)
        self._tools: dict[str, ToolCall] = {}
        self._asked: list[Approval] = []
        """Calls of the running turn that wait for an approval, and have not returned yet."""
        self._questions: deque[tuple[int, int | None]] = deque(maxlen=MAX_REMEMBERED)
        """The numbers of the calls whose questions were shown, and the turns that ran then."""
        self._others: dict[int, MessageAccepted] = {}
        """Messages of others that wait for their turn."""
        self._by_client = False
        """Whether the running turn answers a JSON-RPC client: no outbox row has its questions."""
        self._activity = Activity()
        self._queued: dict[int, str] = {}
        """Messages that were accepted during a turn, and wait for their own."""
        self._taken: deque[int] = deque(maxlen=MAX_REMEMBERED)
        """Messages whose turn has begun or ended."""
        self._ended: deque[int] = deque(maxlen=MAX_REMEMBERED)
        self._closed = False
        self._changed = trio.Event()

    @cached_property
    def files(self) -> deque[ChatFile]:
        """The latest files that were shown."""
        return deque(maxlen=MAX_REMEMBERED)

    # Events

    async def show_event(self, envelope: Envelope) -> None:
        """Show an event of the conversation."""
        event, turn_id = envelope.event, envelope.turn_id
        match event:
            case TurnEnded():
                await self._end_turn(event)
            case Notice():
                await self._show_notice(turn_id or 0, event.text)
            case Steered():
                await self._take(event.inbox_ids)
                await self._show_others(event.inbox_ids)
            case MessageAccepted():
                self._remember(event)
            case ApprovalAsked():
                await self._ask(event.approval, again=event.again)
            case TurnStarted() | TextDelta() | ToolStarted() | ToolFinished() | Retrying():
                if turn_id is not None and turn_id not in self._ended:
                    await self._continue_turn(turn_id, event)

    async def _show_notice(self, turn_id: int, text: str) -> None:
        if not self._was_shown(turn_id, text):
            await self.screen.finish()
            await self.screen.show(text, markdown=_has_block(text))
            self._shown.append((turn_id, text))

    def _remember(self, message: MessageAccepted) -> None:
        """Remember a message of somebody else until its turn begins."""
        if message.inbox_id not in self._taken:
            self._others[message.inbox_id] = message
        if len(self._others) > MAX_REMEMBERED:
            del self._others[next(iter(self._others))]

    async def _continue_turn(self, turn_id: int, event: RuntimeEvent) -> None:
        if turn_id != self.running:
            self.running, self._streamed, self._since_tool = turn_id, "", ""
            self._complete = True
            self._tools.clear()
            self._asked.clear()
        match event:
            case TurnStarted():
                others = [self._others.get(each) for each in event.inbox_ids]
                self._by_client = any(each and each.platform == CLIENT_PLATFORM for each in others)
                await self._take(event.inbox_ids)
                await self._show_others(event.inbox_ids)
                await self._update(phase=THINKING, since=time.monotonic())
            case TextDelta() if self._complete:
                await self._update(phase=WRITING)
                await self.screen.stream(event.text)
                self._streamed += event.text  # afterwards: a cancelled call has shown nothing
                self._since_tool += event.text
            case ToolStarted():
                self._tools[event.call.id] = event.call
                self._since_tool = ""
                await self.screen.finish()
                await self._update(phase=f"running {shorten(event.call.name, MAX_NAME)}")
            case ToolFinished():
                call = self._tools.pop(event.call_id, ToolCall(event.call_id, "tool"))
                self._since_tool = ""
                await self.screen.finish()
                asked = [each for each in self._asked if event.failed and is_call(each, call)]
                if asked:  # its line was shown before the question
                    self._asked.remove(asked[0])
                else:
                    card = tool_card(call, event.content, self.screen.columns, failed=event.failed)
                    await self.screen.note(card)
                await self._update(phase=THINKING)
            case Retrying():
                await self.screen.alert(event.text)

    async def _ask(self, approval: Approval, *, again: bool) -> None:
        """Show a call that waits for an approval, and its question, unless an outbox row has it."""
        self._asked.append(approval)
        number = approval.approval_id
        if (number, self.running) in self._questions:
            return
        again = again or self._has_asked(number)  # no other row is sent for it
        if self.rows_ask and not self._by_client and not again:
            self.expected[number] = approval
        else:
            await self._show_call(approval)
            await self._show_question(approval)

    async def _show_call(self, approval: Approval) -> None:
        await self.screen.finish()
        await self.screen.note(approval_card(approval, self.screen.columns))

    async def stop_expecting(self) -> None:
        """Show the calls whose questions have not arrived; these are shown when they come."""
        while self.expected:
            await self._show_call(self.expected.pop(next(iter(self.expected))))

    async def show_questions(self, approvals: Sequence[Approval]) -> None:
        """Show the questions of a turn that were not shown yet."""
        for approval in approvals:
            if not self._has_asked(approval.approval_id):
                await self._show_question(approval)

    async def _show_question(self, approval: Approval) -> None:
        await self.screen.show(question(approval, self.texts), markdown=True)
        self._questions.append((approval.approval_id, self.running))

    def _has_asked(self, number: object) -> bool:
        return any(number == each for each, _ in self._questions)

    async def queue(self, inbox_id: int, text: str) -> None:
        """Show a message that waits for its turn; its text moves into the chat when that begins."""
        if inbox_id in self._taken:
            await self.screen.echo(text)
        else:
            self._queued[inbox_id] = text
            await self._update(queued=tuple(self._queued.values()))

    async def _take(self, inbox_ids: Sequence[int], *, echo: bool = True) -> None:
        """The turn of these messages has begun, or ended without one."""
        self._taken.extend(inbox_ids)
        texts = [self._queued.pop(each) for each in inbox_ids if each in self._queued]
        if texts:
            await self._update(queued=tuple(self._queued.values()))
        for text in texts if echo else ():
            await self.screen.echo(text)

    async def _show_others(self, inbox_ids: Sequence[int], answer: str = "") -> None:
        """Show messages of others whose turn has begun, each on one line, perhaps with an answer.

        Messages that Hermes sends to an agent by itself have no text, and are not shown.
        """
        for inbox_id in inbox_ids:
            other = self._others.pop(inbox_id, None)
            if other is not None and (other.text or other.parts):
                said = readable_text(Message("user", other.text, parts=other.parts))
                line = f"{said}: {answer}" if answer else said
                await self.screen.note(f"{OTHER} {shorten(line, MAX_OTHER)}")

    def _is_decision_of_other(self, event: TurnEnded) -> bool:
        """Return whether another chat has decided about a call."""
        texts = [self._others[each].text for each in event.inbox_ids if each in self._others]
        return event.reply.status == "command" and any(
            text.lower().startswith(DECISIONS) for text in texts
        )

    async def set_facts(self, facts: str) -> None:
        """Show the status line."""
        await self._update(facts=facts)

    async def _update(self, **changes: Any) -> None:
        activity = attrs.evolve(self._activity, **changes)
        if activity != self._activity:
            self._activity = activity
            await self.screen.update(activity)

    async def _end_turn(self, event: TurnEnded) -> None:
        reply = event.reply
        if reply.status in {"failed", "refused"}:
            self.failed = True
        row_turn_id = min(event.inbox_ids, default=reply.turn_id)
        decided = self._is_decision_of_other(event)
        await self._show_others(event.inbox_ids, reply.text.replace("`", "") if decided else "")
        if decided:
            pass  # the line above has it
        elif not reply.text or event.dropped_by is not None:  # the command's own end reports it
            if self.running == reply.turn_id:
                await self.screen.finish()
        elif not self._was_shown(row_turn_id, reply.text):
            markdown = reply.status in {"complete", "partial"} or _has_block(reply.text)
            await self._show_answer(reply.turn_id, reply.text, markdown=markdown)
            # Afterwards: if this is cancelled, the outbox row must still be shown.
            self._shown.append((row_turn_id, reply.text))
        await self._show_files(row_turn_id, reply.files)
        if reply.status == "interrupted":
            await self.screen.note(INTERRUPTED)
        if self.running == reply.turn_id:
            self.running = None
            await self._update(phase="")
        await self._take(event.inbox_ids, echo=False)
        self._ended.append(reply.turn_id)
        self._notify()

    def mark_incomplete(self) -> None:
        """Deltas were lost: stop streaming, and show the rest of the answer when it ends."""
        self._complete = False

    # Outbox rows

    async def show_row(self, row: OutboxRow) -> None:
        """Show an outbox row, unless it was shown as an event."""
        text = str(row.body.get("text") or "")
        kind = row.body.get("kind")
        own = row.session_key == self._session_key and row.turn_id
        number = row.body.get("approval")
        if "file" in row.body:
            await self._show_file_row(row, text, own=bool(own))
            return
        if not text or (own and self._was_shown(row.turn_id, text)) or self._has_asked(number):
            return
        if isinstance(number, int) and number in self.expected:
            await self._show_call(self.expected.pop(number))
        if row.recovered:
            await self.screen.note(RECOVERED)
        turn_id = row.turn_id if own and kind == "reply" else None
        markdown = kind in {"reply", "post"} or _has_block(text)
        await self._show_answer(turn_id, text, markdown=markdown)
        if own:
            self._shown.append((row.turn_id, text))
        if isinstance(number, int):
            self._questions.append((number, self.running))

    async def _show_files(self, turn_id: int, files: Sequence[StoredFile]) -> None:
        """Show the files of an answer."""
        new = [file for file in files if not self._was_shown(turn_id, file.id)]
        for file in new:
            await self._show_file(file.part, self._session_key)
            self._shown.append((turn_id, file.id))
        if new:
            await self.screen.note(HOW_TO_SAVE.format(name=new[-1].name or "").rstrip())

    async def _show_file_row(self, row: OutboxRow, text: str, *, own: bool) -> None:
        """Show the row of one file; `text` says what became of it if it was deleted."""
        part: JsonObject = row.body["file"]
        if own and self._was_shown(row.turn_id, part["file"]):
            return
        if row.recovered:
            await self.screen.note(RECOVERED)
        await self._show_file(part, row.session_key, text)
        await self.screen.note(HOW_TO_SAVE.format(name=part.get("name") or "").rstrip())
        if own:
            self._shown.append((row.turn_id, part["file"]))

    async def _show_file(self, part: JsonObject, session_key: str, text: str = "") -> None:
        await self.screen.finish()
        await self.screen.show(one_line(text or describe(part)))
        self.files.append(ChatFile(part, session_key))

    async def _show_answer(self, turn_id: int | None, text: str, *, markdown: bool) -> None:
        """Show an answer without the part that was streamed."""
        if turn_id is not None and turn_id == self.running and self._streamed:
            rest = _rest(text, self._streamed, self._since_tool)
            await self.screen.stream(rest or "")
            await self.screen.finish()
            if rest is not None:
                return
        await self.screen.show(text, markdown=markdown)

    def _was_shown(self, turn_id: int, text: str) -> bool:
        """Return whether the text was shown before, and forget it: it arrives twice at most."""
        if (turn_id, text) not in self._shown:
            return False
        self._shown.remove((turn_id, text))
        return True

    # Waiting

    async def wait_shown(self, turn_id: int) -> None:
        """Wait until the end of a turn was shown, or until the view is closed."""
        while turn_id not in self._ended and not self._closed:
            await self._changed.wait()

    @property
    def busy(self) -> bool:
        """Whether a turn runs, or a message waits for its turn."""
        return self.running is not None or bool(self._queued)

    async def wait_idle(self) -> None:
        """Wait until no turn runs and no message waits, or until the view is closed."""
        while self.busy and not self._closed:
            await self._changed.wait()

    def close(self) -> None:
        """No more events will be shown."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        set_event(self._changed)
        self._changed = trio.Event()


def _has_block(text: str) -> bool:
    """Whether a text of Hermes itself has a code block, such as the arguments of a tool call."""
    return "\n```" in text


def _rest(text: str, streamed: str, since_tool: str) -> str | None:
    """Return the part of an answer that was not streamed; None if it is a different text."""
    if streamed.rstrip().endswith(text.strip()):
        return ""
    for prefix in (since_tool, streamed):
        if text.startswith(prefix):
            return text.removeprefix(prefix)
    return None
