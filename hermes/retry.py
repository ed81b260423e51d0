"""Exponential backoff."""

from __future__ import annotations


class Backoff:
    """Delays between attempts: `first` seconds, then twice as long each time, up to `longest`."""

    __slots__ = ("_first", "_longest", "_next")

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds, and double it."""
        delay, self._next = self._next, min(2 * self._next, self._longest)
        return delay

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._next = self._first
