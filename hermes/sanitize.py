"""Make untrusted text safe for terminals, logs and the store."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"} | {
    0x7F: 0x2421
}
_INVALID = dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], "�")
# Bidirectional controls could show the arguments of an approval in another order; tags and
# annotations are invisible.
_REMOVED = dict.fromkeys(
    [
        0x0D, 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),
        *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
    ]
)  # fmt: skip
_TABLE = {**_VISIBLE, **_INVALID, **_REMOVED, 0x2028: "\n", 0x2029: "\n"}
_ENCODER = msgspec.json.Encoder()
UNSAFE = re.compile(  # ranges compile four times faster than single characters
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Matches a character that `sanitize` replaces or removes."""
_SPACES = re.compile(r"^ +|(?<= {15}) +| +\Z")
# Characters that count as printable and show nothing: fillers, joiners and variation selectors.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc"
    "\U00013441-\U00013446\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
"""Bidirectional classes of printable characters that change the order of what is around them."""
_OVERLAY = 1
"""The combining class of marks that are drawn over their letter."""
_MAX_CLUSTER = 4
"""A letter and its marks. More marks would be drawn over each other."""


def sanitize(text: str) -> str:
    """Return the text without control characters, except for newline and tab.

    Control characters become visible symbols; invisible and bidirectional ones are removed. Each
    character is handled by itself, so a text may be sanitized in pieces.
    """
    return text.translate(_TABLE) if UNSAFE.search(text) else text


def visible(text: str) -> str:
    """Return JSON text on one line, with everything that a reader might not see as `\\uXXXX`.

    That is all control, format and bidirectional characters, letters that are written from right to
    left, separators, long runs of spaces, and combining marks that do not belong to a letter.
    The JSON has the same value: only characters inside of its strings are written differently.
    """
    text = _SPACES.sub(lambda spaces: _escaped(spaces[0]), text)
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    cluster = ""  # the letter before, with its marks
    for char in text:
        mark = is_mark(char)
        seen = char.isprintable() and (char.isascii() or _is_seen(char))
        seen = seen and (not mark or _belongs(char, cluster))
        shown.append(char if seen else _escaped(char))
        cluster = (cluster if mark else "") + char if seen and (mark or char.isalpha()) else ""
    return "".join(shown)


def is_mark(char: str) -> bool:
    """Whether a character is drawn together with the one before it."""
    return not char.isascii() and unicodedata.category(char).startswith("M")


def _is_seen(char: str) -> bool:
    return not _BLANK.match(char) and unicodedata.bidirectional(char) not in _RIGHT_TO_LEFT


def _belongs(mark: str, cluster: str) -> bool:
    """Whether a mark is an ordinary one of the letter before it, and can be told from its marks."""
    scripts = [unicodedata.name(char, "?").partition(" ")[0] for char in (mark, cluster[:1] or "-")]
    return (
        cluster != ""
        and mark not in cluster
        and len(cluster) < _MAX_CLUSTER
        and unicodedata.category(mark) != "Me"
        and unicodedata.combining(mark) != _OVERLAY
        and scripts[0] in {"COMBINING", scripts[1]}
    )


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def one_line(text: str) -> str:
    """Return the sanitized text on one line, with runs of white space collapsed."""
    return " ".join(sanitize(text).split())


def shorten(text: str, length: int) -> str:
    """Return the text on one line, at most `length` characters long."""
    line = one_line(text[: 4 * length])
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"


def scrub(text: str) -> str:
    """Return the text with what cannot be stored replaced: lone surrogates and U+0000.

    UTF-8 cannot encode lone surrogates, and a text in PostgreSQL has no U+0000.
    """
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if text.isascii() or _is_valid(text):
        return text
    return text.encode(errors="replace").decode()


def _is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encodable(value: T) -> T:
    """Return a struct or JSON value that can be encoded: with lone surrogates replaced, if any."""
    try:
        _ENCODER.encode(value)
    except (UnicodeEncodeError, TypeError, RecursionError):
        return _scrubbed(value)
    return value


def _scrubbed(value: T) -> T:
    """Return a copy without lone surrogates; the value itself if it is not JSON at all."""
    try:
        plain = _scrub_all(msgspec.to_builtins(value))
        return msgspec.convert(plain, type(value))
    except (TypeError, RecursionError, msgspec.ValidationError):
        return value


def _scrub_all(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {_scrub_all(name): _scrub_all(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_scrub_all(inner) for inner in value]
    return value
