"""What an actor knows of its route: where the key leads, and how far that transcript is."""

from __future__ import annotations

from hermes.errors import StoreError
from hermes.messages import Delivery, Head, Route
from hermes.protocols import Store


class RouteState:
    """The newest of all that the store has told; the epoch decides between two tales."""

    __slots__ = ("_key", "_store", "epoch", "head", "notice", "pending_title", "titled")

    def __init__(self, session_key: str, store: Store) -> None:
        self._key = session_key
        self._store = store
        self.head: Head | None = None
        self.epoch = 0
        self.pending_title = False
        self.notice: str | None = None
        self.titled: str | None = None
        """The session that needs no automatic title any more."""

    @property
    def session_id(self) -> str | None:
        return None if self.head is None else self.head.session_id

    async def locate(self, *, look: bool = False) -> Head:
        """Where the key leads; asked of the store where that is not known, or to be sure."""
        if look or self.head is None:
            found = await self._store.route_head(self._key)
            if found is not None:
                self.adopt(*found)
        if self.head is None:
            raise StoreError(f"there is no route for {self._key}")
        return self.head

    def learn(self, delivery: Delivery) -> None:
        """A message was accepted; its head may be older than our own last commit."""
        self._learn(delivery.receipt.epoch, delivery.head)
        route = delivery.route
        if route is not None and route.epoch == self.epoch:
            self.pending_title = route.pending_title is not None
            self.notice = route.notice

    def adopt(self, route: Route, head: Head) -> None:
        """The store has answered with the route itself; our own last commit may be newer."""
        self._learn(route.epoch, head)
        if route.epoch == self.epoch:
            self.pending_title = route.pending_title is not None
            self.notice = route.notice

    def moved(self, epoch: int, head: Head) -> None:
        """Our own commit or rotation has answered."""
        self.epoch, self.head = epoch, head

    def seen(self, head: Head) -> None:
        """A newer head of the session we are at."""
        self._learn(self.epoch, head)

    def forget(self) -> None:
        """What we know is wrong: ask the store."""
        self.head = None
        self.epoch = 0

    def _learn(self, epoch: int, head: Head) -> None:
        if self.head is None or epoch > self.epoch:
            self.epoch, self.head = epoch, head
        elif (epoch, head.session_id) == (self.epoch, self.head.session_id):
            self.head = max(self.head, head, key=_revision)


def _revision(head: Head) -> int:
    return head.revision
