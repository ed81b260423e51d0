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
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

# One place for what looks like a key; the known ones are hidden here.
from hermes.redaction.keys import HIDDEN, Chained, Pieces, Streamed, hide_keys, key_pieces

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
_UNFINISHED = re.compile(  # an escape, or a longer one, may come of the end of a text
    r"""(?: \\+(?: u[0-9a-fA-F]{0,3} | U[0-9a-fA-F]{0,7} | x[0-9a-fA-F]? )?
    | %(?:25)*[0-9a-fA-F]? | &(?:amp;)*(?: am?p? | lt? | gt? | q(?:u(?:ot?)?)?
    | \#[xX]0*[0-9a-fA-F]{0,6} | \#[0-9]* )? )\Z""",
    re.VERBOSE,
)
_DECIMAL, _ENTITY, _BACKSLASHED = 6, 7, 8
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


class Redactor:
    """Takes the given secrets out of texts; `known` only these, a call what looks like one too."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.known = KnownValues(secrets)

    def __call__(self, text: str) -> str:
        """The text without these secrets, and without anything that looks like one."""
        return hide_keys(self.known(text))

    def pieces(self) -> Pieces:
        """The same for a text that comes in pieces."""
        return Chained(self.known.pieces(), key_pieces())


class KnownValues:
    """Takes the given secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {part for secret in secrets for part in _parts(secret)}
        # The longest first: one may be a part of another.
        ordered = sorted(values, key=len, reverse=True)
        self._spelled = [text for value in ordered for text in _spellings(value)]
        self._escaped = [text for value in ordered for text in _characters(value)]
        self._begun = _Beginnings(self._spelled)
        self._shortest = min(map(len, self._spelled), default=0)

    def __call__(self, text: str) -> str:
        """The text without these secrets."""
        if len(text) < self._shortest:
            return text  # as most pieces of an answer are
        for secret in self._spelled:
            if secret in text:
                text = text.replace(secret, HIDDEN)
        if self._escaped and _has_escapes(text):
            text = _without(text, self._escaped)
        return text

    def pieces(self) -> Pieces:
        """The same for a text that comes in pieces."""
        return Streamed(
            lambda text, start: self(text[start:]),
            lambda text, start: start + self._settled(text[start:]),
        )

    def _settled(self, text: str) -> int:
        """How far the text stays as it is, whatever follows."""
        cut = self._begun.at_the_end_of(text)
        spans: list[tuple[int, int]] = []
        if self._escaped and _has_escapes(text):
            unfinished = _UNFINISHED.search(text)
            read = _Read(text[: None if unfinished is None else unfinished.start()])
            cut = min(cut, read.source(self._begun.at_the_end_of(read.whole)))
            spans = [span for value in self._escaped for span in read.find(value)]
        if cut < len(text) and len(text) >= self._shortest:
            spans += [span for value in self._spelled for span in _places(text, value)]
        return _outside(cut, spans)


class _Beginnings:
    """Knows where something begins that a text may go on with."""

    def __init__(self, values: Sequence[str]) -> None:
        self._by_first: dict[str, list[str]] = {}
        for value in dict.fromkeys(values):
            self._by_first.setdefault(value[0], []).append(value)
        self._longest = max(map(len, values), default=0)

    def at_the_end_of(self, text: str) -> int:
        """Where the longest beginning of a value stands at the end; its length if there is none."""
        length = len(text)
        for place in range(max(0, length - self._longest + 1), length):
            if values := self._by_first.get(text[place]):
                end = text[place:]
                for value in values:
                    if value.startswith(end) and len(value) > len(end):
                        return place
        return length


def _places(text: str, value: str) -> Iterator[tuple[int, int]]:
    """Where a value stands, also where it overlaps with itself."""
    start = text.find(value)
    while start >= 0:
        yield start, start + len(value)
        start = text.find(value, start + 1)


def _outside(cut: int, spans: Iterable[tuple[int, int]]) -> int:
    """The last place up to the cut that is in the middle of none of the spans."""
    for start, stop in sorted(spans, key=lambda span: -span[1]):
        if start < cut < stop:
            cut = start
    return cut


def _has_escapes(text: str) -> bool:
    return "\\" in text or "%" in text or "&" in text


def _parts(secret: str) -> Iterator[str]:
    """The secret, without white space around it, and its lines."""
    secret = secret.strip()
    if len(secret) >= SHORTEST:
        yield secret
    lines = secret.splitlines()
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= SHORTEST_LINE)


def _spellings(value: str) -> Iterator[str]:
    """The value as it is, as octets, in hexadecimal, and within what was encoded as base64."""
    raw = value.encode(errors="surrogatepass")
    yield value
    yield from _characters(value)
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
        self.whole = "".join([*pieces, text[end:]])

    def find(self, value: str) -> Iterator[tuple[int, int]]:
        """Where the value stands in the text, as it was."""
        for start, stop in _places(self.whole, value):
            yield self.source(start), self.source(stop)

    def source(self, place: int) -> int:
        """Where a character of the whole stands in the text, as it was."""
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
