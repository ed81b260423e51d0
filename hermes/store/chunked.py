"""Verbs too long for one transaction: a generator of pieces of work, driven by either face."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from hermes.errors import StoreError
from hermes.store.transaction import Work

R = TypeVar("R")
S = TypeVar("S")


class Chunked(Generic[S, R]):
    """Hands out one piece of work after the other; each is a transaction of its own."""

    def __init__(self, pieces: Generator[Work[S], S, R]) -> None:
        self._pieces = pieces
        self._work: Work[S] | None = next(pieces)
        self._result: list[R] = []
        self._done = 0

    def next(self) -> Work[S] | None:
        """The work to commit now, or None at the end."""
        return self._work

    def done(self, value: S) -> None:
        """The work is on disk, and this is its answer."""
        self._done += 1
        try:
            self._work = self._pieces.send(value)
        except StopIteration as stop:
            self._work = None
            self._result.append(stop.value)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """An error in a later step says that the earlier ones stay."""
        try:
            yield
        except StoreError as error:
            if self._done == 0:
                raise
            text = f"stopped after {self._done} steps, which stay; repeat it to go on ({error})"
            raise type(error)(text) from error

    def result(self) -> R:
        """What the last step left."""
        [result] = self._result
        return result
