"""Texts as Telegram counts them: in UTF-16 units."""

from __future__ import annotations

from collections.abc import Iterable


def cut_out(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The text without these pieces, given as offset and length; what is not there stays so."""
    units = text.encode("utf-16-le", "surrogatepass")
    for offset, size in sorted(spans, reverse=True):
        if offset >= 0 and size > 0 and 2 * (offset + size) <= len(units):
            units = units[: 2 * offset] + units[2 * (offset + size) :]
    return units.decode("utf-16-le", "replace")


def piece(text: str, offset: int, size: int) -> str:
    """A piece of the text; empty where it is not there."""
    units = text.encode("utf-16-le", "surrogatepass")
    if offset < 0 or size <= 0 or 2 * (offset + size) > len(units):
        return ""
    return units[2 * offset : 2 * (offset + size)].decode("utf-16-le", "replace")
