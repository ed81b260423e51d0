"""Texts of any length as payloads of NOTIFY, each of which holds less than 8,000 bytes."""

from __future__ import annotations

import re
from collections import OrderedDict

LIMIT = 7900
"""The most bytes of one payload."""
MAX_SIZE = 64 * 1024 * 1024
"""The most characters of incomplete texts that a reader keeps. A longer text is lost."""
_HEADER = re.compile(r"([0-9a-f]{1,16}) (\d{1,18}) (\d{1,9})/(\d{1,9}) ")
_HEADER_SIZE = 60
"""The most bytes of a header: its name, its three numbers and what is between them."""
_SPACE = LIMIT - _HEADER_SIZE


def split(sender: str, number: int, text: str) -> list[str]:
    """Return the payloads of a text.

    `sender` (up to 16 hexadecimal digits) and `number` identify the text. No character is cut, so
    each payload is valid in the database's encoding.
    """
    data = text.encode()
    parts: list[str] = []
    start = 0
    while start < len(data) or not parts:
        end = min(start + _SPACE, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - inside a character
            end -= 1
        parts.append(data[start:end].decode())
        start = end
    return [f"{sender} {number} {at}/{len(parts)} {part}" for at, part in enumerate(parts, 1)]


class Joiner:
    """Puts payloads together again. They may be lost, repeated, or in any order.

    `max_size` is the most characters of incomplete texts that it keeps.
    """

    def __init__(self, max_size: int = MAX_SIZE) -> None:
        self._max_size = max_size
        self._incomplete: OrderedDict[tuple[str, str], dict[int, str]] = OrderedDict()
        self.size: int = 0
        """The number of characters that wait for the rest of their texts."""

    def add(self, payload: str) -> str | None:
        """Return the text that this payload completes; None if there is none.

        A payload in another form is ignored. If too much waits, the oldest text is forgotten.
        """
        header = _HEADER.match(payload)
        if header is None:
            return None
        sender, number, part, parts = header.groups()
        parts_so_far = self._incomplete.setdefault((sender, number), {})
        if int(part) not in parts_so_far:
            parts_so_far[int(part)] = payload[header.end() :]
            self.size += len(payload) - header.end()
        if len(parts_so_far) == int(parts):
            self._forget((sender, number))
            return "".join([parts_so_far[at] for at in sorted(parts_so_far)])
        while self.size > self._max_size:
            self._forget(next(iter(self._incomplete)))
        return None

    def clear(self) -> None:
        """Forget all incomplete texts: the payloads that are missing were lost."""
        self._incomplete.clear()
        self.size = 0

    def _forget(self, name: tuple[str, str]) -> None:
        self.size -= sum(map(len, self._incomplete.pop(name).values()))
