"""What the two sides of the remote events know of the node that they run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from hermes.actors.remote.frames import Frame, Item
from hermes.messages import Claim


@attrs.frozen
class State:
    """What a listener that joins has to know: open messages, and the events of the running turn."""

    items: Sequence[Item]
    started_at: float | None = None


class Served(Protocol):
    """The conversations that this node serves."""

    def serves(self, session_key: str, /) -> bool:
        """Whether an actor of this node serves a conversation."""
        ...

    def knows(self, session_key: str, inbox_id: int, /) -> bool:
        """Whether such an actor is going to answer a message."""
        ...

    def state_of(self, session_key: str, /) -> State | None:
        """Return the state of a conversation; None if no actor of this node serves it."""
        ...


@attrs.frozen
class ThisNode:
    """This node, its clock, and how it reaches the others."""

    served: Served
    node: Callable[[], int]
    """Returns the id of this node."""
    others: Callable[[], Sequence[int]]
    """Returns the ids of the other nodes."""
    send_frames: Callable[[int, Sequence[Frame]], None]
    wall: Callable[[], float]

    @property
    def id(self) -> int:
        """The id of this node."""
        return self.node()

    def send(self, node: int, frames: Sequence[Frame]) -> None:
        """Send frames to a node, unless it is this one."""
        if frames and node != self.id:
            self.send_frames(node, frames)

    def tell(self, claim: Claim | None, frames: Sequence[Frame]) -> None:
        """Send frames to the owner of a conversation; to all other nodes if it is not known."""
        for node in self.others() if claim is None else [claim.node]:
            self.send(node, frames)
