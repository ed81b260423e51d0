"""A turn as its agent sees it, and the rows that come of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import attrs
import msgspec
from msgspec.structs import replace

from hermes.actors.budget import InFlightUsage
from hermes.context import TurnContext
from hermes.errors import TurnClosed
from hermes.events import (
    AgentEvent,
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolFinished,
    ToolStarted,
)
from hermes.messages import CostTotals, Inbound, Message, Source, StoredMessage, ToolCall, Usage
from hermes.protocols import Store, ToolRecords
from hermes.redaction.events import EventRedactor
from hermes.redaction.keys import Redact
from hermes.session_keys import payer_of
from hermes.transcript.render import render

INTERRUPTED = "[interrupted before it answered]"
Rows = Sequence[Message | StoredMessage]


class Mail(msgspec.Struct, frozen=True):
    """An accepted message, waiting for its turn."""

    inbox_id: int
    inbound: Inbound
    accepted_at: float | None = None

    @property
    def message(self) -> Message:
        """The message as a row of the transcript."""
        inbound = self.inbound
        text = None if inbound.parts is not None and not inbound.text else inbound.text
        return Message(
            "user", text, self.accepted_at, inbound.platform_message_id, parts=inbound.parts
        )


class RunningTurn:
    """One run of an agent. It ends by `close`; what is said after that is refused."""

    def __init__(  # noqa: PLR0913 - what a turn is made of
        self,
        cell: TurnContext,
        mails: Sequence[Mail],
        messages: Sequence[Message],
        publish: Callable[[RuntimeEvent], None],
        store: Store | None = None,
        in_flight: InFlightUsage | None = None,
        *,
        redact: Redact | None = None,
    ) -> None:
        self.cell = cell
        self.mails = list(mails)
        self.input = messages
        self.history: Rows = ()
        self.deadline = math.inf
        self.records: ToolRecords | None = store
        self.log: list[AgentEvent | Steered] = []
        self.charged: list[Usage] = []
        self._discretion = None if redact is None else EventRedactor(redact, publish)
        self._publish = publish if self._discretion is None else self._discretion.publish
        self._store = store
        self._in_flight = in_flight or InFlightUsage()
        self._steering: list[Mail] = []
        self._closed = False
        self._calls: Counter[tuple[str, str]] = Counter()

    @property
    def session_key(self) -> str:
        return self.cell.session_key

    @property
    def session_id(self) -> str:
        return self.cell.session_id

    @property
    def turn_id(self) -> int:
        return self.mails[0].inbox_id

    @property
    def source(self) -> Source:
        return self.mails[0].inbound.source

    @property
    def text(self) -> str:
        """The input as one text."""
        return "\n\n".join(message.content or "" for message in self.input)

    @property
    def said(self) -> str:
        """What was told so far of what the agent says."""
        if self._discretion is not None:
            return self._discretion.said
        return "".join(f"{event.text}" for event in self.log if isinstance(event, TextDelta))

    def messages(self) -> list[Message]:
        """History and input as a model may be shown them."""
        return render([*self.history, *self.input])

    def charge(self, usage: Usage) -> None:
        """A provider was called: this is on the bill, whatever becomes of the turn."""
        if self._closed:
            raise TurnClosed(f"turn {self.turn_id} is over")
        self.charged.append(usage)

    async def spent(self) -> CostTotals:
        """What this conversation has cost, and this day, with the turns that run."""
        source = self.source
        if self._store is None:
            return CostTotals()
        spent = await self._store.spent(self.session_id, source.platform, source.user_id)
        spent = replace(spent, payer=payer_of(source.platform, source.user_id))
        return self._in_flight.added(spent, self.turn_id)

    def ordinal(self, tool: str, arguments: str) -> int:
        """How often the same call came before in this run; counts this one."""
        if self._closed:
            raise TurnClosed(f"turn {self.turn_id} is over")
        before = self._calls[tool, arguments]
        self._calls[tool, arguments] += 1
        return before

    def emit(self, event: AgentEvent) -> None:
        """Tell what happens. Raises `TurnClosed` once the turn is over."""
        if self._closed:
            raise TurnClosed(f"turn {self.turn_id} is over")
        self.log.append(event)
        self._publish(event)

    def steer(self, mail: Mail) -> bool:
        """Offer input that came meanwhile; False where the turn is already over."""
        if self._closed:
            return False
        self._steering.append(mail)
        return True

    def steered(self) -> list[Message]:
        """Input that asks to be heard now; from here on it belongs to this turn."""
        if self._closed:
            raise TurnClosed(f"turn {self.turn_id} is over")
        taken, self._steering = self._steering, []
        events = [Steered(mail.message, (mail.inbox_id,)) for mail in taken]
        for mail, event in zip(taken, events, strict=True):
            self.mails.append(mail)
            self.log.append(event)
            self._publish(event)
        # The messages of the log themselves: by them it is known which the agent has kept.
        return [event.message for event in events]

    def close(self) -> list[Mail]:
        """End the turn; returns the input that the agent never asked for."""
        if self._discretion is not None:
            self._discretion.close()
        self._closed = self.cell.over = True
        left, self._steering = self._steering, []
        return left

    def restart(self) -> None:
        """The agent runs again from the beginning; what steered it is part of its input now."""
        steered = [event.message for event in self.log if isinstance(event, Steered)]
        self.input = [*self.input, *steered]
        self.log = []
        self._calls.clear()
        if self._discretion is not None:
            self._discretion.restart()


@attrs.define
class _Said:
    """An assistant message while it is put together."""

    text: str = ""
    reasoning: str = ""
    message: Message | None = None
    """The message itself, where the agent has told it whole."""
    calls: list[ToolCall] = attrs.Factory(list)
    results: dict[str, str] = attrs.Factory(dict)
    later: list[Message] = attrs.Factory(list)
    """Input that came while its tools ran; it stands behind their results."""

    @property
    def answered(self) -> bool:
        """Whether its tools have all answered, so that what follows is another message."""
        return bool(self.calls) and len(self.results) == len(self.calls)

    def rows(self) -> list[Message]:
        """The message and the results of its calls; those that are missing were interrupted."""
        if not self.text and not self.calls:
            return self.later
        said = self.message or Message(
            "assistant",
            self.text or None,
            tool_calls=tuple(self.calls),
            reasoning=self.reasoning or None,
        )
        answers = [
            Message(
                "tool",
                self.results.get(call.id, INTERRUPTED),
                tool_call_id=call.id,
                tool_name=call.name,
            )
            for call in self.calls
        ]
        return [said, *answers, *self.later]


def rows_of(log: Sequence[AgentEvent | Steered], text: str | None) -> list[Message]:
    """The rows of what an agent emitted; `text`, where given, is its final answer."""
    rows: list[Message] = []
    said = _Said()
    for event in log:
        if said.answered and not isinstance(event, ToolFinished | Steered):
            rows += said.rows()
            said = _Said()
        _add(said, event)
        if isinstance(event, Steered) and not said.calls:
            rows += said.rows()
            said = _Said()
    if text is not None:
        if said.answered:
            rows += said.rows()
            said = _Said()
        said.text = text
    return rows + said.rows()


def _add(said: _Said, event: AgentEvent | Steered) -> None:
    match event:
        case TextDelta(_, restart) if restart:
            said.text = ""
        case TextDelta(text):
            said.text += text
        case ReasoningDelta(text):
            said.reasoning += text
        case AssistantMessage(message):
            said.message = message
        case ToolStarted(call):
            said.calls.append(call)
        case ToolFinished(call_id, content, _):
            said.results[call_id] = content
        case Steered(message, _):
            said.later.append(message)
