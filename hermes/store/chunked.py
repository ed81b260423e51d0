"""Operations too long for one transaction: a generator of work, each piece in its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from hermes.errors import StoreError
from hermes.store.transaction import Work

R = TypeVar("R")
S = TypeVar("S")


class Chunked(Generic[S, R]):
    """The state of a chunked operation; the caller commits one piece after the other.

    The generator gets the result of each piece and returns the result of the operation.
    """

    def __init__(self, pieces: Generator[Work[S], S, R]) -> None:
        self._pieces = pieces
        self._work: Work[S] | None = next(pieces)
        self._result: list[R] = []
        self._done = 0

    def next(self) -> Work[S] | None:
        """Return the work to commit now, or None at the end."""
        return self._work

    def done(self, value: S) -> None:
        """Continue after the work was committed with this result."""
        self._done += 1
        try:
            self._work = self._pieces.send(value)
        except StopIteration as stop:
            self._work = None
            self._result.append(stop.value)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Make an error in the block say how many pieces are committed already."""
        try:
            yield
        except StoreError as error:
            if self._done == 0:
                raise
            text = f"stopped after {self._done} steps, which stay; repeat it to go on ({error})"
            raise type(error)(text) from error

    def result(self) -> R:
        """Return the result of the operation."""
        [result] = self._result
        return result
