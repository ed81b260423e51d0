"""Line indexs of the keys in a TOML text, which the standard library does not report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]

_SPACES = re.compile(r"[ \t]*")
_IGNORED = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}\n#]*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the line of each key, table and array element, from 1. The text must be valid TOML."""
    return _Scanner(text).scan()


class _Scanner:
    """Scans the text once. Values are skipped, except for the keys inside of them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line, self._counted_to = 1, 0
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}

    def scan(self) -> Mapping[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_IGNORED)
        while self._position < len(self._text):
            if self._text[self._position] == "[":
                table = self._table()
            else:
                self._key_value(table)
            self._skip(_IGNORED)
        return self._lines

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        assert found is not None
        self._position = found.end()
        return found[0]

    def _record(self, path: KeyPath) -> None:
        self._line += self._text.count("\n", self._counted_to, self._position)
        self._counted_to = self._position
        self._lines.setdefault(path, self._line)

    def _table(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._position)
        self._position += 2 if is_array else 1
        path = self._key(())
        if is_array:
            index = self._elements.get(path, -1) + 1
            self._elements[path] = index
            path = (*path, index)
            self._record(path)
        self._position = self._text.index("]", self._position) + (2 if is_array else 1)
        return path

    def _key_value(self, table: KeyPath) -> None:
        path = self._key(table)
        self._position = self._text.index("=", self._position) + 1
        self._value(path)

    def _key(self, path: KeyPath) -> KeyPath:
        """Scan a dotted key; each part is recorded at its first occurrence."""
        while True:
            self._skip(_SPACES)
            if path in self._elements:  # an array of tables: the key belongs to its latest element
                path = (*path, self._elements[path])
            path = (*path, self._key_part())
            self._record(path)
            self._skip(_SPACES)
            if self._text[self._position : self._position + 1] != ".":
                return path
            self._position += 1

    def _key_part(self) -> str:
        char = self._text[self._position]
        if char == '"':
            return _ESCAPE.sub(_unescape, self._skip(_STRINGS[2])[1:-1])
        if char == "'":
            return self._skip(_STRINGS[3])[1:-1]
        return self._skip(_BARE_KEY)

    def _value(self, path: KeyPath) -> None:
        self._skip(_IGNORED)
        char = self._text[self._position]
        if char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        else:
            found = next(
                filter(None, (pattern.match(self._text, self._position) for pattern in _STRINGS)),
                None,
            )
            self._position = found.end() if found else self._position
            if found is None:
                self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._position += 1
        index = 0
        while self._has_more("]"):
            self._record((*path, index))
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._position += 1
        while self._has_more("}"):
            self._key_value(path)

    def _has_more(self, end: str) -> bool:
        """Return whether another element follows; skip what precedes it, or the end."""
        self._skip(_IGNORED)
        if self._text[self._position] == ",":
            self._position += 1
            self._skip(_IGNORED)
        if self._text[self._position] != end:
            return True
        self._position += 1
        return False


def _unescape(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[3], found[3])
