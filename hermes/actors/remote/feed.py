"""The events of one conversation, as its owner numbers and keeps them for other nodes."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from hermes.actors.remote.frames import FeedId, Item, Published
from hermes.actors.remote.items import Items, size_of

KEPT_SIZE = 256 * 1024
"""About how many bytes of events a feed keeps, so that it can send them again."""
TOTAL_SIZE = 32 * 1024 * 1024
"""The same for all feeds of a node."""


class Feed:
    """Numbers the events of a conversation, and keeps the last of them.

    Events wait for `flush`, which numbers and returns them; meanwhile adjacent deltas are joined.
    """

    def __init__(self, key: str, feed_id: FeedId, kept_size: int = KEPT_SIZE) -> None:
        self.key = key
        self.id = feed_id
        self.last: int = 0
        """The number of the last event that was flushed."""
        self.size: int = 0
        """About how many bytes it keeps."""
        self._kept_size = kept_size
        self._pending = Items()
        self._kept: deque[tuple[Item, int]] = deque()

    def add(self, item: Item) -> None:
        """Take an event."""
        self._pending.add(item)

    def flush(self) -> Published | None:
        """Number the events that wait, and return them; None if there are none."""
        items = [*self._pending.take()]
        if not items:
            return None
        self._pending.clear()
        before, self.last = self.last, self.last + len(items)
        for item in items:
            self._kept.append((item, size_of(item)))
            self.size += self._kept[-1][1]
        while self.size > self._kept_size:
            self.size -= self._kept.popleft()[1]
        return Published(self.key, self.id, before, items)

    def after(self, feed: FeedId | None, number: int) -> Published | None:
        """Return the flushed events after a number; None if some of them are not kept any more."""
        if feed != self.id or not self.last - len(self._kept) <= number <= self.last:
            return None
        kept = [item for item, _ in self._kept]
        return Published(self.key, self.id, number, kept[len(kept) - (self.last - number) :])

    def forget(self) -> None:
        """Keep nothing of what was flushed."""
        self._kept.clear()
        self.size = 0


class Feeds:
    """The feeds of a node. Together they keep a bounded number of events."""

    def __init__(self, node: Callable[[], int], total_size: int = TOTAL_SIZE) -> None:
        self._node = node
        self._total_size = total_size
        self._opened = 0
        self._feeds: OrderedDict[str, Feed] = OrderedDict()  # those that flushed last are the last

    def __iter__(self) -> Iterator[Feed]:
        return iter(self._feeds.values())

    def __len__(self) -> int:
        return len(self._feeds)

    def find(self, key: str) -> Feed | None:
        """Return the feed of a conversation, if there is one."""
        return self._feeds.get(key)

    def open(self, key: str, fence: int) -> Feed:
        """Open a new feed for a conversation, which this node owns by this fence."""
        self._opened += 1
        feed = self._feeds[key] = Feed(key, FeedId(fence, self._opened, self._node()))
        return feed

    def close(self, key: str) -> None:
        """Forget the feed of a conversation, if there is one."""
        self._feeds.pop(key, None)

    def flush(self) -> list[Published]:
        """Flush all feeds, and return what is to be sent."""
        flushed = [published for feed in self if (published := feed.flush()) is not None]
        for published in flushed:
            self._feeds.move_to_end(published.key)
        total = sum(feed.size for feed in self)
        for feed in self:
            if total <= self._total_size:
                break
            total -= feed.size
            feed.forget()
        return flushed
