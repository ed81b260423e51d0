"""Keys and tokens: they are used, and never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias

import attrs

HIDDEN = "[hidden]"
# Long, and with a digit: key-exchange, sk-learn and Bearer tokens are things to talk about.
_KEYS = re.compile(
    r"\b(?:(?:sk|pk|rk|xai|gsk)[-_]|AIza)(?=[\w-]*\d)[\w-]{16,}"
    r"|\bkey[-_](?=[a-z]*\d)[a-z0-9]{16,}"
    r"|\bBearer\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}"
    r"|(?<![0-9])[0-9]{5,}:[\w-]{30,}",  # a Telegram bot's, also in its address
    re.IGNORECASE,
)
_BEGUN = re.compile(  # the end of a text that may become one of these, or a longer one
    r"\b(?:(?:(?:sk|pk|rk|xai|gsk)[-_]|AIza)[\w-]*|key[-_][a-z0-9]*|Bearer\s+[\w.~+/=-]*"
    r"|sk?|pk?|rk?|x(?:ai?)?|g(?:sk?)?|A(?:Iz?)?|k(?:ey?)?|B(?:e(?:a(?:r(?:er?)?)?)?)?)\Z"
    r"|(?<![0-9])(?:[0-9]{5,}:[\w-]*|[0-9]+)\Z",
    re.IGNORECASE,
)
LONG = 256
"""What is held back and longer than this is looked at again only when it has grown by a half."""

Redact: TypeAlias = Callable[[str], str]
"""The text without secrets. Where it has `pieces()`, that gives a new `Pieces` for one text."""


@attrs.frozen
class Secret:
    """A key, by value or by the name of an environment variable; it never shows itself."""

    _value: str | None = attrs.field(default=None, repr=False)
    variable: str | None = None

    @classmethod
    def env(cls, name: str) -> Secret:
        """The key that an environment variable holds when it is used."""
        return cls(None, name)

    def reveal(self) -> str | None:
        """The key itself; None where there is none."""
        value = self._value
        if value is None and self.variable:
            value = os.environ.get(self.variable)
        # Files and shells like to leave a line end behind it.
        return None if value is None else value.strip()

    def redact(self, text: str) -> str:
        """The text without this key, and without anything that looks like one."""
        value = self.reveal()
        return hide_keys(text.replace(value, HIDDEN) if value else text)


def hide_keys(text: str) -> str:
    """The text without anything that looks like a key."""
    return _KEYS.sub(HIDDEN, text)


class Pieces(Protocol):
    """A text that comes in pieces; together, what is given out is the whole text without secrets.

    Held back is only what later pieces may make a part of a secret.
    """

    def add(self, piece: str) -> str:
        """What can be told now."""
        ...

    def end(self) -> str:
        """The text is over: what was held back. After that another may begin."""
        ...


def pieces_of(redact: Redact) -> Pieces:
    """The pieces of a text without secrets; for a plain function they come when it is over."""
    pieces: Callable[[], Pieces] | None = getattr(redact, "pieces", None)  # optional by contract
    return Whole(redact) if pieces is None else pieces()


class Whole:
    """Tells nothing before the text is over."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._pieces: list[str] = []

    def add(self, piece: str) -> str:
        """Nothing can be told yet."""
        self._pieces.append(piece)
        return ""

    def end(self) -> str:
        """All of it."""
        text, self._pieces = "".join(self._pieces), []
        return self._redact(text) if text else ""


class Streamed:
    """Tells at once what is settled.

    `settled(text, start)` is how far a text stays as it is, whatever follows, and
    `hide(text, start)` is what comes of it, both from `start` on: what stands before it, one
    character at most, has been told.
    """

    def __init__(
        self, redact: Callable[[str, int], str], settled: Callable[[str, int], int]
    ) -> None:
        self._redact = redact
        self._settled = settled
        self._text, self._start = "", 0
        self._enough = 0

    def add(self, piece: str) -> str:
        """What can be told now."""
        self._text += piece
        if len(self._text) < self._enough:
            return ""
        settled = self._settled(self._text, self._start)
        said = self._redact(self._text[:settled], self._start)
        first = max(settled - 1, 0)
        self._text, self._start = self._text[first:], settled - first
        held = len(self._text) - self._start
        self._enough = 0 if held < LONG else held * 3 // 2
        return said

    def end(self) -> str:
        """What was held back."""
        said = self._redact(self._text, self._start)
        self._text, self._start, self._enough = "", 0, 0
        return said


class Chained:
    """What one has told is what the other hears."""

    def __init__(self, first: Pieces, second: Pieces) -> None:
        self._first = first
        self._second = second

    def add(self, piece: str) -> str:
        """What both have let pass."""
        return self._second.add(self._first.add(piece))

    def end(self) -> str:
        """What either has held back."""
        return self._second.add(self._first.end()) + self._second.end()


def key_pieces() -> Pieces:
    """The pieces of a text without anything that looks like a key."""
    return Streamed(_hide_from, _begun)


def _begun(text: str, start: int) -> int:
    begun = _BEGUN.search(text, start)
    if begun is None:
        return len(text)
    cut = begun.start()  # a bot's token may begin within another key
    return next(
        (key.start() for key in _KEYS.finditer(text, start) if key.start() < cut < key.end()), cut
    )


def _hide_from(text: str, start: int) -> str:
    told, end = [], start
    for found in _KEYS.finditer(text, start):
        told += [text[end : found.start()], HIDDEN]
        end = found.end()
    return "".join([*told, text[end:]])
