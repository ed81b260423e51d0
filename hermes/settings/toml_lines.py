"""On which line of a TOML text each key stands; the standard reader does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[^,\]}\n#]*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def lines_of(text: str) -> Mapping[Path, int]:
    """The line of each key, table and element, counted from 1. The text must be valid TOML."""
    return _Scanner(text).scan()


class _Scanner:
    """Goes through the text once; what is between keys is only stepped over."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._lines: dict[Path, int] = {}
        self._elements: dict[Path, int] = {}

    def scan(self) -> Mapping[Path, int]:
        table: Path = ()
        self._skip(_BETWEEN)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._table()
            else:
                self._pair(table)
            self._skip(_BETWEEN)
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found[0]

    def _note(self, path: Path) -> None:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self._lines.setdefault(path, self._line)

    def _table(self) -> Path:
        many = self._text.startswith("[[", self._at)
        self._at += 2 if many else 1
        path = self._key(())
        if many:
            number = self._elements.get(path, -1) + 1
            self._elements[path] = number
            path = (*path, number)
            self._note(path)
        self._at = self._text.index("]", self._at) + (2 if many else 1)
        return path

    def _pair(self, table: Path) -> None:
        path = self._key(table)
        self._at = self._text.index("=", self._at) + 1
        self._value(path)

    def _key(self, path: Path) -> Path:
        """A key with its dots; each part is noted where it first stands."""
        while True:
            self._skip(_BLANK)
            if path in self._elements:  # an array of tables: the latest of them is meant
                path = (*path, self._elements[path])
            path = (*path, self._part())
            self._note(path)
            self._skip(_BLANK)
            if self._text[self._at : self._at + 1] != ".":
                return path
            self._at += 1

    def _part(self) -> str:
        sign = self._text[self._at]
        if sign == '"':
            return _ESCAPE.sub(_unescaped, self._skip(_STRINGS[2])[1:-1])
        if sign == "'":
            return self._skip(_STRINGS[3])[1:-1]
        return self._skip(_BARE)

    def _value(self, path: Path) -> None:
        self._skip(_BETWEEN)
        sign = self._text[self._at]
        if sign == "[":
            self._array(path)
        elif sign == "{":
            self._inline(path)
        else:
            found = next(
                filter(None, (each.match(self._text, self._at) for each in _STRINGS)), None
            )
            self._at = found.end() if found else self._at
            if found is None:
                self._skip(_PLAIN)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._more("]"):
            self._note((*path, number))
            self._value((*path, number))
            number += 1

    def _inline(self, path: Path) -> None:
        self._at += 1
        while self._more("}"):
            self._pair(path)

    def _more(self, end: str) -> bool:
        """Whether another element comes; steps over what stands before it, or over the end."""
        self._skip(_BETWEEN)
        if self._text[self._at] == ",":
            self._at += 1
            self._skip(_BETWEEN)
        if self._text[self._at] != end:
            return True
        self._at += 1
        return False


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[3], found[3])
