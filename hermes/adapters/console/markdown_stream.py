"""Split streamed Markdown into blocks that later text cannot change."""

from __future__ import annotations

import re

_FENCE = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(?P<fence>`{3,}(?=[^`]*\Z)|~{3,})")
_BLANK = " \t\n"


class BlockSplitter:
    """Takes text in pieces of any size and returns blocks, which add up to the text.

    A block ends at an empty line before a line that is not indented, and before and after a fence
    that is not indented. Indented lines may belong to a list and stay with it.
    """

    def __init__(self) -> None:
        self._block: list[str] = []
        self._line: list[str] = []
        self._fence: str | None = None
        self._fence_indented = False
        self._after_empty = False
        """Whether the last line was empty: the next line that is not indented ends the block."""
        self._after_fence = False
        """Whether the block is a closed fence: any line that is not empty ends it."""

    @property
    def pending(self) -> str:
        """The text that belongs to no finished block yet."""
        return "".join([*self._block, *self._line])

    def feed(self, piece: str) -> list[str]:
        """Add a piece of text and return the blocks that are finished now."""
        blocks: list[str] = []
        *lines, rest = piece.split("\n")
        for each in lines:
            line, self._line = "".join([*self._line, each, "\n"]), []
            blocks += self._add_line(line)
        if rest:
            self._line.append(rest)
            # Earlier pieces of the line have not started a block, so the new one decides.
            if self._fence is None and self._starts_block(self._line[0][0], rest):
                blocks += self._cut()
        return blocks

    def end(self) -> list[str]:
        """Return the last block, at the end of the text."""
        self._block, self._line, self._fence = [self.pending], [], None
        return self._cut()

    def _add_line(self, line: str) -> list[str]:
        if self._fence is not None:
            self._block.append(line)
            if _closes(line, self._fence):
                self._fence = None
                self._after_fence = not self._fence_indented
            return []
        if not line.strip(_BLANK):
            self._block.append(line)
            self._after_empty = True
            return []
        opening = _FENCE.match(line.rstrip("\n"))
        flush_left = opening is not None and line[0] in "`~"
        finished = self._cut() if flush_left or self._starts_block(line[0], line) else []
        self._after_empty = False
        self._block.append(line)
        if opening is not None:
            self._fence, self._fence_indented = opening["fence"], not flush_left
        return finished

    def _starts_block(self, first: str, text: str) -> bool:
        """Return whether a line with this first character and this text starts a new block."""
        if self._after_empty and first not in _BLANK:
            return True
        return self._after_fence and bool(text.strip(_BLANK))

    def _cut(self) -> list[str]:
        block, self._block = "".join(self._block), []
        self._after_empty = self._after_fence = False
        return [block] if block else []


def _closes(line: str, fence: str) -> bool:
    mark = line.strip(_BLANK)
    return len(mark) >= len(fence) and not mark.strip(fence[0])
