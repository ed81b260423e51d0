"""The running turn of a conversation, whose texts are parsed while they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hermes.adapters.http.api.streams.rendered.patches import difference
from hermes.adapters.http.api.streams.rendered.types import (
    Part,
    ReasoningPart,
    ReasoningUpdate,
    TextPart,
    TextUpdate,
    ToolPart,
    Update,
)
from hermes.adapters.http.markdown.nodes import Element
from hermes.adapters.http.markdown.parsing import GrowingText
from hermes.events import (
    ApprovalAsked,
    AssistantMessage,
    ReasoningDelta,
    RuntimeEvent,
    Steered,
    TextDelta,
    ToolStarted,
    TurnEnded,
)

ENDS_TEXT = (ApprovalAsked, AssistantMessage, Steered, ToolStarted, TurnEnded)
"""Events after which another text begins."""


class _Text:
    def __init__(self, number: int, is_own_file: Callable[[str], bool]) -> None:
        self.number = number
        self.pieces: list[str] = []
        self.ended = False
        self.growing = GrowingText(is_own_file=is_own_file)
        self.finished: list[Element] = []
        self.open: list[Element] = []
        self._fed = 0
        self._complete = False

    @property
    def is_behind(self) -> bool:
        return self._fed < len(self.pieces) or (self.ended and not self._complete)

    def advance(self) -> TextUpdate | None:
        """Parse what is new, and return what it changes."""
        new, self._fed = self.pieces[self._fed :], len(self.pieces)
        for piece in new:
            self.growing.feed(piece)
        finished = self.growing.end() if self.ended else self.growing.take_finished()
        opened = [] if self.ended else self.growing.open_blocks()
        self._complete = self.ended
        patch = difference([*self.open], [*finished, *opened])
        changed = patch.keep < len(self.open) or patch.rest or finished
        self.finished += finished
        self.open = opened
        return TextUpdate(self.number, patch, len(finished)) if changed else None

    def shown(self) -> TextPart:
        return TextPart(self.number, [*self.finished], self.open)


class _Reasoning:
    def __init__(self, number: int) -> None:
        self.number = number
        self.pieces: list[str] = []
        self._sent = 0

    @property
    def is_behind(self) -> bool:
        return self._sent < len(self.pieces)

    def advance(self) -> ReasoningUpdate | None:
        new, self._sent = self.pieces[self._sent :], len(self.pieces)
        return ReasoningUpdate(self.number, "".join(new)) if new else None

    def shown(self) -> ReasoningPart:
        return ReasoningPart(self.number, "".join(self.pieces[: self._sent]))


class GrowingTurn:
    """What a running turn has published, in parts, and how far it was sent."""

    def __init__(self, turn_id: int | None, is_own_file: Callable[[str], bool]) -> None:
        self.turn_id: int | None = turn_id
        self.restarted: bool = False
        """Whether the listeners have to discard the texts that they know."""
        self.parsed: int = 0
        """Characters that were given to the parser for texts that were discarded."""
        self._is_own_file = is_own_file
        self._parts: list[_Text | _Reasoning | ToolPart] = []
        self._next = 0

    def receive_all(self, events: Iterable[RuntimeEvent]) -> None:
        """Take what was published before."""
        for event in events:
            self.receive(event)
        self.restarted = False

    def receive(self, event: RuntimeEvent) -> None:
        """Take an event of the turn."""
        match event:
            case TextDelta(restart=True):
                self._discard()
            case TextDelta(text) if text:
                self._text().pieces.append(text)
            case ReasoningDelta(text) if text:
                self._reasoning().pieces.append(text)
            case ToolStarted(call):
                self._end_text()
                if call.id not in {each.call_id for each in self._tools()}:
                    self._parts.append(ToolPart(self._number(), call.id))
            case _ if isinstance(event, ENDS_TEXT):
                self._end_text()

    def _discard(self) -> None:
        self.parsed += sum(each.growing.parsed for each in self._texts())
        self._parts = [each for each in self._parts if not isinstance(each, _Text)]
        self.restarted = True

    def _text(self) -> _Text:
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Text) or last.ended:
            last = _Text(self._number(), self._is_own_file)
            self._parts.append(last)
        return last

    def _reasoning(self) -> _Reasoning:
        self._end_text()
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Reasoning):
            last = _Reasoning(self._number())
            self._parts.append(last)
        return last

    def _end_text(self) -> None:
        for text in self._texts():
            text.ended = True

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _texts(self) -> list[_Text]:
        return [each for each in self._parts if isinstance(each, _Text)]

    def _tools(self) -> list[ToolPart]:
        return [each for each in self._parts if isinstance(each, ToolPart)]

    @property
    def is_behind(self) -> bool:
        """Whether the listeners do not know everything."""
        parts = [each for each in self._parts if not isinstance(each, ToolPart)]
        return self.restarted or any(each.is_behind for each in parts)

    def advance(self, ended_only: bool) -> list[Update]:
        """Parse what is new, and return what has changed; of open texts only if they are asked for.

        It takes time, so it runs in a thread. The turn must not be used meanwhile.
        """
        updates: list[Update] = []
        for part in self._parts:
            if isinstance(part, ToolPart) or not part.is_behind:
                continue
            if ended_only and isinstance(part, _Text) and not part.ended:
                continue
            update = part.advance()
            if update is not None:
                updates.append(update)
        self.restarted = False
        return updates

    def shown(self) -> list[Part]:
        """Return the parts as the listeners know them."""
        return [each if isinstance(each, ToolPart) else each.shown() for each in self._parts]

    def ended_texts(self) -> dict[str, TextPart]:
        """Return the texts that are complete, with what the listeners know."""
        return {
            "".join(each.pieces): each.shown()
            for each in self._texts()
            if each.ended and not each.is_behind
        }

    @property
    def work(self) -> int:
        """Characters that were given to the parser until now."""
        return self.parsed + sum(each.growing.parsed for each in self._texts())
