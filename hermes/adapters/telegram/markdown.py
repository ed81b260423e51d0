"""Markdown as models write it, as Telegram's MarkdownV2: every text becomes something it takes.

A small part of Markdown is understood: fences, code, **bold**, *italics*, ~~struck~~, links,
headings (bold), lists, quotes. Whatever else there is, and what does not end, is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import attrs

Kind: TypeAlias = Literal["bold", "italic", "strike"]

_RESERVED = re.compile(r"([_*\[\]()~`>#+\-=|{}.!\\])")
_IN_CODE = re.compile(r"([`\\])")
_IN_URL = re.compile(r"([)\\])")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*")
_LANGUAGE = re.compile(r"[\w+#.-]{1,30}", re.ASCII)
_HEADING = re.compile(r"#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*")
_BULLET = re.compile(r"([ \t]*)[-*+][ \t]+(?=\S)")
_QUOTE = re.compile(r"[ ]{0,3}>[ ]?")
_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(
    r"!?\[([^\[\]\n]+)\]\(\s*<?(https?://[^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?\s*\)"
)
_BACKSLASHED = re.compile(r"\\([!-/:-@\[-`{-~])")
_MARKS: dict[str, tuple[Kind, ...]] = {
    "***": ("bold", "italic"), "___": ("bold", "italic"), "**": ("bold",), "__": ("bold",),
    "~~": ("strike",), "*": ("italic",), "_": ("italic",),
}  # fmt: skip
_SIGNS: dict[Kind, str] = {"bold": "*", "italic": "_", "strike": "~"}
_PLAIN = re.compile(r"[^\\`\[!*_~]+")
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
DEEPEST = 20
TRIES = 50
"""How many signs are looked at for the end of a style: time must not grow with the square."""


@attrs.frozen
class Text:
    """Words."""

    text: str


@attrs.frozen
class Code:
    """Words in a line that are taken literally."""

    text: str


@attrs.frozen
class Fenced:
    """Lines that are taken literally."""

    text: str
    language: str


@attrs.frozen
class Link:
    """Words that lead somewhere."""

    inside: Sequence[Node]
    url: str


@attrs.frozen
class Styled:
    """Words in another style."""

    kind: Kind
    inside: Sequence[Node]


@attrs.frozen
class Quoted:
    """A line of a quotation."""

    inside: Sequence[Node]


Node: TypeAlias = Text | Code | Fenced | Link | Styled | Quoted


def markdown_v2(text: str) -> str:
    """The text for `parse_mode=MarkdownV2`."""
    return _all(parsed(text), frozenset())


def shown(text: str) -> str:
    """What a reader sees of the text."""
    return "".join(map(_seen, parsed(text)))


def parsed(text: str) -> list[Node]:
    """The text as it is understood, line after line."""
    nodes: list[Node] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    place = 0
    while place < len(lines):
        if place:
            nodes.append(Text("\n"))
        fenced = _fenced(lines, place)
        if fenced is None:
            nodes += _line(lines[place])
            place += 1
        else:
            found, place = fenced
            nodes.append(found)
    return nodes


def _fenced(lines: Sequence[str], place: int) -> tuple[Fenced, int] | None:
    """The code that begins with this line, and where it ends; the text may end before it does."""
    opening = _FENCE.fullmatch(lines[place])
    if opening is None:
        return None
    mark = opening[1]
    end = place + 1
    while end < len(lines) and not _closes(lines[end].strip(), mark):
        end += 1
    code = "\n".join(lines[place + 1 : end])
    language = opening[2] if _LANGUAGE.fullmatch(opening[2]) else ""
    return (Fenced(code, language), end + 1) if code.strip() else None


def _closes(line: str, mark: str) -> bool:
    return len(line) >= len(mark) and not line.strip(mark[0])


def _line(line: str) -> list[Node]:
    if heading := _HEADING.fullmatch(line):
        inside = _inline(heading[1])
        return [Styled("bold", inside)] if inside else []
    if quote := _QUOTE.match(line):
        return [Quoted(_inline(line[quote.end() :]))]
    if bullet := _BULLET.match(line):
        return [Text(f"{bullet[1]}• "), *_inline(line[bullet.end() :])]
    return _inline(line)


def _inline(text: str, depth: int = 0) -> list[Node]:
    """The pieces of a line. What does not end on it never began."""
    nodes: list[Node] = []
    words: list[str] = []
    place = 0
    while place < len(text):
        found = _piece(text, place, depth)
        if isinstance(found, str):
            words.append(found)
            place += 2 if text[place] == "\\" and found != "\\" else len(found)
            continue
        if words:
            nodes.append(Text("".join(words)))
            words.clear()
        node, place = found
        nodes.append(node)
    return [*nodes, Text("".join(words))] if words else nodes


def _piece(text: str, place: int, depth: int) -> tuple[Node, int] | str:
    """What begins here and where it ends, or else the next words."""
    char = text[place]
    if char == "\\" and (escaped := _BACKSLASHED.match(text, place)):
        return escaped[1]
    if char == "`":
        code = _CODE.match(text, place)
        ticks = re.match("`+", text[place:])
        assert ticks is not None
        return (Code(_trimmed(code[2])), code.end()) if code else ticks[0]
    if char in "[!" and (link := _LINK.match(text, place)):
        return Link(_inline(link[1], depth + 1), link[2]), link.end()
    if char in "*_~" and depth < DEEPEST:
        return _styled(text, place, depth) or char
    plain = _PLAIN.match(text, place)
    return plain[0] if plain else char


def _trimmed(code: str) -> str:
    """Code without the blanks that only keep its ticks apart."""
    padded = code.startswith(" ") and code.endswith(" ") and code.strip()
    return code[1:-1] if padded else code


def _styled(text: str, place: int, depth: int) -> tuple[Node, int] | None:
    found = _MARK.match(text, place)
    if found is None or not _opens(text, place, found[0]):
        return None
    mark = found[0]
    end = place + len(mark)
    for _ in range(TRIES):
        end = text.find(mark, end + 1)
        if end < 0:
            break
        if _ends(text, end, mark):
            inside: Sequence[Node] = _inline(text[place + len(mark) : end], depth + 1)
            for kind in reversed(_MARKS[mark]):
                inside = [Styled(kind, inside)]
            return inside[0], end + len(mark)
    return None


def _opens(text: str, place: int, mark: str) -> bool:
    after = text[place + len(mark) : place + len(mark) + 1]
    if not after or after.isspace() or after == mark[0]:
        return False
    return mark[0] != "_" or not (place and text[place - 1].isalnum())  # snake_case is no style


def _ends(text: str, end: int, mark: str) -> bool:
    after = text[end + len(mark) : end + len(mark) + 1]
    if text[end - 1].isspace() or text[end - 1] == "\\":
        return False
    if len(mark) == 1 and (text[end - 1] == mark or after == mark):
        return False
    return mark[0] != "_" or not after.isalnum()


def _seen(node: Node) -> str:
    if isinstance(node, Link | Styled | Quoted):
        return "".join(map(_seen, node.inside))
    return node.text


def _written(node: Node, inside_of: frozenset[str]) -> str:
    match node:
        case Text(text):
            return _escaped(_RESERVED, text)
        case Code(text):
            return f"`{_escaped(_IN_CODE, text)}`"
        case Fenced(text, language):
            return f"```{language}\n{_escaped(_IN_CODE, text)}```"
        case Quoted(inside):
            return ">" + _all(inside, inside_of)
        case Link(inside, url):
            words = _all(inside, inside_of | {"link"})
            return words if "link" in inside_of else f"[{words}]({_escaped(_IN_URL, url)})"
        case Styled(kind, inside):
            words = _all(inside, inside_of | {kind})
            sign = "" if kind in inside_of else _SIGNS[kind]
            return f"{sign}{words}{sign}"


def _escaped(reserved: re.Pattern[str], text: str) -> str:
    return reserved.sub(r"\\\1", text)


def _all(nodes: Sequence[Node], inside_of: frozenset[str]) -> str:
    return "".join(_written(node, inside_of) for node in _joined(nodes))


def _joined(nodes: Sequence[Node]) -> Iterator[Node]:
    """Neighbours of one style as one: between two of them the signs would mean something else."""
    before: Node | None = None
    for node in nodes:
        if isinstance(node, Styled) and isinstance(before, Styled) and node.kind == before.kind:
            before = Styled(node.kind, [*before.inside, *node.inside])
            continue
        if before is not None:
            yield before
        before = node
    if before is not None:
        yield before
