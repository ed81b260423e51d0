"""What all conversations together may keep in memory: agents, and bytes of transcripts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from hermes.messages import BuildReason


class Cache(Protocol):
    """What a conversation keeps in memory."""

    measured: int
    """The size that is part of `CacheLimits.size`."""

    @property
    def size(self) -> int:
        """The size of its transcripts in bytes."""
        ...

    def drop(self, reason: BuildReason) -> None:
        """Discard the agent."""
        ...

    def release(self) -> None:
        """Forget the transcripts."""
        ...


class CacheLimits:
    """Enforces the limits when they are exceeded; the least recently used cache is emptied first.

    Only caches of idle conversations are emptied. If all are busy, the next one that becomes idle
    is.
    """

    def __init__(self, max_agents: int, max_size: int) -> None:
        self._max_agents = max_agents
        self._max_size = max_size
        self._agents: OrderedDict[Cache, None] = OrderedDict()
        self._transcripts: OrderedDict[Cache, None] = OrderedDict()
        """The caches of idle conversations, least recently used first."""
        self.agents: int = 0
        """Agents in all caches."""
        self.size: int = 0
        """Bytes of transcripts in all caches, as they were last measured."""

    def offer(self, cache: Cache) -> None:
        """Note that a conversation has become idle, so that its cache may be emptied."""
        self._agents[cache] = self._transcripts[cache] = None
        self.measure(cache)

    def withdraw(self, cache: Cache) -> None:
        """Note that a conversation is busy, so that its cache must be left alone."""
        self._agents.pop(cache, None)
        self._transcripts.pop(cache, None)

    def measure(self, cache: Cache) -> None:
        """Note the size of a cache that has changed."""
        size = cache.size
        self.size += size - cache.measured
        cache.measured = size
        if self.agents > self._max_agents or self.size > self._max_size:
            self._enforce()

    def _enforce(self) -> None:
        while self.agents > self._max_agents and self._agents:
            self._agents.popitem(last=False)[0].drop("evicted")
        while self.size > self._max_size and self._transcripts:
            cache, _ = self._transcripts.popitem(last=False)
            cache.release()
            self.size -= cache.measured
            cache.measured = 0

    def forget(self, cache: Cache) -> None:
        """Note that a conversation has ended, after its agent was dropped."""
        self.withdraw(cache)
        self.size -= cache.measured
        cache.measured = 0
