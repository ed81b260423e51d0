"""Events in their shortest form: adjacent deltas of a turn are joined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hermes.actors.remote.frames import Item, WireEvent, encode
from hermes.events import ReasoningDelta, TextDelta

EVENT_SIZE = 200
"""The size that an event is assumed to have beside its texts."""


class Items:
    """A list of events. Joined are deltas of the same kind and turn, unless a restart is between.

    So two lists with the same events are equal, however their texts were cut.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self._items: list[Item] = []
        self._texts: list[str] = []
        """The texts that are to be joined to the last event."""
        for item in items:
            self.add(item)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.take())

    def add(self, item: Item) -> None:
        """Add an event."""
        if self._items and _can_join(self._items[-1], item):
            self._texts.append(_text(item.event))
        else:
            self._join()
            self._items.append(item)

    def take(self) -> Sequence[Item]:
        """Return the events."""
        self._join()
        return self._items

    def clear(self) -> None:
        """Forget all events."""
        self._items, self._texts = [], []

    def _join(self) -> None:
        if self._texts:
            last = self._items[-1]
            self._items[-1] = _with_text(last, "".join([_text(last.event), *self._texts]))
            self._texts = []


def missing(seen: Sequence[Item], whole: Sequence[Item]) -> Sequence[Item] | None:
    """Return what `whole` has beyond `seen`; None if it does not begin with it.

    Both are in their shortest form, so the last text that was seen may be the beginning of one.
    """
    if not seen:
        return whole
    *before, last = seen
    at = len(before)
    if len(whole) <= at or [*whole[:at]] != before:
        return None
    if whole[at] == last:
        return whole[at + 1 :]
    rest = _rest(last, whole[at])
    return None if rest is None else [rest, *whole[at + 1 :]]


def _rest(seen: Item, whole: Item) -> Item | None:
    """Return the delta with the text that the longer one has beyond the other."""
    if not _can_join(seen, whole) or not _text(whole.event).startswith(_text(seen.event)):
        return None
    return _with_text(whole, _text(whole.event)[len(_text(seen.event)) :])


def size_of(item: Item) -> int:
    """Return about how many bytes an event takes in memory."""
    return EVENT_SIZE + len(encode(item))


def _can_join(last: Item, item: Item) -> bool:
    if last.turn_id != item.turn_id or type(last.event) is not type(item.event):
        return False
    return _is_plain(last.event) and _is_plain(item.event)


def _is_plain(event: WireEvent) -> bool:
    """Whether an event is a delta that may be joined to another one."""
    if isinstance(event, TextDelta):
        return not event.restart
    return isinstance(event, ReasoningDelta)


def _with_text(item: Item, text: str) -> Item:
    """Return a delta with another text."""
    event = TextDelta(text) if isinstance(item.event, TextDelta) else ReasoningDelta(text)
    return Item(item.turn_id, event)


def _text(event: WireEvent) -> str:
    assert isinstance(event, TextDelta | ReasoningDelta)
    return event.text
