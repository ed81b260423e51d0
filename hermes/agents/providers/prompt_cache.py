"""What a model was shown so far, as bytes: a turn renders only what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import attrs

from hermes.agents.providers.base import Provider
from hermes.messages import Message, StoredMessage
from hermes.transcript.render import Alternating, Unfolding

MAX_SESSIONS = 16
Rows = Sequence[Message | StoredMessage]


@attrs.define
class _Shown:
    """A conversation up to one of its rows."""

    unfolding: Unfolding
    body: bytearray = attrs.Factory(bytearray)
    count: int = 0
    last_id: int | None = None

    def is_part_of(self, history: Rows) -> bool:
        """Whether the history begins with what was shown.

        Rows never change; who takes some back or writes them anew gives the last one another id.
        """
        if self.count == 0:
            return True
        if self.last_id is None or self.count > len(history):  # without an id it cannot be found
            return False
        return _id(history[self.count - 1]) == self.last_id


@attrs.define
class Fresh:
    """What was said in a turn so far, as bytes; stored later, it will be the same bytes."""

    _provider: Provider
    _unfolding: Unfolding
    encoded: list[bytes] = attrs.Factory(list)

    def add(self, rows: Rows) -> None:
        """Say more: a message, or one with all the results of its calls."""
        self.encoded += self._provider.encode(self._unfolding.add(rows))

    def behind(self, tail: Sequence[Message]) -> Sequence[Message]:
        """What is said last and not kept, as it may stand behind what was said so far."""
        if not tail or not self._provider.endpoint.alternate:
            return tail
        return self._unfolding.copy().add(tail)


class Prompts:
    """The histories of the sessions that an agent speaks in, least used first."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._shown: OrderedDict[str, _Shown] = OrderedDict()

    def history(self, session_id: str, rows: Rows) -> bytearray:
        """The rows as bytes. What was sent once is sent again as it was."""
        shown = self._shown.pop(session_id, None)
        if shown is None or not shown.is_part_of(rows):
            shown = _Shown(self._unfolding())
        self._extend(shown, rows)
        self._shown[session_id] = shown
        while len(self._shown) > MAX_SESSIONS:
            self._shown.popitem(last=False)
        return shown.body

    def fresh(self, session_id: str) -> Fresh:
        """The messages of a turn that is not stored yet, behind the history."""
        shown = self._shown.get(session_id)
        return Fresh(self._provider, self._unfolding() if shown is None else shown.unfolding.copy())

    def _unfolding(self) -> Unfolding:
        return Alternating() if self._provider.endpoint.alternate else Unfolding()

    def _extend(self, shown: _Shown, rows: Rows) -> None:
        new = rows[shown.count :]
        if not new:
            return
        encoded = self._provider.encode(shown.unfolding.add(new))
        if encoded:
            shown.body += (b"," if shown.body else b"") + b",".join(encoded)
        shown.count, shown.last_id = len(rows), _id(rows[-1])


def _id(row: Message | StoredMessage) -> int | None:
    return row.id if isinstance(row, StoredMessage) else None
