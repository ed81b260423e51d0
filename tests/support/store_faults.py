"""Stores that fail for a while."""

from __future__ import annotations

import trio


class FailingVerb:
    """A replaced verb of a store, see `Proxy`: it raises a number of times, and then works."""

    def __init__(self, times, error=None):
        self.left = times
        self.error = error or RuntimeError("my own")

    async def __call__(self, real, *args, **kwargs):
        if self.left:
            self.left -= 1
            raise self.error
        return await real(*args, **kwargs)


class CommitFaults:
    """Faults of the next commits, for `inline`: those in `next`, then `kind` until a time."""

    def __init__(self):
        self.next = []
        self.until = 0.0
        self.kind = "full"

    def __call__(self):
        if self.next:
            return self.next.pop(0)
        return self.kind if trio.current_time() < self.until else None
