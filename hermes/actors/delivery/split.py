"""Long texts in parts that a platform takes, cut where it hurts least, code fences kept whole.

A part ends, by preference, at a blank line, at the end of a line, after a sentence, at a space, or
else between two characters; outside of code rather than in it, and in the second half of what
would fit rather than in the first. A fence that is cut is closed at the end of the part and opened
again, with its tag, in the next. Apart from these fences, only white space at the seams is lost.
"""

from __future__ import annotations

import bisect
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import msgspec

Size = Callable[[str], int]

SMALLEST = 2
"""What one character may take in UTF-16."""
TRIES = 200

_MARKS = r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+|>[ \t]*)*"
_OPENING = re.compile(rf"({_MARKS})(`{{3,}}(?=[^`]*$)|~{{3,}})(.*)")
_SENTENCE = re.compile(r"[.!?…]['\")\]’”]*(?=\s)|[。！？]")
_ZWJ = "\u200d"


def utf16(text: str) -> int:
    """How many UTF-16 units a text has; Telegram counts so."""
    return len(text) + sum(char > "\uffff" for char in text)


def split(text: str, limit: int, *, size: Size = utf16) -> list[str]:
    """The text in parts of at most `limit`, none of them blank; one that fits stays as it is.

    `size` adds up over the characters of a text.
    """
    return [piece.text for piece in pieces(text, limit, size=size)]


class Piece(msgspec.Struct, frozen=True):
    """A stretch of the text, and the fences that were added around it."""

    head: str
    body: str
    tail: str

    @property
    def text(self) -> str:
        """The part as it is sent."""
        return self.head + self.body + self.tail


def pieces(text: str, limit: int, *, size: Size = utf16) -> list[Piece]:
    """`split`, with what was added set apart."""
    if limit < SMALLEST:
        raise ValueError(f"a part must have room for a character, and {limit} may be too little")
    if size(text) <= limit:
        return [Piece("", text, "")] if text.strip() else []
    return list(_Cutter(text, limit, size).cut())


class _Fence(msgspec.Struct, frozen=True):
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
    # In a later part there is no list any more, only its indentation.
    return _Fence(re.sub(r"[^\s>]", " ", indent), mark, tag)


class _Line(msgspec.Struct, frozen=True):
    """A line of the text; `edge` where a fence begins or ends with it."""

    start: int
    end: int
    blank: bool
    edge: bool
    fence: _Fence | None
    """What is open after it."""


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
        yield _Line(start, end, not line.strip(), fence is not before, fence)
        start = end + 1


class _Cutter:
    def __init__(self, text: str, limit: int, size: Size) -> None:
        self._text = text.rstrip()
        self._limit = limit
        self._size = size
        self._lines = list(_lines(self._text))
        self._ends = [line.end for line in self._lines]
        plain = size(self._text) == len(self._text)
        self._sums: Sequence[int] = (
            range(len(self._text) + 1)
            if plain
            else list(itertools.accumulate(map(size, self._text), initial=0))
        )

    def cut(self) -> Iterator[Piece]:
        text, end, head = self._text, 0, ""
        while end < len(text):
            start = self._after_seam(end)
            room = self._limit - self._size(head)
            end = self._choose(start, room)
            opening, closing = self._around(end)
            yield Piece(head, text[start:end].rstrip(), closing if end < len(text) else "")
            head = opening

    def _after_seam(self, end: int) -> int:
        """Where the next part begins: after white space, but before a line's indentation."""
        text = self._text
        first = self._forth(end)
        begin = text.rfind("\n", end, first) + 1
        if (not begin and end) or self._sums[first] - self._sums[begin] > self._limit // 4:
            return first
        return begin

    def _choose(self, start: int, room: int) -> int:
        """Where the part that begins at `start` ends."""
        last = self._reach(start, room)
        if last == len(self._text):
            return last
        half = self._reach(start, room // 2)
        for low, high in ((half, last), (start, half)):
            for places in (self._line_ends, self._sentence_ends, self._spaces):
                for end in places(max(low, start + 1), high):
                    if self._fits(start, end, room) and self._is_safe(start, end):
                        return end
        return self._anywhere(start, last, room)

    def _reach(self, start: int, room: int) -> int:
        """The furthest place that is at most `room` away."""
        return bisect.bisect_right(self._sums, self._sums[start] + room) - 1

    def _fits(self, start: int, end: int, room: int) -> bool:
        _, closing = self._around(end)
        return self._sums[end] - self._sums[start] + self._size(closing) <= room

    def _line_ends(self, low: int, high: int) -> list[int]:
        """Ends of lines, the best first."""
        found = []
        for place in range(bisect.bisect_left(self._ends, low), len(self._lines) - 1):
            line, after = self._lines[place : place + 2]
            if line.end > high:
                break
            rank = (line.fence is not None, not after.blank, -line.end)
            found.append((rank, line.end))
        return [end for _, end in sorted(found)]

    def _sentence_ends(self, low: int, high: int) -> Iterator[int]:
        found = [match.end() for match in _SENTENCE.finditer(self._text, low - 1, high + 1)]
        return (end for end in reversed(found[-TRIES:]) if low <= end <= high)

    def _spaces(self, low: int, high: int) -> Iterator[int]:
        tries = 0
        for end in range(high, low - 1, -1):
            if self._text[end].isspace() and not self._text[end - 1].isspace():
                yield end
                tries += 1
                if tries == TRIES:
                    return

    def _anywhere(self, start: int, last: int, room: int) -> int:
        """Between two characters, and else where it must be."""
        last = next(
            (end for end in range(last, start, -1) if self._fits(start, end, room)), start + 1
        )
        for end in range(last, max(start, last - TRIES), -1):
            whole = not _joined(self._text, end) and self._text[start:end].strip()
            if whole and self._fits(start, end, room) and self._is_safe(start, end):
                return end
        return last

    def _is_safe(self, start: int, end: int) -> bool:
        """Whether a cut here makes no fence that was none, and no block of code without code."""
        text = self._text
        before, after = self._line_at(self._back(end)), self._line_at(self._forth(end) + 1)
        if before is not after:
            opens = before.edge and before.fence is not None
            closes = after.edge and after.fence is None
            return not (opens or closes)
        if before.edge:
            return False
        left, right = text[max(start, before.start) : end], text[end : before.end].lstrip()
        if before.fence is not None:
            return not (before.fence.closed_by(left) or before.fence.closed_by(right))
        return _opened_by(left) is None and _opened_by(right) is None

    def _back(self, place: int) -> int:
        """Before white space."""
        while place and self._text[place - 1].isspace():
            place -= 1
        return place

    def _forth(self, place: int) -> int:
        """After white space; the text does not end in any."""
        while self._text[place].isspace():
            place += 1
        return place

    def _line_at(self, end: int) -> _Line:
        return self._lines[bisect.bisect_left(self._ends, end)]

    def _around(self, end: int) -> tuple[str, str]:
        """What opens the fence again that is cut here, and what closes it."""
        line = self._line_at(end)
        fence = line.fence
        if fence is None or (line.edge and end < line.end):
            return "", ""
        closing = f"\n{fence.indent}{fence.mark}"
        for tag in (fence.tag, ""):
            opening = f"{fence.indent}{fence.mark}{tag}\n"
            if self._size(opening + closing) <= self._limit // 2:
                return opening, closing
        return "", ""  # there is no room for fences


def _joined(text: str, place: int) -> bool:
    """Whether a character of the reader's goes on here."""
    before, char = text[place - 1], text[place]
    return (
        unicodedata.category(char) in {"Mn", "Me", "Mc"}
        or _ZWJ in {char, before}
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # the tags of some flags
        or "\u1160" <= char <= "\u11ff"  # the rest of a Korean syllable
        or (_is_flag(char) and _flags_before(text, place) % 2 == 1)
    )


def _is_flag(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flags_before(text: str, place: int) -> int:
    count = 0
    while count < place and count < TRIES and _is_flag(text[place - 1 - count]):
        count += 1
    return count
