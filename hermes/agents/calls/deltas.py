"""The deltas of an answer, on their way from the provider to the turn."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hermes.agents.providers.base import Delta
from hermes.agents.turn_texts import texts_of
from hermes.events import TextDelta
from hermes.protocols import Turn


@attrs.define
class DeltaRelay:
    """Emits the deltas of an answer; a retry does not repeat what was already emitted."""

    turn: Turn
    attempt_started: bool = False
    """Whether the current attempt has produced anything."""
    on_first: Callable[[], object] = lambda: None
    """Called with the first delta of each attempt."""
    _emitted: list[str] = attrs.Factory(list)
    _reasoned: bool = False
    _skip_reasoning: bool = False
    _previous: str = ""
    """The text that earlier attempts have emitted."""
    _matched: int = 0
    """How much of it the current attempt has repeated so far."""

    def start_attempt(self) -> None:
        """Prepare for another attempt to get the same answer."""
        self.attempt_started = False
        self._skip_reasoning = self._reasoned or bool(self._emitted)
        self._previous, self._matched = "".join(self._emitted), 0

    def feed(self, delta: Delta) -> None:
        """Emit the new part of a delta."""
        if not self.attempt_started:
            self.attempt_started = True
            self.on_first()
        if isinstance(delta, TextDelta):
            self._feed_text(delta.text)
        elif not self._skip_reasoning:
            self._reasoned = True
            self.turn.emit(delta)

    def _feed_text(self, text: str) -> None:
        repeated = self._previous[self._matched : self._matched + len(text)]
        if not text.startswith(repeated):  # another answer than before: start again
            text = self._previous[: self._matched] + text
            self._previous, self._emitted = "", [text]
            self.turn.emit(TextDelta(f"\n\n{texts_of(self.turn).retrying}\n\n", restart=True))
            self.turn.emit(TextDelta(text))
            return
        self._matched += len(repeated)
        if new := text[len(repeated) :]:
            self._emitted.append(new)
            self.turn.emit(TextDelta(new))
