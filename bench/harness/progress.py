"""Progress of a benchmark: one line per step on standard error."""

from __future__ import annotations

import sys
import time


class Steps:
    """Counts the steps of a benchmark and prints each with its time."""

    def __init__(self) -> None:
        self.expected = 0
        self.started = 0

    def expect(self, count: int) -> None:
        """Announce `count` more steps."""
        self.expected += count

    def step(self, text: str) -> None:
        """Begin a step."""
        self.started += 1
        now = time.strftime("%H:%M:%S")
        print(f"{now} {self.started}/{self.expected} {text}", file=sys.stderr)
