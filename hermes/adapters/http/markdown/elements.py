"""Build elements from the tokens of markdown-it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import get_args

import attrs
from markdown_it.token import Token

from hermes.adapters.http.markdown.addresses import is_image_data, is_link
from hermes.adapters.http.markdown.grammar import TopBlock, inline_tokens
from hermes.adapters.http.markdown.highlighting import highlight
from hermes.adapters.http.markdown.limits import MAX_INLINE_DEPTH
from hermes.adapters.http.markdown.nodes import Element, Node, Tag, append_text, code_block, plain

_TAGS: dict[str, Tag] = {tag: tag for tag in get_args(Tag)} | {"s": "del"}
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,40}")
_ALIGN = "text-align:"


@attrs.frozen
class Builder:
    """Builds the element of a block."""

    is_own_file: Callable[[str], bool]
    """Whether the address of an image is a file of our own."""
    depth: int

    def build(self, block: TopBlock, *, highlighted: bool) -> Element:
        """Return a block as an element; as plain text if it nests too deep."""
        if block.depth >= self.depth:
            return plain(block.source)
        levels: list[list[Node]] = [[]]
        for token in block.tokens:
            self._add(token, levels, highlighted=highlighted)
        [element] = levels[0]
        return element if isinstance(element, Element) else plain(block.source)

    def _add(self, token: Token, levels: list[list[Node]], *, highlighted: bool) -> None:
        """Add a token of a block to the innermost level."""
        if token.type == "inline":
            levels[-1].extend(self._inline(token.content))
        elif token.type in {"fence", "code_block"}:
            levels[-1].append(_code(token, highlighted=highlighted))
        elif token.hidden:  # the paragraph of an item in a tight list
            return
        elif token.nesting < 0:
            closed = levels.pop()
            if token.type == "tr_close":
                _drop_empty_cells(closed)
        else:
            element = Element(_TAGS[token.tag], attributes=_attributes(token))
            levels[-1].append(element)
            if token.nesting > 0:
                levels.append(element.children)
                element.children.extend(_checkbox(token))

    def _inline(self, text: str) -> list[Node]:
        """Return the nodes of a paragraph or cell; of the cells, many may be empty."""
        tokens = inline_tokens(text) if text else []
        if tokens is None:
            return [text]
        levels: list[list[Node]] = [[]]
        links = 0
        for token in tokens:
            if token.nesting < 0:
                levels.pop()
                links -= token.type == "link_close"
            elif token.nesting > 0:
                links += token.type == "link_open"
                is_nested = token.type == "link_open" and links > 1  # `[<https://a.example>](b)`
                skipped = is_nested or len(levels) > MAX_INLINE_DEPTH
                levels.append(levels[-1] if skipped else _open(token, levels[-1]))
            elif token.type == "image":
                self._add_image(token, levels[-1], linked=links > 0)
            else:
                _add_leaf(token, levels[-1])
        return levels[0]

    def _add_image(self, token: Token, nodes: list[Node], *, linked: bool) -> None:
        """Add an image of our own; a link to another one, or its text within a link."""
        address = str(token.attrs.get("src", ""))
        text = _text(token.children or [])
        if self.is_own_file(address) or is_image_data(address):
            nodes.append(Element("img", [], {"src": address, "alt": text}))
        elif is_link(address) and not linked:
            nodes.append(Element("a", [text or address], {"href": address}))
        else:
            append_text(nodes, text)


def language(info: str) -> str | None:
    """Return the language of a block of code from what follows its fence."""
    word = info.split(maxsplit=1)[0] if info.strip() else ""
    return word if _LANGUAGE.fullmatch(word) else None


def _open(token: Token, nodes: list[Node]) -> list[Node]:
    """Add an element, and return its children; for a link that is not kept, the list itself."""
    if token.type == "link_open":
        address = str(token.attrs.get("href", ""))
        if not is_link(address):
            return nodes
        element = Element("a", attributes={"href": address})
    else:
        element = Element(_TAGS[token.tag])
    nodes.append(element)
    return element.children


def _add_leaf(token: Token, nodes: list[Node]) -> None:
    match token.type:
        case "code_inline":
            nodes.append(Element("code", [token.content]))
        case "hardbreak":
            nodes.append(Element("br"))
        case "softbreak":
            append_text(nodes, "\n")
        case _:
            append_text(nodes, token.content)


def _text(tokens: list[Token]) -> str:
    """Return the text of tokens, for an image that cannot be shown."""
    parts = []
    for token in tokens:
        if token.type == "image":
            parts.append(_text(token.children or []))
        else:
            parts.append("\n" if token.type in {"softbreak", "hardbreak"} else token.content)
    return "".join(parts)


def _code(token: Token, *, highlighted: bool) -> Element:
    code = token.content.removesuffix("\n")
    name = language(token.info)
    return code_block(highlight(code, name if highlighted else None), name)


def _attributes(token: Token) -> dict[str, str]:
    if token.type == "ordered_list_open" and "start" in token.attrs:
        return {"start": str(token.attrs["start"])}
    style = str(token.attrs.get("style", ""))
    return {"align": style.removeprefix(_ALIGN)} if style.startswith(_ALIGN) else {}


def _checkbox(token: Token) -> list[Node]:
    """Return the checkbox at the start of an item of a task list."""
    checked = token.meta.get("checked")
    if checked is None:
        return []
    return [Element("input", attributes={"checked": "true" if checked else "false"})]


def _drop_empty_cells(cells: list[Node]) -> None:
    """Drop the empty cells at the end of a row: a row of one character may have many."""
    while cells and isinstance(cell := cells[-1], Element):
        if cell.tag != "td" or cell.children:
            return
        cells.pop()
