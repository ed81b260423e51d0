"""The lease of a node, as the node itself sees it.

The database decides whether a lease has ended, by its own clock. The node must know before: it
trusts its lease from the moment at which it sent the heartbeat, which is earlier than the moment at
which the database prolonged it. Only the speed of the two clocks matters, not their time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def boot_time() -> float:
    """Return seconds on a clock that nobody sets, and that goes on while the machine sleeps."""
    try:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    except AttributeError:  # a system without it
        return time.monotonic()


class Lease:
    """Until when a node may believe that nobody has declared it dead.

    One thread renews it; any thread may ask.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_time) -> None:
        self.seconds: float = seconds
        self._clock = clock
        self._until = -math.inf

    def begin(self) -> Heartbeat:
        """Note what holds before a heartbeat is sent."""
        now = self._clock()
        return Heartbeat(sent=now, alive=now < self._until)

    def renew(self, heartbeat: Heartbeat) -> None:
        """Note that the database has prolonged the lease for this heartbeat."""
        self._until = max(self._until, heartbeat.sent + self.seconds)

    def end(self) -> None:
        """Note that the node was declared dead, or has left."""
        self._until = -math.inf

    @property
    def remaining(self) -> float:
        """The seconds that are left; 0 or less if the lease has run out."""
        return self._until - self._clock()

    @property
    def valid(self) -> bool:
        """Whether the node may start something that only the owner may do."""
        return self._clock() < self._until


class Heartbeat:
    """A heartbeat on its way: when it was sent, and whether the lease was valid then.

    After an outage of the database every lease has run out. Only a node whose lease was still
    `alive` may declare others dead, so that all have one heartbeat to come back.
    """

    __slots__ = ("alive", "sent")

    def __init__(self, *, sent: float, alive: bool) -> None:
        self.sent: float = sent
        self.alive: bool = alive
