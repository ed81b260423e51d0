"""Hints between nodes that get lost, for tests: whatever is lost, only time may depend on it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random

from hermes.protocols.cluster import Hints, OnHint


class LossyHints:
    """Sends only a part of the hints. `share` of them are lost, with the seed of `random`."""

    def __init__(self, hints: Hints, share: float, random: Random) -> None:
        self._hints = hints
        self.share: float = share
        self._random = random
        self.lost: int = 0
        """How many were lost so far."""

    def send(self, node: int, topic: str, payload: str = "") -> None:
        """Send a hint, or lose it."""
        if self._random.random() < self.share:
            self.lost += 1
        else:
            self._hints.send(node, topic, payload)

    def listen(self, topic: str, on_hint: OnHint) -> AbstractContextManager[None]:
        """Listen as before."""
        return self._hints.listen(topic, on_hint)

    def join(self, node: int) -> None:
        """Listen as this node from now on."""
        self._hints.join(node)
