"""Split a byte stream into lines of bounded length."""

from __future__ import annotations


class TooLong:
    """Stands for a line that exceeded the limit and was skipped."""


class LineSplitter:
    """Incremental splitter: takes chunks of any size, returns complete lines without line ends.

    A line ends with a newline, or a carriage return and a newline. A line longer than `limit` bytes
    becomes a `TooLong`; its bytes are dropped as they arrive, so an endless line takes no memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes | bytearray) -> list[bytes | TooLong]:
        """Return the lines that end in this chunk."""
        *complete, rest = chunk.split(b"\n")
        lines = [self._finish(each) for each in complete]
        self._append(rest)
        return lines

    def end(self) -> list[bytes | TooLong]:
        """Return the last line, if the input ended without a newline."""
        return [self._finish(b"")] if self._partial or self._skipping else []

    def _append(self, chunk: bytes | bytearray) -> None:
        if not self._skipping:
            self._partial += chunk
            if len(self._partial) > self._limit + 1:  # one more for a carriage return
                self._skipping = True
                self._partial.clear()

    def _finish(self, chunk: bytes | bytearray) -> bytes | TooLong:
        self._append(chunk)
        line, skipped = bytes(self._partial).removesuffix(b"\r"), self._skipping
        self._partial.clear()
        self._skipping = False
        return TooLong() if skipped or len(line) > self._limit else line
