"""The nodes of a parsed text, and their shape in JSON.

A node is a string, which is text, or an element, which is an array of three items:

    [tag, children, attributes]

`children` is an array of nodes and `attributes` an object whose values are strings. A block is an
element without a parent. For example, `# *Hi* there` is

    ["h1", [["em", ["Hi"], {}], " there"], {}]

The page creates one DOM node per node. It never needs HTML: texts contain no markup and no
entities. `TAGS` lists all tags with their attributes:

- `a`: `href` begins with `http://`, `https://` or `mailto:`. The page adds `rel` and `target`.
- `img`: `src` is the path of a file of a conversation or a `data:` URL of an image; `alt` is text.
- `input`: a checkbox of a task list, `checked` is `true` or `false`. The page disables it.
- `ol`: `start` is a number; without it, the list starts at 1.
- `td`, `th`: `align` is `left`, `center` or `right`. A row may have fewer cells than the header.
- `pre` has one child, `code`, with `language` if the block of code has a language.
- `span`: `class` is a short class of Pygments, such as `k` for a keyword. It occurs in code only.
- `p`: `class` is `plain` if the text was not parsed. The page keeps its line breaks and spaces.

A line break in another text is a space; `br` is a hard line break.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Tag: TypeAlias = Literal[
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code",
    "table", "thead", "tbody", "tr", "th", "td", "em", "strong", "del", "a", "br", "hr", "img",
    "input", "span",
]  # fmt: skip

TAGS: Mapping[Tag, frozenset[str]] = {
    "p": frozenset({"class"}),
    "h1": frozenset(),
    "h2": frozenset(),
    "h3": frozenset(),
    "h4": frozenset(),
    "h5": frozenset(),
    "h6": frozenset(),
    "ul": frozenset(),
    "ol": frozenset({"start"}),
    "li": frozenset(),
    "blockquote": frozenset(),
    "pre": frozenset(),
    "code": frozenset({"language"}),
    "table": frozenset(),
    "thead": frozenset(),
    "tbody": frozenset(),
    "tr": frozenset(),
    "th": frozenset({"align"}),
    "td": frozenset({"align"}),
    "em": frozenset(),
    "strong": frozenset(),
    "del": frozenset(),
    "a": frozenset({"href"}),
    "br": frozenset(),
    "hr": frozenset(),
    "img": frozenset({"src", "alt"}),
    "input": frozenset({"checked"}),
    "span": frozenset({"class"}),
}
"""All tags, and the attributes that each may have."""

Node: TypeAlias = "str | Element"


class Element(msgspec.Struct, array_like=True):
    """A node with a tag; in JSON, an array."""

    tag: Tag
    children: list[Node] = []
    attributes: dict[str, str] = {}


def append_text(nodes: list[Node], text: str) -> None:
    """Add text to a list of nodes, to the last one if it is a text."""
    if nodes and isinstance(last := nodes[-1], str):
        nodes[-1] = last + text
    elif text:
        nodes.append(text)


def plain(text: str) -> Element:
    """Return a block of text that was not parsed."""
    return Element("p", [text.strip("\n")], {"class": "plain"})


def code_block(nodes: list[Node], language: str | None) -> Element:
    """Return a block of code."""
    attributes = {} if language is None else {"language": language}
    return Element("pre", [Element("code", nodes, attributes)])
