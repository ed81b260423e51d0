"""Make untrusted text safe for terminals, logs and the store."""

from __future__ import annotations

import re

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
UNSAFE = re.compile(  # ranges compile four times faster than single characters
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Matches a character that `sanitize` replaces or removes."""


def sanitize(text: str) -> str:
    """Return the text without control characters, except for newline and tab.

    Control characters become visible symbols; invisible and bidirectional ones are removed. Each
    character is handled by itself, so a text may be sanitized in pieces.
    """
    return text.translate(_TABLE) if UNSAFE.search(text) else text


def one_line(text: str) -> str:
    """Return the sanitized text on one line, with runs of white space collapsed."""
    return " ".join(sanitize(text).split())


def shorten(text: str, length: int) -> str:
    """Return the text on one line, at most `length` characters long."""
    line = one_line(text[: 4 * length])
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"


def scrub(text: str) -> str:
    """Return the text with lone surrogates replaced, which UTF-8 cannot encode."""
    return text if text.isascii() else text.encode(errors="replace").decode()
