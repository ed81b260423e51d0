"""What is being measured now, and how much is left: a bar at a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column


class Steps(Protocol):
    """Counts what is done of a benchmark."""

    def expect(self, count: int) -> None:
        """So many more steps are to come."""
        ...

    def step(self, text: str) -> None:
        """A step begins, and so the one before it is done."""
        ...


class Counter:
    """For a rehearsal: only counts."""

    def __init__(self) -> None:
        self.steps = 0

    def expect(self, count: int) -> None:
        pass

    def step(self, text: str) -> None:
        self.steps += 1


class Lines:
    """For files and pipes: one line each, with the time."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0

    def expect(self, count: int) -> None:
        self._total += count

    def step(self, text: str) -> None:
        self._done += 1
        at = f"{self._done}/{self._total}"
        print(f"{time.strftime('%H:%M:%S')} {at} {text}", file=sys.stderr)


class Bar:
    """For a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("getting ready", total=None)
        self._total = 0
        self._begun = 0

    def expect(self, count: int) -> None:
        self._total += count
        self._progress.update(self._task, total=self._total)

    def step(self, text: str) -> None:
        self._progress.update(self._task, completed=self._begun, description=text)
        self._begun += 1


@contextmanager
def steps() -> Iterator[Steps]:
    """A bar where somebody watches; it is gone when the block ends."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    columns = (
        BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        yield Bar(progress)
