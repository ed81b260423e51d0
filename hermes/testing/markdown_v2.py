"""MarkdownV2 as Telegram reads it: what it refuses is refused here, in its own words.

The rules are those of the Bot API's page on formatting, and of what its server is known to say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

Kind: TypeAlias = Literal[
    "bold", "italic", "underline", "strikethrough", "spoiler", "code", "pre", "text_link",
    "blockquote",
]  # fmt: skip
RESERVED = frozenset("_*[]()~`>#+-=|{}.!")
_ESCAPABLE = re.compile(r"\\[\x01-\x7e]")
_LANGUAGE = re.compile(r"[^\s`]+(?=[\s])")
_SIGNS: Sequence[tuple[str, Kind]] = (
    ("```", "pre"), ("`", "code"), ("||", "spoiler"), ("__", "underline"), ("_", "italic"),
    ("*", "bold"), ("~", "strikethrough"), ("[", "text_link"),
)  # fmt: skip
_ENDS = {kind: sign for sign, kind in _SIGNS} | {"text_link": "]"}


class CannotParse(ValueError):
    """What Telegram would say."""


@attrs.frozen
class Entity:
    """A piece of the text with a meaning; offset and length in UTF-16 units."""

    type: Kind
    offset: int
    length: int
    extra: str = ""


@attrs.define
class _Open:
    kind: Kind
    at: int
    begun: int
    extra: str = ""


def parse(text: str) -> tuple[str, list[Entity]]:
    """The text that a reader sees, and its entities; `CannotParse` where there is a mistake."""
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.out: list[str] = []
        self.units = 0
        self.open: list[_Open] = []
        self.entities: list[Entity] = []

    def run(self) -> tuple[str, list[Entity]]:
        while self.place < len(self.text):
            self._step()
        if self.open and self.open[-1].kind == "blockquote":
            self._close()
        if self.open:
            last = self.open[-1]
            offset = len(self.text[: last.at].encode(errors="replace"))
            raise CannotParse(f"Can't find end of {last.kind} entity at byte offset {offset}")
        return "".join(self.out), sorted(self.entities, key=lambda e: (e.offset, -e.length))

    @property
    def top(self) -> Kind | None:
        return self.open[-1].kind if self.open else None

    def _say(self, char: str) -> None:
        self.out.append(char)
        self.units += 1 + (char > "\uffff")

    def _step(self) -> None:
        text, place = self.text, self.place
        char = text[place]
        if _ESCAPABLE.match(text, place):
            self._say(text[place + 1])
            self.place += 2
        elif self.top in {"code", "pre"}:
            self._in_code(char)
        elif char == "\n":
            self._newline()
        elif char == ">" and (not place or text[place - 1] == "\n") and self.top is None:
            self.open.append(_Open("blockquote", place, self.units))
            self.place += 1
        elif char in RESERVED:
            self._sign(char)
        else:
            self._say(char)
            self.place += 1

    def _in_code(self, char: str) -> None:
        if self.text.startswith(_ENDS[self.open[-1].kind], self.place):
            self._end()
        elif char == "`":
            self._refuse(char)
        else:
            self._say(char)
            self.place += 1

    def _newline(self) -> None:
        quoted = any(each.kind == "blockquote" for each in self.open)
        goes_on = self.text.startswith(">", self.place + 1)
        if quoted and not goes_on and self.top == "blockquote":
            self._close()
        self._say("\n")
        self.place += 2 if quoted and goes_on else 1

    def _sign(self, char: str) -> None:
        if self.top not in {None, "blockquote"} and self._ends_here():
            self._end()
            return
        for sign, kind in _SIGNS:
            if self.text.startswith(sign, self.place):
                self._begin(sign, kind)
                return
        self._refuse(char)

    def _ends_here(self) -> bool:
        kind = self.open[-1].kind
        if kind == "italic" and self.text.startswith("__", self.place):
            return False
        return self.text.startswith(_ENDS[kind], self.place)

    def _begin(self, sign: str, kind: Kind) -> None:
        found = _Open(kind, self.place, self.units)
        self.place += len(sign)
        if kind == "pre":
            if language := _LANGUAGE.match(self.text, self.place):
                found.extra = language[0]
                self.place = language.end()
            if self.text.startswith("\n", self.place):
                self.place += 1
        self.open.append(found)

    def _end(self) -> None:
        self.place += len(_ENDS[self.open[-1].kind])
        if self.top == "text_link":
            self.open[-1].extra = self._url()
        self._close()

    def _url(self) -> str:
        if not self.text.startswith("(", self.place):
            return ""
        begun = self.place = self.place + 1
        url: list[str] = []
        while self.place < len(self.text) and self.text[self.place] != ")":
            escaped = bool(_ESCAPABLE.match(self.text, self.place))
            url.append(self.text[self.place + escaped])
            self.place += 1 + escaped
        if self.place == len(self.text):
            raise CannotParse(f"Can't find end of a URL at byte offset {begun}")
        self.place += 1
        return "".join(url)

    def _close(self) -> None:
        last = self.open.pop()
        if self.units > last.begun and (last.kind != "text_link" or last.extra):
            length = self.units - last.begun
            self.entities.append(Entity(last.kind, last.begun, length, last.extra))

    def _refuse(self, char: str) -> None:
        raise CannotParse(
            f"Character '{char}' is reserved and must be escaped with the preceding '\\'"
        )
