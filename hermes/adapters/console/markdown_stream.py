"""Markdown that is still being written, cut where what comes next cannot change what is there."""

from __future__ import annotations

import re

_FENCE = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(?P<fence>`{3,}(?=[^`]*\Z)|~{3,})")
_BLANK = " \t\n"


class Blocks:
    """Takes text in any pieces; gives blocks, which together are the text.

    A block ends at an empty line before one that is not indented, and around a fence that is not
    indented either. What is indented may belong to a list, and stays with it.
    """

    def __init__(self) -> None:
        self._block = ""
        self._line = ""
        self._fence: str | None = None
        self._indented = False
        self._ripe = False
        """Whether the next line that begins a block ends this one."""
        self._closed = False
        """Whether the block was a fence that has been closed: any line ends it, but empty ones."""

    @property
    def rest(self) -> str:
        """What belongs to no finished block yet."""
        return self._block + self._line

    def feed(self, piece: str) -> list[str]:
        """The blocks that are finished now."""
        blocks: list[str] = []
        *lines, rest = piece.split("\n")
        for each in lines:
            line, self._line = f"{self._line}{each}\n", ""
            blocks += self._take(line)
        self._line += rest
        if self._line and self._fence is None and self._begins(self._line):
            blocks += self._cut()
        return blocks

    def end(self) -> list[str]:
        """The last block: nothing more will come."""
        self._block, self._line, self._fence = self.rest, "", None
        return self._cut()

    def _take(self, line: str) -> list[str]:
        if self._fence is not None:
            self._block += line
            if _closes(line, self._fence):
                self._fence = None
                self._closed = not self._indented
            return []
        if not line.strip(_BLANK):
            self._block += line
            self._ripe = True
            return []
        opened = _FENCE.match(line.rstrip("\n"))
        flush = opened is not None and line[0] in "`~"
        done = self._cut() if flush or self._begins(line) else []
        self._ripe = False
        self._block += line
        if opened is not None:
            self._fence, self._indented = opened["fence"], not flush
        return done

    def _begins(self, line: str) -> bool:
        """Whether a line that is not empty begins a block."""
        return (self._ripe and line[0] not in _BLANK) or (self._closed and bool(line.strip(_BLANK)))

    def _cut(self) -> list[str]:
        done, self._block = self._block, ""
        self._ripe = self._closed = False
        return [done] if done else []


def _closes(line: str, fence: str) -> bool:
    mark = line.strip(_BLANK)
    return len(mark) >= len(fence) and not mark.strip(fence[0])
