"""Markdown as a terminal shows it; with nothing left out."""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, RenderableType
from rich.markdown import Heading, Markdown
from rich.text import Text

_INFO = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[^\n]*$", re.MULTILINE)
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _Left(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Shown(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": _Left}

    def __init__(self, markup: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(markup)
        _keep_lines(self.parsed)


def _keep_lines(tokens: list[Token]) -> None:
    """People mean the ends of their lines, and so do models."""
    for token in tokens:
        if token.type == "softbreak":
            token.type = "hardbreak"
        _keep_lines(token.children or [])


def render(markup: str, width: int) -> str:
    """A block in the terminal's own codes; as it was written, where Markdown would lose of it."""
    shown = _printed(_Shown(markup), width)
    return shown if _is_whole(markup, shown) else plain(markup, width)


def plain(text: str, width: int, style: str = "") -> str:
    """A text as it is, in a style."""
    return _printed(Text(text.strip("\n"), style=style, overflow="fold"), width)


def _printed(renderable: RenderableType, width: int) -> str:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=max(width, 10), highlight=False, emoji=False
    )
    console.print(renderable)
    lines = [line.rstrip() for line in out.getvalue().split("\n")]
    full = [place for place, line in enumerate(lines) if _SGR.sub("", line).strip()]
    return "\n".join(lines[full[0] : full[-1] + 1]) if full else ""


def _is_whole(markup: str, shown: str) -> bool:
    """Whether every letter and digit is still there; what follows a fence's mark is no text."""
    return not _letters(_INFO.sub("", markup)) - _letters(_SGR.sub("", shown))


def _letters(text: str) -> Counter[str]:
    return Counter(letter for letter in text if letter.isalnum())
