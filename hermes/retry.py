"""Exponential backoff."""

from __future__ import annotations

import attrs


@attrs.define(eq=False)
class Backoff:
    """Delays between attempts: `first` seconds, then twice as long each time, up to `longest`."""

    _first: float
    _longest: float
    _last: float | None = attrs.field(init=False, default=None)

    def next(self) -> float:
        """Return the delay before the next attempt, in seconds."""
        self._last = self._first if self._last is None else min(2 * self._last, self._longest)
        return self._last

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._last = None
