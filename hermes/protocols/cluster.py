"""The nodes that share a database, as the runtime sees them.

A node is one life of a process. With PostgreSQL, each conversation is served by one node at a time.
With SQLite there is one process, which serves all of them (`hermes.store.cluster.alone`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from hermes.messages import Accepted, Claim, ClusterView, NodeInfo, RoleClaim

OnHint: TypeAlias = Callable[[str], None]
"""Called in Trio's thread with the payload of a hint. It must be quick and must not raise."""

INDEX, SWEEP, HOOKS = "index", "sweep", "hooks"
"""The roles of the store's background tasks. The other roles are those of platforms."""

Waiting: TypeAlias = tuple[str, int, Claim | None]
"""The key and the id of an open message, and the claim under which this node serves the key."""


class Hints(Protocol):
    """Short messages between nodes.

    A hint may be late, lost, repeated or out of order. It only says that there is something to look
    for in the database, where polling finds it too; so nothing depends on it but time.
    """

    def send(self, node: int, topic: str, payload: str = "") -> None:
        """Send a hint to a node. Never waits and never raises.

        Hints to the same node may be sent together, a little later.
        """
        ...

    def listen(self, topic: str, on_hint: OnHint) -> AbstractContextManager[None]:
        """Call `on_hint` with the payload of each hint of this topic during the block.

        There is one listener for each topic.
        """
        ...


class Membership(Protocol):
    """The nodes, and which of them this process is."""

    @property
    def node(self) -> int:
        """The id of this node; 0 for a process that has the store for itself.

        It changes if the node was declared dead and came back.
        """
        ...

    @property
    def nodes(self) -> Mapping[int, NodeInfo]:
        """The nodes that are not dead, with this one; at most one heartbeat old."""
        ...

    @property
    def hints(self) -> Hints:
        """Short messages to other nodes."""
        ...

    def tell(self, name: str, fact: Callable[[], Any]) -> None:
        """Tell the other nodes a fact with each heartbeat; they find it in `NodeInfo.facts`.

        The function returns a value that JSON has. It is called in another thread, and must be
        quick.
        """
        ...

    async def owner_of(self, session_key: str) -> Claim | None:
        """Return which living node serves a conversation, from the database; None if none does."""
        ...

    async def view(self) -> ClusterView:
        """Return the nodes and what each of them has, for operators."""
        ...


class Ownership(Protocol):
    """Which conversations this node serves."""

    @property
    def ids_in_order(self) -> bool:
        """Whether an open message never has a smaller id than one that `waiting` has returned."""
        ...

    @property
    def others(self) -> bool:
        """Whether another node goes on with the conversations of this one when it ends."""
        ...

    def serves(self, accepted: Accepted) -> bool:
        """Whether this node serves the conversation of a message that it has just accepted.

        If another one does, that one gets a hint.
        """
        ...

    async def until_trusted(self) -> None:
        """Wait while the lease of this node has run out; return at once otherwise.

        Call it before anything that only the owner of a conversation may begin.
        """
        ...

    async def claim(self, session_key: str) -> Claim | None:
        """Return who serves a conversation; if nobody does, this node does from now on.

        Returns None if no conversation has this key yet.
        """
        ...

    async def waiting(self, after: int, limit: int) -> Sequence[Waiting]:
        """Return open messages with an id above `after` that this node is to answer, by id."""
        ...

    async def until_hint(self) -> None:
        """Wait until `waiting` may return more, at most as long as the time between two polls."""
        ...

    def balance(self, owned: int, idle: Sequence[str]) -> Sequence[str]:
        """Return the idle conversations that other nodes should serve instead.

        `owned` is the number of all that this node serves. Call it regularly.
        """
        ...

    def release_idle(self, released: Sequence[Claim]) -> None:
        """Give up conversations that have nothing to do, soon; never waits.

        One that has received a message meanwhile is kept.
        """
        ...

    async def start_draining(self) -> None:
        """Take nothing new, and give up the roles."""
        ...

    async def hand_over(self, session_keys: Sequence[str]) -> None:
        """Give up conversations, also with open messages, so that other nodes go on with them."""
        ...

    def watch(self, on_lost: Callable[[], None]) -> AbstractContextManager[None]:
        """Call back, during the block, when this node has lost all its conversations."""
        ...


class Listening(Protocol):
    """Which nodes have listeners for which conversations, in the database."""

    async def leases(self) -> Mapping[int, float]:
        """Return when the leases of the living nodes end, by id, from the database."""
        ...

    async def owners_of(self, session_keys: Sequence[str]) -> Mapping[str, Claim]:
        """Return which living nodes serve these conversations, without those that none serves."""
        ...

    async def set_listened(self, session_keys: Collection[str]) -> None:
        """Store for which conversations this node has listeners, instead of those before."""
        ...

    async def listened(self) -> Sequence[tuple[int, str]]:
        """Return the conversations for which other living nodes have listeners, with the nodes."""
        ...


class Roles(Protocol):
    """What must exist once in a cluster, such as the receiver of a platform."""

    @property
    def holders(self) -> Mapping[str, int]:
        """The roles that nodes have, with the id of the node; at most one heartbeat old."""
        ...

    def claim_of(self, role: str) -> RoleClaim | None:
        """Return the claim under which this node has a role.

        None if it does not have it, or if there are no other nodes.
        """
        ...

    def holds(self, role: str) -> bool:
        """Whether this node has a role and may act in it now."""
        ...

    async def run_as(self, role: str, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function while this node has the role, until the function returns.

        It is cancelled when the node loses the role, and called again when the node has it again.
        Only nodes that call this get the role. Several functions may run as one role.
        """
        ...

    def wake(self, role: str) -> None:
        """Tell the node that has a role that there is something to do. Never waits."""
        ...

    async def until_woken(self, role: str) -> bool:
        """Wait until `wake` was called since the last time; at most until it is time to look.

        Returns whether it was called: it may not reach another node. There is one waiter for each
        role.
        """
        ...


class Cluster(Membership, Ownership, Listening, Roles, Protocol):
    """Everything that the runtime needs of the other nodes."""
