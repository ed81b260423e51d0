"""Text of models, tools and people that cannot do anything to a terminal."""

from __future__ import annotations

_SHOWN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n\r"}
_C1 = dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], "�")
# What turns the direction of writing could show an approval's arguments in another order.
_UNSEEN = dict.fromkeys([0x0D, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_TABLE = {**_SHOWN, 0x7F: 0x2421, **_C1, **_UNSEEN, 0x2028: "\n", 0x2029: "\n"}


def harmless(text: str) -> str:
    """The text with its control characters made visible; of them only newline and tab are left.

    Each character is judged alone, so pieces of a text come out as the whole would.
    """
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)


def gist(text: str, length: int) -> str:
    """A text on one line, cut where it is too long."""
    line = " ".join(harmless(text[: 4 * length]).split())
    return line if len(line) <= length and len(text) <= 4 * length else line[: length - 1] + "…"
