"""Bytes as they are read become lines of text, whatever they contain."""

from __future__ import annotations

MAX_LINE = 1_000_000


class TooLong:
    """Stands for a line that was skipped."""


class Lines:
    """Takes bytes in any pieces; gives whole lines, without their ends."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._skipping = False

    def feed(self, piece: bytes) -> list[str | TooLong]:
        """The lines that end in this piece."""
        *ended, rest = piece.split(b"\n")
        lines = [self._end(each) for each in ended]
        self._add(rest)
        return lines

    def end(self) -> list[str | TooLong]:
        """The last line, where the input ended without a newline."""
        return [self._end(b"")] if self._begun or self._skipping else []

    def _add(self, piece: bytes) -> None:
        if not self._skipping:
            self._begun += piece
            self._skipping = len(self._begun) > self._limit + 1  # one for a carriage return

    def _end(self, piece: bytes) -> str | TooLong:
        self._add(piece)
        line, skipped = bytes(self._begun).removesuffix(b"\r"), self._skipping
        self._begun.clear()
        self._skipping = False
        too_long = skipped or len(line) > self._limit
        return TooLong() if too_long else line.decode(errors="replace")
