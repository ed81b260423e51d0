"""Encoded forms of a secret, and texts with their escape sequences decoded.

A key inside a URL, a JSON document, a `repr`, a Markdown text, wrapped lines or a basic
authentication header looks different from the key in the configuration, and still reveals it.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

MAX_INDENT = 16
"""Spaces around a line break that count as part of it."""
_INDENT = rf"[ \t>]{{0,{MAX_INDENT}}}"
_ESCAPE = re.compile(
    rf"""\\+u([0-9a-fA-F]{{4}}) | \\+U([0-9a-fA-F]{{8}}) | \\+x([0-9a-fA-F]{{2}})
    | %(?:25)*([0-9a-fA-F]{{2}}) | &(?:amp;)*\#[xX]0*([0-9a-fA-F]{{1,6}});
    | &(?:amp;)*\#0*([0-9]{{1,7}}); | (&(?:amp|lt|gt|quot);)
    | (\n{_INDENT} | \r\n{_INDENT} | \\+\r?\n{_INDENT} | \\+(?:r\\+)?n{_INDENT})
    | \\+([rt!-/:-@\[\]-`{{-~]) | (\\\\+)""",
    re.VERBOSE,
)
_LINE_BREAK = re.compile(rf"[ \t]{{0,{MAX_INDENT}}}\r?\n{_INDENT}")
# The end of a text that could become an escape, or a longer one. This is a pattern for the reversed
# text, where the end is the beginning, so that it is tried at one place only.
_PARTIAL_ESCAPE = re.compile(
    r"""(?: [0-9a-fA-F]{0,3}u | [0-9a-fA-F]{0,7}U | [0-9a-fA-F]?x )?\\++
    | [0-9a-fA-F]?(?:52)*+%
    | (?: p?m?a | t?l | t?g | (?:(?:t?o)?u)?q | [0-9a-fA-F]{0,6}0*+[xX]\# | [0-9]*+\# )?(?:;pma)*+&
    """,
    re.VERBOSE,
)
# Groups of `_ESCAPE` that are not hexadecimal numbers.
_DECIMAL, _ENTITY, _WRAP, _BACKSLASHED = 6, 7, 8, 9
_CONTROL = {"r": "\r", "t": "\t"}


def encoded_forms(value: str) -> Iterator[str]:
    """Yield the value as it is, as octets, in hexadecimal, and as part of a base64 text."""
    raw = value.encode(errors="surrogatepass")
    yield value
    yield from _characters(value)
    if "\\" in value:  # its own backslashes would be decoded as escapes
        for escaped in (json.dumps(value), ascii(value), repr(value), repr(raw)):
            inner = escaped.removeprefix("b")[1:-1]
            yield from (inner, json.dumps(inner)[1:-1], repr(inner)[1:-1])
    yield raw.hex()
    yield raw.hex().upper()
    yield from _base64_forms(raw)


def decoded_forms(value: str) -> set[str]:
    """Return the forms of the value to look for in a text with its escapes decoded."""
    return {_unwrapped(form) for form in (*_characters(value), *encoded_forms(value))}


def _unwrapped(form: str) -> str:
    """Return a form without line breaks, as `DecodedText` has it."""
    return re.sub(r"[ \t]*\r?\n[ \t>]*", "", form)


def _characters(value: str) -> set[str]:
    """Return the value as decoded escapes spell it: in characters, octets or UTF-16 units."""
    octets = value.encode(errors="surrogatepass").decode("latin-1")
    pairs = value.encode("utf-16-le", "surrogatepass")
    units = [int.from_bytes(pairs[at : at + 2], "little") for at in range(0, len(pairs), 2)]
    return {value, octets, "".join(map(chr, units))}


def _base64_forms(raw: bytes) -> Iterator[str]:
    for offset in range(3):  # bytes in front of the value shift its base64 form
        first, last = -(-offset * 8 // 6), (offset + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * offset + raw).decode()[first:last]


def has_escapes(text: str) -> bool:
    """Return whether the text may contain escape sequences or line breaks."""
    return "\\" in text or "%" in text or "&" in text or "\n" in text


def may_contain(text: str, forms: Sequence[str]) -> bool:
    """Return False if the decoded text certainly contains none of the forms.

    This is much quicker than decoding for a text with many lines and no other escapes.
    """
    if "\\" in text or "%" in text or "&" in text:
        return True
    joined = _LINE_BREAK.sub("", text)
    return any(form in joined for form in forms)


def without_partial_escape(text: str) -> str:
    """Return the text up to an unfinished escape sequence at its end."""
    partial = _PARTIAL_ESCAPE.match(text[::-1])
    return text if partial is None else text[: len(text) - partial.end()]


def occurrences(text: str, value: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of every occurrence of a value, overlapping ones included."""
    start = text.find(value)
    while start >= 0:
        yield start, start + len(value)
        start = text.find(value, start + 1)


class DecodedText:
    """A text with its escape sequences decoded, which maps positions back to the original.

    Line breaks are left out, with the white space around them: a line may have been wrapped.
    """

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._positions, self._sources = [0], [0]
        length = end = 0
        for escape in _ESCAPE.finditer(text):
            start = escape.start()
            if escape.lastindex == _WRAP:
                start = _skip_back(text, end, start)
            decoded = _decoded(escape)
            parts += [text[end:start], decoded]
            length += start - end
            end = escape.end()
            self._positions += [length, length + len(decoded)]
            self._sources += [start, end]
            length += len(decoded)
        self.text: str = "".join([*parts, text[end:]])

    def occurrences(self, value: str) -> Iterator[tuple[int, int]]:
        """Yield start and end, in the original text, of every occurrence of a value."""
        for start, end in occurrences(self.text, value):
            yield self.source(start), self._source_of_end(end)

    def source(self, position: int) -> int:
        """Return the position in the original text of a position in the decoded text."""
        before = bisect_right(self._positions, position) - 1
        return self._sources[before] + position - self._positions[before]

    def _source_of_end(self, position: int) -> int:
        """Same for the end of an occurrence, to which a line break that follows does not belong."""
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] > position:
            at -= 1
        return self._sources[at] + position - self._positions[at]


def _skip_back(text: str, first: int, position: int) -> int:
    """Return the position before the spaces that end at `position`."""
    lowest = max(first, position - MAX_INDENT)
    while position > lowest and text[position - 1] in " \t":
        position -= 1
    return position


def _decoded(escape: re.Match[str]) -> str:
    """Return the character that an escape sequence stands for; none for a line break."""
    group = escape.lastindex or 0
    value = escape[group]
    if group > _BACKSLASHED:
        return "\\"
    if group == _WRAP:
        return ""
    if group == _BACKSLASHED:
        return _CONTROL.get(value, value)
    if group == _ENTITY:
        return html.unescape(value)
    code = int(value, 10 if group == _DECIMAL else 16)
    return chr(code) if code <= sys.maxunicode else "?"
