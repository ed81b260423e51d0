"""Slice texts by UTF-16 code units, as Telegram counts."""

from __future__ import annotations

from collections.abc import Iterable


def remove(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text without these spans (offset, length); spans outside of it are ignored."""
    units = text.encode("utf-16-le", "surrogatepass")
    for offset, length in sorted(spans, reverse=True):
        if offset >= 0 and length > 0 and 2 * (offset + length) <= len(units):
            units = units[: 2 * offset] + units[2 * (offset + length) :]
    return units.decode("utf-16-le", "replace")


def extract(text: str, offset: int, length: int) -> str:
    """Return a span of the text; "" if it is outside of the text."""
    units = text.encode("utf-16-le", "surrogatepass")
    if offset < 0 or length <= 0 or 2 * (offset + length) > len(units):
        return ""
    return units[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")
