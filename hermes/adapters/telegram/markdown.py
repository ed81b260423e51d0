"""Converts the Markdown of models to Telegram's MarkdownV2; every result is valid MarkdownV2.

A subset of Markdown is supported: fenced code, inline code, bold, italic, strikethrough, links,
headings (as bold), lists and quotes. Everything else, and markup that is not closed on its line, is
shown as it was written. No text is lost.

The library telegramify-markdown 1.4.1 was evaluated as a replacement and failed this module's
tests. It drops text: HTML tags, link reference definitions, the info string of an unclosed fence;
it renumbers lists ("3. a, 7. b" becomes "3. a, 4. b"). Some of its MarkdownV2 is invalid (`*a*_b_`
becomes `_a__b_`), it links any URL scheme, and it adds emojis to headings and images.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

Style: TypeAlias = Literal["bold", "italic", "strike"]

_RESERVED = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_RESERVED_IN_CODE = re.compile(r"([`\\])")
_RESERVED_IN_URL = re.compile(r"([)\\])")
# Possessive quantifiers and bounds keep the time linear in the length of a line.
_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^`\s]*+)[^`]*+")
_LANGUAGE = re.compile(r"[\w+#.-]{1,30}", re.ASCII)
_HEADING = re.compile(r"#{1,6}[ \t]++")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(?=\S)")
_QUOTE = re.compile(r"[ ]{0,3}>[ ]?")
_CODE = re.compile(r"(`{1,20}+)(?!`)(.+?)(?<!`)\1(?!`)")
_TICKS = re.compile("`+")
_LINK = re.compile(
    r"!?\[([^\[\]\n]+)\]\(\s*<?(https?://[^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?\s*\)"
)
_ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
_MARKS: dict[str, tuple[Style, ...]] = {
    "***": ("bold", "italic"), "___": ("bold", "italic"), "**": ("bold",), "__": ("bold",),
    "~~": ("strike",), "*": ("italic",), "_": ("italic",),
}  # fmt: skip
_MARKDOWN_V2: dict[Style, str] = {"bold": "*", "italic": "_", "strike": "~"}
_PLAIN = re.compile(r"[^\\`\[!*_~]+")
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
MAX_DEPTH = 20


def _closing(mark: str) -> re.Pattern[str]:
    """Return a pattern for the places where a style may end."""
    before, after = r"\s\\", ""
    if len(mark) == 1:
        before, after = before + mark, f"(?!{re.escape(mark)})"
    if mark[0] == "_":
        after += r"(?![^\W_])"  # not in snake_case
    return re.compile(rf"(?<![{before}]){re.escape(mark)}{after}")


_CLOSING = {mark: _closing(mark) for mark in _MARKS}


@attrs.frozen
class Text:
    """Plain text."""

    text: str


@attrs.frozen
class Code:
    """Inline code."""

    text: str


@attrs.frozen
class Fenced:
    """A fenced code block."""

    text: str
    language: str


@attrs.frozen
class Link:
    """A link."""

    children: Sequence[Node]
    url: str


@attrs.frozen
class Styled:
    """Text in a style."""

    style: Style
    children: Sequence[Node]


@attrs.frozen
class Quoted:
    """A line of a quote."""

    children: Sequence[Node]


Node: TypeAlias = Text | Code | Fenced | Link | Styled | Quoted


def markdown_v2(text: str) -> str:
    """Convert Markdown to text for `parse_mode=MarkdownV2`."""
    return _render_all(parse(text), frozenset())


def visible_text(text: str) -> str:
    """Return the text that a reader of `markdown_v2(text)` sees."""
    return "".join(map(_visible, parse(text)))


# Parsing


def parse(text: str) -> list[Node]:
    """Parse Markdown, line by line."""
    nodes: list[Node] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    index = 0
    while index < len(lines):
        if index:
            nodes.append(Text("\n"))
        fenced = _fenced(lines, index)
        if fenced is None:
            nodes += _line(lines[index])
            index += 1
        else:
            node, index = fenced
            nodes.append(node)
    return nodes


def _fenced(lines: Sequence[str], index: int) -> tuple[Fenced, int] | None:
    """Return the code block that starts at a line, and the index after it.

    The end of the text closes an open block.
    """
    opening = _FENCE.fullmatch(lines[index])
    if opening is None:
        return None
    fence = opening[1]
    end = index + 1
    while end < len(lines) and not _closes(lines[end].strip(), fence):
        end += 1
    code = "\n".join(lines[index + 1 : end])
    language = opening[2] if _LANGUAGE.fullmatch(opening[2]) else ""
    return (Fenced(code, language), end + 1) if code.strip() else None


def _closes(line: str, fence: str) -> bool:
    return len(line) >= len(fence) and not line.strip(fence[0])


def _line(line: str) -> list[Node]:
    if heading := _HEADING.match(line):
        children = _inline(line[heading.end() :].rstrip(" \t").rstrip("#").rstrip(" \t"))
        return [Styled("bold", children)] if children else []
    if quote := _QUOTE.match(line):
        return [Quoted(_inline(line[quote.end() :]))]
    if bullet := _BULLET.match(line):
        return [Text(f"{bullet[1]}• "), *_inline(line[bullet.end() :])]
    return _inline(line)


def _inline(text: str, depth: int = 0) -> list[Node]:
    """Parse a line; markup that does not end on the line is plain text."""
    return _Inline(text, depth).parse()


class _Inline:
    """Parses one line, or the text inside of a style or link."""

    def __init__(self, text: str, depth: int) -> None:
        self._text = text
        self._depth = depth
        self._unclosed: set[str] = set()
        """Marks that do not occur as the end of a style in the rest of the text."""

    def parse(self) -> list[Node]:
        text = self._text
        nodes: list[Node] = []
        words: list[str] = []
        index = 0
        while index < len(text):
            found = self._next(index)
            if isinstance(found, str):
                words.append(found)
                index += 2 if text[index] == "\\" and found != "\\" else len(found)
                continue
            if words:
                nodes.append(Text("".join(words)))
                words.clear()
            node, index = found
            nodes.append(node)
        return [*nodes, Text("".join(words))] if words else nodes

    def _next(self, index: int) -> tuple[Node, int] | str:
        """Return the node that starts here and the index after it, or else the next plain text."""
        text, char = self._text, self._text[index]
        if char == "\\" and (escaped := _ESCAPED.match(text, index)):
            return escaped[1]
        if char == "`":
            code, ticks = _CODE.match(text, index), _TICKS.match(text, index)
            assert ticks is not None
            return (Code(_trim_code(code[2])), code.end()) if code else ticks[0]
        if char in "[!" and (link := _LINK.match(text, index)):
            return Link(_inline(link[1], self._depth + 1), link[2]), link.end()
        if char in "*_~" and self._depth < MAX_DEPTH:
            return self._styled(index) or char
        plain = _PLAIN.match(text, index)
        return plain[0] if plain else char

    def _styled(self, index: int) -> tuple[Node, int] | None:
        text = self._text
        found = _MARK.match(text, index)
        if found is None or not _can_open(text, index, found[0]) or found[0] in self._unclosed:
            return None
        mark, start = found[0], found.end()
        closing = _CLOSING[mark].search(text, start + 1)
        if closing is None:  # and so there is none for later marks of this kind
            self._unclosed.add(mark)
            return None
        children: Sequence[Node] = _inline(text[start : closing.start()], self._depth + 1)
        for style in reversed(_MARKS[mark]):
            children = [Styled(style, children)]
        return children[0], closing.end()


def _trim_code(code: str) -> str:
    """Remove the spaces that only separate the code from its backticks."""
    padded = code.startswith(" ") and code.endswith(" ") and code.strip()
    return code[1:-1] if padded else code


def _can_open(text: str, index: int, mark: str) -> bool:
    after = text[index + len(mark) : index + len(mark) + 1]
    if not after or after.isspace() or after == mark[0]:
        return False
    return mark[0] != "_" or not (index and text[index - 1].isalnum())  # not in snake_case


# Rendering


def _visible(node: Node) -> str:
    if isinstance(node, Link | Styled | Quoted):
        return "".join(map(_visible, node.children))
    return node.text


def _render(node: Node, inside: frozenset[str]) -> str:
    """Render a node; `inside` names the styles around it, which MarkdownV2 cannot nest."""
    match node:
        case Text(text):
            return _escape(_RESERVED, text)
        case Code(text):
            return f"`{_escape(_RESERVED_IN_CODE, text)}`"
        case Fenced(text, language):
            return f"```{language}\n{_escape(_RESERVED_IN_CODE, text)}```"
        case Quoted(children):
            return ">" + _render_all(children, inside)
        case Link(children, url):
            label = _render_all(children, inside | {"link"})
            return label if "link" in inside else f"[{label}]({_escape(_RESERVED_IN_URL, url)})"
        case Styled(style, children):
            content = _render_all(children, inside | {style})
            mark = "" if style in inside else _MARKDOWN_V2[style]
            return f"{mark}{content}{mark}"


def _escape(reserved: re.Pattern[str], text: str) -> str:
    return reserved.sub(r"\\\1", text)


def _render_all(nodes: Sequence[Node], inside: frozenset[str]) -> str:
    return "".join(_render(node, inside) for node in _merge_styles(nodes))


def _merge_styles(nodes: Sequence[Node]) -> Iterator[Node]:
    """Merge neighbours of one style: `_a__b_` would not be two italic texts in MarkdownV2."""
    previous: Node | None = None
    merged: list[Node] = []
    for node in nodes:
        if (
            isinstance(node, Styled)
            and isinstance(previous, Styled)
            and node.style == previous.style
        ):
            if previous.children is not merged:
                merged = list(previous.children)
                previous = Styled(node.style, merged)
            merged += node.children
            continue
        if previous is not None:
            yield previous
        previous = node
    if previous is not None:
        yield previous
