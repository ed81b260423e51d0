"""Parser for MarkdownV2 that refuses what Telegram refuses, with the same error messages.

It follows the section on formatting in the documentation of the Bot API, and the known behaviour of
its server.
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
_ESCAPED = re.compile(r"\\[\x01-\x7e]")
_LANGUAGE = re.compile(r"[^\s`]+(?=[\s])")
_OPENING: Sequence[tuple[str, Kind]] = (
    ("```", "pre"), ("`", "code"), ("||", "spoiler"), ("__", "underline"), ("_", "italic"),
    ("*", "bold"), ("~", "strikethrough"), ("[", "text_link"),
)  # fmt: skip
_CLOSING = {kind: mark for mark, kind in _OPENING} | {"text_link": "]"}


class CannotParse(ValueError):
    """The text is invalid; the message is that of Telegram."""


@attrs.frozen
class Entity:
    """A formatted part of a text; offset and length are in UTF-16 code units."""

    type: Kind
    offset: int
    length: int
    extra: str = ""
    """The URL of a link, or the language of a code block."""


@attrs.define
class _OpenEntity:
    kind: Kind
    index: int
    """Where it starts in the markup."""
    offset: int
    """Where it starts in the text."""
    extra: str = ""


def parse(text: str) -> tuple[str, list[Entity]]:
    """Return the visible text and its entities; raises `CannotParse` if the markup is invalid."""
    return _Parser(text).run()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._index = 0
        self._out: list[str] = []
        self._offset = 0
        self._open: list[_OpenEntity] = []
        self._entities: list[Entity] = []

    def run(self) -> tuple[str, list[Entity]]:
        while self._index < len(self._text):
            self._step()
        if self._innermost == "blockquote":
            self._close()
        if self._open:
            last = self._open[-1]
            offset = len(self._text[: last.index].encode(errors="replace"))
            raise CannotParse(f"Can't find end of {last.kind} entity at byte offset {offset}")
        entities = sorted(self._entities, key=lambda entity: (entity.offset, -entity.length))
        return "".join(self._out), entities

    @property
    def _innermost(self) -> Kind | None:
        return self._open[-1].kind if self._open else None

    def _emit(self, char: str) -> None:
        self._out.append(char)
        self._offset += 1 + (char > "\uffff")

    def _step(self) -> None:
        text, index = self._text, self._index
        char = text[index]
        if _ESCAPED.match(text, index):
            self._emit(text[index + 1])
            self._index += 2
        elif self._innermost in {"code", "pre"}:
            self._step_in_code(char)
        elif char == "\n":
            self._newline()
        elif char == ">" and (not index or text[index - 1] == "\n") and self._innermost is None:
            self._open.append(_OpenEntity("blockquote", index, self._offset))
            self._index += 1
        elif char in RESERVED:
            self._mark(char)
        else:
            self._emit(char)
            self._index += 1

    def _step_in_code(self, char: str) -> None:
        if self._text.startswith(_CLOSING[self._open[-1].kind], self._index):
            self._end()
        elif char == "`":
            self._refuse(char)
        else:
            self._emit(char)
            self._index += 1

    def _newline(self) -> None:
        quoted = any(each.kind == "blockquote" for each in self._open)
        continues = self._text.startswith(">", self._index + 1)
        if quoted and not continues and self._innermost == "blockquote":
            self._close()
        self._emit("\n")
        self._index += 2 if quoted and continues else 1

    def _mark(self, char: str) -> None:
        if self._innermost not in {None, "blockquote"} and self._ends_here():
            self._end()
            return
        for mark, kind in _OPENING:
            if self._text.startswith(mark, self._index):
                self._begin(mark, kind)
                return
        self._refuse(char)

    def _ends_here(self) -> bool:
        kind = self._open[-1].kind
        if kind == "italic" and self._text.startswith("__", self._index):
            return False
        return self._text.startswith(_CLOSING[kind], self._index)

    def _begin(self, mark: str, kind: Kind) -> None:
        entity = _OpenEntity(kind, self._index, self._offset)
        self._index += len(mark)
        if kind == "pre":
            if language := _LANGUAGE.match(self._text, self._index):
                entity.extra = language[0]
                self._index = language.end()
            if self._text.startswith("\n", self._index):
                self._index += 1
        self._open.append(entity)

    def _end(self) -> None:
        self._index += len(_CLOSING[self._open[-1].kind])
        if self._innermost == "text_link":
            self._open[-1].extra = self._url()
        self._close()

    def _url(self) -> str:
        if not self._text.startswith("(", self._index):
            return ""
        start = self._index = self._index + 1
        url: list[str] = []
        while self._index < len(self._text) and self._text[self._index] != ")":
            escaped = bool(_ESCAPED.match(self._text, self._index))
            url.append(self._text[self._index + escaped])
            self._index += 1 + escaped
        if self._index == len(self._text):
            raise CannotParse(f"Can't find end of a URL at byte offset {start}")
        self._index += 1
        return "".join(url)

    def _close(self) -> None:
        last = self._open.pop()
        if self._offset > last.offset and (last.kind != "text_link" or last.extra):
            length = self._offset - last.offset
            self._entities.append(Entity(last.kind, last.offset, length, last.extra))

    def _refuse(self, char: str) -> None:
        raise CannotParse(
            f"Character '{char}' is reserved and must be escaped with the preceding '\\'"
        )
