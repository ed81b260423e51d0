"""Encoded conversation histories, kept between turns.

A turn encodes only the messages that are new, and everything that was sent before is sent again
byte for byte, so that the provider can serve it from its own prompt cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs

from hermes.agents.providers.base import Provider
from hermes.messages import Message, StoredMessage
from hermes.transcript.render import AlternatingRenderer, IncrementalRenderer

MAX_SESSIONS = 16
Rows = Sequence[Message | StoredMessage]


@attrs.define
class _EncodedHistory:
    """The encoded history of one session."""

    renderer: IncrementalRenderer
    encoded: bytearray = attrs.Factory(bytearray)
    count: int = 0
    last_id: int | None = None

    def is_prefix_of(self, history: Rows) -> bool:
        """Whether the history still begins with the rows that were encoded.

        Rows never change, and rows that replace others have new ids, so comparing the id of the
        last row is enough.
        """
        if self.count == 0:
            return True
        if self.last_id is None or self.count > len(history):
            return False
        return _id(history[self.count - 1]) == self.last_id


@attrs.define
class TurnMessages:
    """The encoded messages of the current turn; once stored, they encode to the same bytes."""

    _provider: Provider
    _renderer: IncrementalRenderer
    encoded: list[bytes] = attrs.Factory(list)

    def add(self, rows: Rows) -> None:
        """Append messages; an assistant message must come with the results of its tool calls."""
        self.encoded += self._provider.encode(self._renderer.add(rows))

    def suffix(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages as they can follow the turn so far, without adding them to it."""
        if not messages or not self._provider.endpoint.alternate_roles:
            return messages
        return self._renderer.copy().add(messages)


class PromptCache:
    """LRU cache of the encoded histories of an agent's sessions."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._histories: OrderedDict[str, _EncodedHistory] = OrderedDict()

    def history(self, session_id: str, rows: Rows) -> bytearray:
        """Return the encoded rows; rows that were encoded before keep their bytes."""
        history = self._histories.pop(session_id, None)
        if history is None or not history.is_prefix_of(rows):
            history = _EncodedHistory(self._new_renderer())
        self._extend(history, rows)
        self._histories[session_id] = history
        while len(self._histories) > MAX_SESSIONS:
            self._histories.popitem(last=False)
        return history.encoded

    def start_turn(self, session_id: str) -> TurnMessages:
        """Return an empty list of messages that follow the history of a session."""
        history = self._histories.get(session_id)
        renderer = self._new_renderer() if history is None else history.renderer.copy()
        return TurnMessages(self._provider, renderer)

    def _new_renderer(self) -> IncrementalRenderer:
        return (
            AlternatingRenderer()
            if self._provider.endpoint.alternate_roles
            else IncrementalRenderer()
        )

    def _extend(self, history: _EncodedHistory, rows: Rows) -> None:
        new = rows[history.count :]
        if not new:
            return
        encoded = self._provider.encode(history.renderer.add(new))
        if encoded:
            history.encoded += (b"," if history.encoded else b"") + b",".join(encoded)
        history.count, history.last_id = len(rows), _id(rows[-1])


def _id(row: Message | StoredMessage) -> int | None:
    return row.id if isinstance(row, StoredMessage) else None
