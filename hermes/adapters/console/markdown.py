"""Render Markdown for a terminal without losing any text."""

from __future__ import annotations

import io
import re
from collections import Counter
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text

from hermes.adapters.console.markdown_stream import BlockSplitter

_FENCE_LINE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[^\n]*$", re.MULTILINE)
_TRAILING = re.compile(r"(?:[ \t]|\x1b\[[0-9;]*m)+$")
_SGR = re.compile(r"\x1b\[[0-9;]*m")
MAX_RENDERED = 50_000
"""A block with more characters than this is shown as it is: parsing it would take seconds."""
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _Code(CodeBlock):
    """Code without margins and background, so that a copy of it has nothing but the code."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(), self.lexer_name, theme=self.theme, word_wrap=True,
            background_color="default",
        )  # fmt: skip


class _Markdown(Markdown):
    elements: ClassVar = {
        **Markdown.elements, "heading_open": _LeftHeading, "fence": _Code, "code_block": _Code,
    }  # fmt: skip

    def __init__(self, markup: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = _PARSER.parse(markup)
        _keep_line_breaks(self.parsed)


def _keep_line_breaks(tokens: list[Token]) -> None:
    """Turn soft line breaks into hard ones: models mean the ends of their lines."""
    for token in tokens:
        if token.type == "softbreak":
            token.type = "hardbreak"
        _keep_line_breaks(token.children or [])


def render(markup: str, width: int) -> str:
    """Render a block with terminal escape codes; as plain text if rendering would lose text."""
    if len(markup) > MAX_RENDERED:
        return plain(markup, width)
    rendered = _print(_Markdown(markup), _line_width(markup, width))
    return rendered if _has_all_text(markup, rendered) else plain(markup, width)


def render_all(markup: str, width: int) -> str:
    """Render a text block by block, so that lines of code are not wrapped."""
    splitter = BlockSplitter()
    blocks = [*splitter.feed(markup), *splitter.end()]
    return "\n".join(render(block, width) for block in blocks if block.strip())


def _line_width(markup: str, width: int) -> int:
    """Return the width for a block. Lines of code are left to the terminal to wrap: a copy of a
    line that we wrap would have a line break in it."""
    if not _FENCE_LINE.match(markup):
        return width
    return max(width, *(cell_len(line) for line in markup.expandtabs().split("\n")))


def plain(text: str, width: int, style: str = "") -> str:
    """Render a text as it is, in a style of rich."""
    return _print(Text(text.strip("\n"), style=style, overflow="fold"), width)


def _print(renderable: RenderableType, width: int) -> str:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=max(width, 10), highlight=False, emoji=False
    )
    console.print(renderable)
    lines = [_TRAILING.sub(_codes, line) for line in out.getvalue().split("\n")]
    visible = [index for index, line in enumerate(lines) if _SGR.sub("", line).strip()]
    return "\n".join(lines[visible[0] : visible[-1] + 1]) if visible else ""


def _codes(found: re.Match[str]) -> str:
    """Return the escape codes at the end of a line without the spaces between them."""
    return "".join(_SGR.findall(found[0]))


def _has_all_text(markup: str, rendered: str) -> bool:
    """Return whether every letter and digit was rendered, except for the lines of fences."""
    return not _letters(_FENCE_LINE.sub("", markup)) - _letters(_SGR.sub("", rendered))


def _letters(text: str) -> Counter[str]:
    return Counter(letter for letter in text if letter.isalnum())
