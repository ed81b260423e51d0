"""Split long Markdown text into parts that a platform accepts.

A part ends, in order of preference, at a blank line, at the end of a line, after a sentence, at a
space, or else between two characters. Split points outside of code are preferred to those inside,
and those in the second half of what would fit to those in the first. A code fence that is split is
closed at the end of the part and reopened, with its tag, in the next one. Apart from these fences,
the parts differ from the text only in white space around the split points.
"""

from __future__ import annotations

import bisect
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import msgspec

Size = Callable[[str], int]

MIN_LIMIT = 2
"""The largest size of one character, in UTF-16 code units."""
MAX_CANDIDATES = 200
"""How many split points of one kind are tried."""

_MARKS = r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+|>[ \t]*)*"
_OPENING = re.compile(rf"({_MARKS})(`{{3,}}(?=[^`]*$)|~{{3,}})(.*)")
_SENTENCE = re.compile(r"[.!?…]['\")\]’”]*(?=\s)|[。！？]")
_GAP = re.compile(r"\s{64,}+")
_ZWJ = "\u200d"


def utf16(text: str) -> int:
    """Return the length of a text in UTF-16 code units, as Telegram counts."""
    return len(text) + sum(char > "\uffff" for char in text)


def split(text: str, limit: int, *, size: Size = utf16) -> list[str]:
    """Split a text into parts of at most `limit`, none of them blank.

    A text that fits is returned unchanged. `size` measures a text; it must be the sum of the sizes
    of the characters. Raises `ValueError` if the limit is below `MIN_LIMIT`.
    """
    return [piece.text for piece in pieces(text, limit, size=size)]


class Piece(msgspec.Struct, frozen=True):
    """A section of the text, and the fences that were added around it."""

    head: str
    body: str
    tail: str

    @property
    def text(self) -> str:
        """The part as it is sent."""
        return self.head + self.body + self.tail


def pieces(text: str, limit: int, *, size: Size = utf16) -> list[Piece]:
    """Same as `split`, with the added fences in separate fields."""
    if limit < MIN_LIMIT:
        raise ValueError(f"limit is {limit}; it must be at least {MIN_LIMIT}")
    if size(text) <= limit:
        return [Piece("", text, "")] if text.strip() else []
    return list(_Splitter(text, limit, size).pieces())


class _Fence(msgspec.Struct, frozen=True):
    """The line that opens a code block."""

    indent: str
    mark: str
    tag: str

    def closed_by(self, line: str) -> bool:
        rest = line.strip(" \t\r>")
        return len(rest) >= len(self.mark) and not rest.strip(self.mark[0])


def _opened_by(line: str) -> _Fence | None:
    found = _OPENING.fullmatch(line.rstrip())
    if found is None:
        return None
    indent, mark, tag = found.groups()
    # In a later part the list marker is replaced by its indentation.
    return _Fence(re.sub(r"[^\s>]", " ", indent), mark, tag)


class _Line(msgspec.Struct, frozen=True):
    """A line of the text; `edge` means that a fence opens or closes with it."""

    start: int
    end: int
    blank: bool
    edge: bool
    fence: _Fence | None
    """The fence that is open after it."""
    last_tick: int
    """The position of its last backtick, or -1."""


def _lines(text: str) -> Iterator[_Line]:
    fence: _Fence | None = None
    start = 0
    for line in text.split("\n"):
        before = fence
        if fence is None:
            fence = _opened_by(line)
        elif fence.closed_by(line):
            fence = None
        end = start + len(line)
        last_tick = text.rfind("`", start, end)
        yield _Line(start, end, not line.strip(), fence is not before, fence, last_tick)
        start = end + 1


class _Splitter:
    """Splits one text that is longer than the limit."""

    def __init__(self, text: str, limit: int, size: Size) -> None:
        self._text = text.rstrip()
        self._limit = limit
        self._size = size
        self._lines = list(_lines(self._text))
        self._ends = [line.end for line in self._lines]
        # Long runs of white space; skipping one character by character again and again would take
        # quadratic time.
        self._gaps = [gap.span() for gap in _GAP.finditer(self._text)]
        plain = size(self._text) == len(self._text)
        self._sums: Sequence[int] = (
            range(len(self._text) + 1)
            if plain
            else list(itertools.accumulate(map(size, self._text), initial=0))
        )

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces from the start to the end."""
        text, end, head = self._text, 0, ""
        while end < len(text):
            start = self._start_after(end)
            room = self._limit - self._size(head)
            end = self._find_end(start, room)
            opening, closing = self._fences_at(end)
            yield Piece(head, text[start:end].rstrip(), closing if end < len(text) else "")
            head = opening

    def _start_after(self, end: int) -> int:
        """Return where the next part starts: after white space, but before a line's indentation."""
        text = self._text
        first = self._skip_forward(end)
        line_start = text.rfind("\n", end, first) + 1
        indent = self._sums[first] - self._sums[line_start]
        if (not line_start and end) or indent > self._limit // 4:
            return first
        return line_start

    def _find_end(self, start: int, room: int) -> int:
        """Return where the part that starts at `start` ends."""
        last = self._reach(start, room)
        if last == len(self._text):
            return last
        half = self._reach(start, room // 2)
        for low, high in ((half, last), (start, half)):
            for candidates in (self._line_ends, self._sentence_ends, self._spaces):
                for end in candidates(max(low, start + 1), high):
                    if self._fits(start, end, room) and self._is_safe(start, end):
                        return end
        return self._between_characters(start, last, room)

    def _reach(self, start: int, room: int) -> int:
        """Return the last position that is at most `room` after `start`."""
        return bisect.bisect_right(self._sums, self._sums[start] + room) - 1

    def _fits(self, start: int, end: int, room: int) -> bool:
        _, closing = self._fences_at(end)
        return self._sums[end] - self._sums[start] + self._size(closing) <= room

    def _line_ends(self, low: int, high: int) -> list[int]:
        """Return the ends of lines, the best first."""
        found = []
        for index in range(bisect.bisect_left(self._ends, low), len(self._lines) - 1):
            line, after = self._lines[index : index + 2]
            if line.end > high:
                break
            rank = (line.fence is not None, not after.blank, -line.end)
            found.append((rank, line.end))
        return [end for _, end in sorted(found)]

    def _sentence_ends(self, low: int, high: int) -> Iterator[int]:
        found = [match.end() for match in _SENTENCE.finditer(self._text, low - 1, high + 1)]
        return (end for end in reversed(found[-MAX_CANDIDATES:]) if low <= end <= high)

    def _spaces(self, low: int, high: int) -> Iterator[int]:
        tries = 0
        for end in range(high, low - 1, -1):
            if self._text[end].isspace() and not self._text[end - 1].isspace():
                yield end
                tries += 1
                if tries == MAX_CANDIDATES:
                    return

    def _between_characters(self, start: int, last: int, room: int) -> int:
        """Return a position between two grapheme clusters, or else the last one that fits."""
        last = next(
            (end for end in range(last, start, -1) if self._fits(start, end, room)), start + 1
        )
        for end in range(last, max(start, last - MAX_CANDIDATES), -1):
            whole = not _is_inside_cluster(self._text, end) and self._text[start:end].strip()
            if whole and self._fits(start, end, room) and self._is_safe(start, end):
                return end
        return last

    def _is_safe(self, start: int, end: int) -> bool:
        """Whether a split here creates no new fence and no code block without code."""
        text = self._text
        following = self._skip_forward(end)
        before, after = self._line_at(self._skip_back(end)), self._line_at(following + 1)
        if before is not after:
            opens = before.edge and before.fence is not None
            closes = after.edge and after.fence is None
            return not (opens or closes)
        if before.edge:
            return False
        left = text[max(start, before.start) : end]
        # No later part is longer than the limit, so a fence after that is not at its beginning.
        cut = following + self._limit
        right = text[following : min(before.end, cut)] + ("`" if before.last_tick >= cut else "")
        if before.fence is not None:
            return not (before.fence.closed_by(left) or before.fence.closed_by(right))
        return _opened_by(left) is None and _opened_by(right) is None

    def _skip_back(self, position: int) -> int:
        """Return the position before the white space that ends at `position`."""
        if gap := self._gap_at(position - 1):
            return gap[0]
        while position and self._text[position - 1].isspace():
            position -= 1
        return position

    def _skip_forward(self, position: int) -> int:
        """Return the position after the white space at `position`; the text never ends with any."""
        if gap := self._gap_at(position):
            return gap[1]
        while self._text[position].isspace():
            position += 1
        return position

    def _gap_at(self, position: int) -> tuple[int, int] | None:
        """Return start and end of the long run of white space that a character belongs to."""
        index = bisect.bisect_right(self._gaps, (position, len(self._text))) - 1
        if index < 0 or self._gaps[index][1] <= position:
            return None
        return self._gaps[index]

    def _line_at(self, end: int) -> _Line:
        return self._lines[bisect.bisect_left(self._ends, end)]

    def _fences_at(self, end: int) -> tuple[str, str]:
        """Return the lines that reopen and close the fence that a split at `end` divides."""
        line = self._line_at(end)
        fence = line.fence
        if fence is None or (line.edge and end < line.end):
            return "", ""
        closing = f"\n{fence.indent}{fence.mark}"
        for tag in (fence.tag, ""):
            opening = f"{fence.indent}{fence.mark}{tag}\n"
            if self._size(opening + closing) <= self._limit // 2:
                return opening, closing
        return "", ""  # the limit is too small for fences


def _is_inside_cluster(text: str, position: int) -> bool:
    """Whether a grapheme cluster continues at `position` (an approximation of UAX #29)."""
    before, char = text[position - 1], text[position]
    return (
        unicodedata.category(char) in {"Mn", "Me", "Mc"}
        or _ZWJ in {char, before}
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags, in some flags
        or "\u1160" <= char <= "\u11ff"  # the end of a Korean syllable
        or (_is_flag(char) and _flags_before(text, position) % 2 == 1)
    )


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flags_before(text: str, position: int) -> int:
    count = 0
    while count < position and count < MAX_CANDIDATES and _is_flag(text[position - 1 - count]):
        count += 1
    return count
