"""Scripts and styles without comments, and without spaces and lines that mean nothing.

Names, strings and the order of everything stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_STRING = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\''
_SCRIPT = re.compile(rf"(\s*(?:(?://[^\n]*|/\*.*?\*/)\s*)*)({_STRING}|[\w$]+|.)", re.DOTALL)
_STYLE = re.compile(rf"(\s*(?:/\*.*?\*/\s*)*)({_STRING}|[^\s\"'{{}}:;,>/]+|.)", re.DOTALL)
_EXPRESSION = re.compile(r"(?:\\.|\[(?:\\.|[^]\\])*\]|[^/\\])+/", re.DOTALL)
"""A regular expression after its first slash."""
_TEMPLATE = re.compile(r"(?:\\.|\$(?!\{)|[^`$\\])*(?:`|\$\{)", re.DOTALL)
"""The text of a template, up to its end or to a value in it."""

_APART = frozenset("=?:;,<>(){}[]&|!*%`\"'")
"""Words beside these need no space."""
_OPEN = frozenset("=?:;,<>({[&|!*%")
"""No statement needs the end of a line after these."""
_GOES_ON = frozenset("=?:;,.<>)}]&|*%")
"""No statement begins with these."""


def compact_script(source: str) -> str:
    """Return a script without comments and spaces; lines end where a semicolon may be missing."""
    pieces, last = list[str](), ";"
    for gap, token in _tokens(source.rstrip()):
        pieces += _kept(gap, last[-1], token[0]), token
        last = token
    return "".join(pieces)


def _kept(gap: str, before: str, after: str) -> str:
    """Return what has to stay of a gap between two characters."""
    if "\n" in gap:
        return "" if before in _OPEN or after in _GOES_ON else "\n"
    return " " if gap and before not in _APART and after not in _APART else ""


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    """Yield each token of a script with what is before it; the text of a template is a token."""
    at, last = 0, ";"
    braces = list[int]()  # open ones in each open value of a template
    while found := _SCRIPT.match(source, at):
        gap, token = found.groups()
        rest = None
        if token == "/" and (last[-1] in _OPEN or last == "return"):
            rest = _EXPRESSION.match(source, found.end())
        elif token == "`" or (token == "}" and braces and not braces[-1]):
            rest = _TEMPLATE.match(source, found.end())
            _follow(braces, token, rest)
        elif braces and token in "{}":
            braces[-1] += 1 if token == "{" else -1
        if rest:
            token += rest[0]
        at = found.end() + (len(rest[0]) if rest else 0)
        yield gap, token
        last = token


def _follow(braces: list[int], token: str, text: re.Match[str] | None) -> None:
    if token == "}":
        braces.pop()
    if text and text[0].endswith("{"):
        braces.append(0)


def compact_style(source: str) -> str:
    """Return a style without comments, and without spaces at the braces and after `:;,`."""
    pieces, last = list[str](), ";"
    for gap, token in _STYLE.findall(source.rstrip()):
        if token == "}" and last == ";":
            pieces.pop()
        pieces += "" if not gap or last in "{};:,>" or token in "{}>" else " ", token
        last = token
    return "".join(pieces)
