"""Encoded forms of a secret, and texts with their escape sequences decoded.

A key inside a URL, a JSON document, a `repr`, a Markdown text, wrapped lines or a basic
authentication header looks different from the key in the configuration, and still reveals it. So
does a key with invisible characters in it, which a terminal or `sanitize` leaves out.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from html.entities import html5
from itertools import accumulate

from hermes.redaction.search import MIN_LENGTH, occurrences

MAX_INDENT = 16
"""Spaces around a line break that count as part of it."""
_INDENT = rf"[ \t>]{{0,{MAX_INDENT}}}+"
_BREAKS = r"\n\r\x0b\x0c\x85\u2028\u2029"
# Characters that show nothing. All that `sanitize` removes are among them or among the breaks.
_INVISIBLE = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef"
)
_HEX = "[0-9a-fA-F]"
_PUNCTUATION = r"!-/:-@\[\]-`{-~"
# Possessive quantifiers (`++`), so that no text makes it search the same characters again.
_OCTET = rf"%(?:25(?={_HEX}{{2}}))*+{_HEX}{{2}}"
_ENTITY = rf"""
    &(?:amp;)*+(?: \#[xX]{_HEX}{{1,12}}; | \#[0-9]{{1,12}}; | [A-Za-z][A-Za-z0-9]{{1,24}}; )
"""
_ESCAPES = rf"""
    \\++(?: u{_HEX}{{4}} | U{_HEX}{{8}} | u\{{{_HEX}{{1,6}}\}} | x{_HEX}{{2}} | [0-3][0-7]{{2}}
        | (?:r\\++)?n{_INDENT} | \r?\n{_INDENT} | {_OCTET} | {_ENTITY} | [rt{_PUNCTUATION}] )?
    | {_OCTET} | {_ENTITY} | &(?:amp;)*+ | [{_BREAKS}]++{_INDENT} | [{_INVISIBLE}]++
"""
_SPACES = rf"(?<![ \t])[ \t]{{1,{MAX_INDENT}}}+(?= \\*+[\r\n] | \\++(?:r\\++)?n )"
_ESCAPE = re.compile(f"({_ESCAPES})", re.VERBOSE)
_ESCAPE_OR_SPACES = re.compile(f"({_ESCAPES} | {_SPACES})", re.VERBOSE)
_BEFORE_BREAK = (" \n", "\t\n", " \\", "\t\\", " \r", "\t\r")
_SPECIAL = re.compile(rf"[\\%&{_BREAKS}{_INVISIBLE}]")
_SKIPPED = re.compile(rf"[{_BREAKS}{_INVISIBLE}]")
# The numbers in escapes, without backslashes and what else may be repeated in front of them.
_NUMBER = re.compile(rf"(?:[uUx]\{{?|%|&\#[xX])({_HEX}+)[;}}]?|([0-7]{{3}})|&\#([0-9]+);")
# The bases of its groups.
_BASES = {1: 16, 2: 8, 3: 10}
_TAB = {"t": "\t"}
# The end of a text that could become an escape, or a longer one. This is a pattern for the reversed
# text, where the end is the beginning, so that it is tried at one place only.
_PARTIAL_ESCAPE = re.compile(
    rf"""(?: {_HEX}{{0,3}}u | {_HEX}{{0,7}}U | {_HEX}{{0,6}}\{{u | {_HEX}?x | [0-7]{{1,2}} )?\\++
    | {_HEX}?(?:52)*+%\\*+
    | (?: {_HEX}{{0,12}}[xX]\# | [0-9]{{0,12}}\# | [A-Za-z0-9]{{0,25}} )(?:;pma)*+&\\*+
    """,
    re.VERBOSE,
)


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
    forms = {*_characters(value), *encoded_forms(value)}
    unwrapped = {re.sub(r"[ \t]*\r?\n[ \t>]*", "", form) for form in forms}
    # What in the value itself looks like an escape is decoded in a text that contains it.
    decoded = {DecodedText.of(form).text for form in forms}
    return unwrapped | {form for form in decoded if len(form) >= MIN_LENGTH}


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
    """Return whether the text may contain escapes, line breaks or invisible characters."""
    return _SPECIAL.search(text) is not None


def without_partial_escape(text: str) -> str:
    """Return the text up to an unfinished escape sequence at its end."""
    partial = _PARTIAL_ESCAPE.match(text[::-1])
    return text if partial is None else text[: len(text) - partial.end()]


class DecodedText:
    """A text with its escape sequences decoded, which maps positions back to the original.

    Line breaks are left out, with the white space around them: a line may have been wrapped. So are
    invisible characters.
    """

    def __init__(self, source: Sequence[str], decoded: Mapping[str, str]) -> None:
        # Everything that is done for each escape is done in C: a text may consist of them.
        self._source, self._decoded = source, decoded
        self._parts = [*source]
        self._parts[1::2] = map(decoded.__getitem__, source[1::2])
        self.text: str = "".join(self._parts)
        self._length = sum(map(len, source))
        self._ends: tuple[list[int], list[int]] | None = None

    @classmethod
    def of(cls, text: str) -> DecodedText:
        """Decode a text."""
        source = _split(text) if has_escapes(text) else [text]
        return cls(source, {escape: _decode(escape) for escape in set(source[1::2])})

    def with_literal(self, beginnings: frozenset[str]) -> DecodedText | None:
        """Return this text with some escapes as they are; None if it has no such escapes.

        They are those that end with the beginning of a value, as in `\\token`, where `\\t` need
        not be a tab. `beginnings` are in lower case.
        """
        literal = {each: each for each in self._decoded if not beginnings.isdisjoint(_tails(each))}
        if not literal:
            return None
        return DecodedText(self._source, {**self._decoded, **literal})

    def occurrences(self, value: str) -> Iterator[tuple[int, int]]:
        """Yield start and end, in the original text, of every occurrence of a value."""
        for start, end in occurrences(self.text, value):
            yield self.source(start), self.source_of_end(end)

    def source(self, position: int) -> int:
        """Return the position in the original text of a position in the decoded text."""
        if position == len(self.text):
            return self._length
        positions, sources = self._positions()
        before = bisect_right(positions, position) - 1
        return sources[before] + position - positions[before]

    def source_of_end(self, position: int) -> int:
        """Same for the end of an occurrence, to which a line break that follows does not belong."""
        positions, sources = self._positions()
        at = bisect_left(positions, position)
        if positions[at] > position:
            at -= 1
        return sources[at] + position - positions[at]

    def outside(self, source: int) -> int:
        """Return the start of the escape that this position of the original is inside of, if any.

        Otherwise return the position itself.
        """
        _, sources = self._positions()
        part = bisect_right(sources, source) - 1
        return sources[part] if part % 2 else source

    def _positions(self) -> tuple[list[int], list[int]]:
        """Return where each part begins, and the last one ends: decoded and in the original."""
        if self._ends is None:
            self._ends = (
                list(accumulate(map(len, self._parts), initial=0)),
                list(accumulate(map(len, self._source), initial=0)),
            )
        return self._ends


def _split(text: str) -> list[str]:
    """Return parts of the text without escapes and, between them, the escapes."""
    spaces = any(each in text for each in _BEFORE_BREAK)
    return (_ESCAPE_OR_SPACES if spaces else _ESCAPE).split(text)


def _decode(escape: str) -> str:
    """Return the character that an escape sequence stands for; none for a line break."""
    match escape[0]:
        case "\\":
            escape = escape.lstrip("\\")
            if len(escape) > 1 and escape[0] in "%&":
                return _decode(escape)
        case "%":
            escape = f"%{escape[-2:]}"
        case "&":
            escape = escape.replace("amp;", "")
        case _:
            return ""
    if number := _NUMBER.fullmatch(escape):
        group = number.lastindex or 1
        code = int(number[group], _BASES[group])
        return _shown(chr(code) if code <= sys.maxunicode else "?")
    if escape.startswith("&"):
        return _shown(html5.get(escape[1:], escape))
    if escape.startswith(("n", "r", "\r", "\n")):
        return ""
    return _TAB.get(escape, escape) or "\\"


def _tails(escape: str) -> tuple[str, ...]:
    """Return an escape without what introduces it, in lower case; not all may introduce it."""
    rest = escape.lstrip("\\").rstrip(" \t>").lower()
    match rest[:1]:
        case "%":
            return rest[1:], rest[-2:]
        case "&":
            return rest[1:], rest.replace("amp;", "")[1:]
    return (rest,)


def _shown(character: str) -> str:
    return "" if _SKIPPED.fullmatch(character) else character
