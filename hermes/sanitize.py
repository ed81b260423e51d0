"""Text of models, tools and people that cannot do anything to a terminal, or to who reads there."""

from __future__ import annotations

import re

_SHOWN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"} | {0x7F: 0x2421}
_BROKEN = dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], "�")
# What turns the direction of writing could show an approval's arguments in another order; tags and
# annotations are not seen at all.
_UNSEEN = dict.fromkeys(
    [
        0x0D, 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),
        *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
    ]
)  # fmt: skip
_TABLE = {**_SHOWN, **_BROKEN, **_UNSEEN, 0x2028: "\n", 0x2029: "\n"}
HOSTILE = re.compile(  # in ranges, which are compiled in a quarter of the time
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""A character of the table."""


def harmless(text: str) -> str:
    """The text with its control characters made visible; of them only newline and tab are left.

    What is not seen by itself is left out. Each character is judged alone, so pieces of a text come
    out as the whole would.
    """
    return text.translate(_TABLE) if HOSTILE.search(text) else text


def one_line(text: str) -> str:
    """The same on one line."""
    return " ".join(harmless(text).split())


def gist(text: str, length: int) -> str:
    """A text on one line, cut where it is too long."""
    line = one_line(text[: 4 * length])
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"
