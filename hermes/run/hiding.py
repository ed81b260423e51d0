"""Secrets taken out of texts, in whatever spelling they stand there.

A key that was put into a URL, a JSON text, a `repr` or a header of basic authentication is spelled
otherwise than in the configuration, and is the same key.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from urllib.parse import quote

# One place for what looks like a key; the known ones are hidden here.
from hermes.agents.provider import HIDDEN, hide_keys

SHORTEST = 6
"""Shorter values are no secrets: hiding them would hide half of every line."""
SHORTEST_LINE = 16
"""Lines of a secret of several lines, such as a private key, are secrets of their own."""
_ESCAPE = re.compile(
    r"""\\+u([0-9a-fA-F]{4}) | \\+U([0-9a-fA-F]{8}) | \\+x([0-9a-fA-F]{2})
    | %(?:25)*([0-9a-fA-F]{2}) | &(?:amp;)*\#[xX]0*([0-9a-fA-F]{1,6}); | &(?:amp;)*\#0*([0-9]{1,7});
    | (&(?:amp|lt|gt|quot);) | \\+([nrt"'/]) | (\\\\+)""",
    re.VERBOSE,
)
_DECIMAL, _ENTITY, _BACKSLASHED = 6, 7, 8
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


class Hiding:
    """Takes the given secrets out of texts; `known` only these, a call what looks like one too."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {part for secret in secrets for part in _parts(secret)}
        # The longest first: one may be a part of another.
        ordered = sorted(values, key=len, reverse=True)
        self._spelled = [text for value in ordered for text in _spellings(value)]
        self._escaped = [text for value in ordered for text in _characters(value)]

    def __call__(self, text: str) -> str:
        """The text without these secrets, and without anything that looks like one."""
        return hide_keys(self.known(text))

    def known(self, text: str) -> str:
        """The text without these secrets."""
        for secret in self._spelled:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        if self._escaped and ("\\" in text or "%" in text or "&" in text):
            text = _without(text, self._escaped)
        return text


def _parts(secret: str) -> Iterator[str]:
    """The secret, without white space around it, and its lines."""
    secret = secret.strip()
    if len(secret) >= SHORTEST:
        yield secret
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= SHORTEST_LINE)


def _spellings(value: str) -> Iterator[str]:
    """The value as it is, in hexadecimal, and within whatever was encoded as base64."""
    raw = value.encode(errors="surrogatepass")
    yield value
    if "\\" in value:  # undone, its own backslashes would look like escapes
        for escaped in (json.dumps(value), ascii(value), repr(value), repr(raw)):
            inner = escaped.removeprefix("b")[1:-1]
            yield from (inner, json.dumps(inner)[1:-1], repr(inner)[1:-1])
    yield raw.hex()
    yield raw.hex().upper()
    for before in range(3):  # what stands before it moves it by so many bytes
        first, last = -(-before * 8 // 6), (before + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            middle = encode(b"\0" * before + raw).decode()[first:last]
            yield middle
            yield quote(middle, safe="")


def _characters(value: str) -> set[str]:
    """The value as it reads when escapes are undone one by one: of characters, octets or units."""
    octets = value.encode(errors="surrogatepass").decode("latin-1")
    pairs = value.encode("utf-16-le", "surrogatepass")
    units = [int.from_bytes(pairs[at : at + 2], "little") for at in range(0, len(pairs), 2)]
    return {value, octets, "".join(map(chr, units))}


def _without(text: str, values: Iterable[str]) -> str:
    """The text without the stretches that are one of the values once escapes are undone."""
    read = _Read(text)
    hits = sorted(span for value in values for span in read.find(value))
    kept, end = [], 0
    for start, stop in hits:
        if start >= end:
            kept += [text[end:start], HIDDEN]
        end = max(end, stop)
    return "".join([*kept, text[end:]])


class _Read:
    """A text with its escapes undone, which knows where each character came from."""

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        self._places, self._sources = [0], [0]
        length = end = 0
        for escape in _ESCAPE.finditer(text):
            between = text[end : escape.start()]
            pieces += [between, _undone(escape)]
            length += len(between)
            end = escape.end()
            self._places += [length, length + 1]
            self._sources += [escape.start(), end]
            length += 1
        self._whole = "".join([*pieces, text[end:]])

    def find(self, value: str) -> Iterator[tuple[int, int]]:
        """Where the value stands in the text, as it was."""
        start = self._whole.find(value)
        while start >= 0:
            yield self._source(start), self._source(start + len(value))
            start = self._whole.find(value, start + len(value))

    def _source(self, place: int) -> int:
        before = bisect_right(self._places, place) - 1
        return self._sources[before] + place - self._places[before]


def _undone(escape: re.Match[str]) -> str:
    """The one character that an escape stands for."""
    which = escape.lastindex or 0
    found = escape[which]
    if which > _BACKSLASHED:
        return "\\"
    if which == _BACKSLASHED:
        return _NAMED.get(found, found)
    if which == _ENTITY:
        return html.unescape(found)
    code = int(found, 10 if which == _DECIMAL else 16)
    return chr(code) if code <= sys.maxunicode else "?"
