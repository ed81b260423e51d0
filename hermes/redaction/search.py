"""Search for values in a text, also for one that begins at its end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

MIN_LENGTH = 6
"""Shorter values are not redacted: they occur in ordinary text too often."""
MIN_CONDENSED = 12
"""Values with fewer letters and digits are searched for with everything between them only."""
MAX_GAP = 64
"""How many other characters may lie between two letters or digits of a value."""
_FIRST = 16
_ALNUM = re.compile("[0-9A-Za-z]")
_LONG_GAP = re.compile(rf"(?<![^0-9A-Za-z])[^0-9A-Za-z]{{{MAX_GAP + 1},}}+")
_LOWER = bytes(range(256)).lower()
_OTHERS = bytes(code for code in range(256) if not _ALNUM.fullmatch(chr(code)))


def occurrences(text: str, value: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of every occurrence of a value, overlapping ones included."""
    start = text.find(value)
    while start >= 0:
        yield start, start + len(value)
        start = text.find(value, start + 1)


def condensed(text: str) -> str:
    """Return the letters and digits of a text, those of ASCII only and in lower case."""
    return text.encode("ascii", "ignore").translate(_LOWER, _OTHERS).decode("ascii")


class Prefixes:
    """Finds the beginning of a value at the end of a text."""

    def __init__(self, values: Sequence[str]) -> None:
        self._by_first: dict[str, list[str]] = {}
        for value in dict.fromkeys(values):
            self._by_first.setdefault(value[0], []).append(value)
        self.longest: int = max(map(len, values), default=0)

    def partial_at_end(self, text: str) -> int:
        """Return where the longest partial value at the end starts, or the length of the text."""
        length = len(text)
        for start in range(max(0, length - self.longest + 1), length):
            if values := self._by_first.get(text[start]):
                begin = text[start : start + _FIRST]  # long secrets are seldom compared whole
                for value in values:
                    longer = len(value) > length - start and value.startswith(begin)
                    if longer and value.startswith(text[start:]):
                        return start
        return length


class CondensedValues:
    """Finds values by their letters and digits alone, whatever lies between these.

    That is how a key looks in a table, a comment or a quotation, with markup or colons in it, or in
    capitals. Only values with many letters and digits are searched for: others may be ordinary
    words.
    """

    def __init__(self, values: Iterable[str]) -> None:
        found = dict.fromkeys(map(condensed, values))
        self._values = [
            each for each in found if len(each) >= MIN_CONDENSED and any(map(str.isdigit, each))
        ]
        self._prefixes = Prefixes(self._values)

    def occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield start and end of every occurrence of a value."""
        if not self._values:
            return
        search = condensed(text)
        values = [each for each in self._values if each in search]
        found = [span for each in values for span in occurrences(search, each)]
        positions = [each.start() for each in _ALNUM.finditer(text)] if found else []
        for start, end in found:
            gaps = map(int.__sub__, positions[start + 1 : end], positions[start : end - 1])
            if max(gaps) <= MAX_GAP + 1:
                yield positions[start], positions[end - 1] + 1

    def partial_at_end(self, text: str) -> int:
        """Return where the longest partial value at the end starts, or the length of the text."""
        if not self._values:
            return len(text)
        first = max(0, len(text) - self._prefixes.longest * (MAX_GAP + 1))
        first = max([first, *(gap.end() for gap in _LONG_GAP.finditer(text, first))])
        search = condensed(text[first:])
        partial = self._prefixes.partial_at_end(search)
        if partial == len(search):
            return len(text)
        return next(itertools.islice(_ALNUM.finditer(text, first), partial, None)).start()
