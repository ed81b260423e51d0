"""The grammar: CommonMark with tables, strikethrough and task lists, without raw HTML.

Link reference definitions (`[name]: https://...`) are not recognised, wherever they are: they are
text. So no block depends on a later one, and an answer can be shown while it arrives.
"""

from __future__ import annotations

from functools import cache

import attrs
from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, table as parse_table
from markdown_it.token import Token

from hermes.adapters.http.markdown.limits import (
    MAX_BRACKETS,
    MAX_COLUMNS,
    MAX_INLINE_DEPTH,
    MAX_MISSING,
    MAX_ROWS,
)

_OFF = ["reference", "html_block", "html_inline"]
_SELF_CONTAINED = {"paragraph_open", "table_open", "blockquote_open"}
"""Blocks that end at an empty line. A list, code and an open fence can go on after one."""


@attrs.frozen
class TopBlock:
    """A top-level block: its tokens, and its lines with the empty ones that follow."""

    tokens: list[Token]
    source: str

    @property
    def depth(self) -> int:
        """How deep it nests: at the limit, markdown-it drops what is deeper."""
        return max(token.level for token in self.tokens) + 1

    @property
    def is_fence(self) -> bool:
        """Whether it is code between fences."""
        return self.tokens[0].type == "fence"

    @property
    def is_complete(self) -> bool:
        """Whether no line that may follow can change it, given that all its lines are complete."""
        first = self.tokens[0]
        if first.type == "fence":
            start, end = first.map or (0, 0)
            return end - start - 1 > first.content.count("\n")
        if first.type == "hr":
            return True
        if first.type == "heading_open" and "|" not in self.source:
            return True  # with a `|`, the next line can make it the header of a table
        last_line = self.source[:-1].rpartition("\n")[2]
        return not last_line.strip(" \t") and first.type in _SELF_CONTAINED | {"heading_open"}


class _Grammar(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802 - markdown-it calls it
        """Accept all addresses; `addresses` decides what becomes of each."""
        del url
        return True


def _bounded_table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table unless it has too many columns; end it where too many cells are missing."""
    if not parse_table(state, start, end, True):
        return False
    columns = _pipes(state, start + 1)
    if columns > MAX_COLUMNS + 1:
        return False
    if silent:
        return True
    missing, last = 0, start + 2
    while last < min(end, start + 2 + MAX_ROWS) and missing <= MAX_MISSING:
        missing += max(0, columns - _pipes(state, last) - 1)
        last += 1
    return parse_table(state, start, last, False)


def _pipes(state: StateBlock, line: int) -> int:
    return state.src.count("|", state.bMarks[line], state.eMarks[line])


@cache
def _grammar(depth: int) -> MarkdownIt:
    options = {"html": False, "tasklists": True, "maxNesting": depth}
    grammar = _Grammar("commonmark", options).enable(["table", "strikethrough"]).disable(_OFF)
    grammar.block.ruler.at("table", _bounded_table, {"alt": ["paragraph"]})
    grammar.parse("Threads share it, so it compiles its rules before one uses it.")
    return grammar


def top_blocks(source: str, depth: int) -> list[TopBlock]:
    """Return the top-level blocks of a text, whose lines all end with a line break."""
    grammar = _grammar(depth)
    tokens: list[Token] = []
    grammar.block.parse(source, grammar, {}, tokens)
    starts = [
        index for index, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0
    ]
    lines = _line_starts(source)
    blocks = []
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        first = lines[_line(tokens[start])]
        last = lines[_line(tokens[end])] if end < len(tokens) else len(source)
        blocks.append(TopBlock(tokens[start:end], source[first:last]))
    return blocks


def inline_tokens(text: str) -> list[Token] | None:
    """Return the tokens of a paragraph; None if it is too costly to parse."""
    if text.count("[") > MAX_BRACKETS:
        return None
    grammar = _grammar(MAX_INLINE_DEPTH)
    tokens: list[Token] = []
    grammar.inline.parse(text, grammar, {}, tokens)
    return tokens


def _line(token: Token) -> int:
    return 0 if token.map is None else token.map[0]


def _line_starts(source: str) -> list[int]:
    starts = [0]
    while end := source.find("\n", starts[-1]) + 1:
        starts.append(end)
    return starts
