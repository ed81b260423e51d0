"""Highlight code with Pygments.

The language is never guessed, and only the lexers in `LANGUAGES` are used. Many of them take
quadratic time or worse for hostile code; within the limits, the slowest seen took a second.
"""

from __future__ import annotations

import re
from functools import cache

from pygments.lexer import Lexer  # type: ignore[import-untyped]
from pygments.lexers import find_lexer_class_by_name  # type: ignore[import-untyped]
from pygments.token import STANDARD_TYPES, _TokenType  # type: ignore[import-untyped]

from hermes.adapters.http.markdown.limits import (
    MAX_CODE,
    MAX_CODE_LINE,
    MAX_CODE_RUN,
    MAX_DECLARATION,
)
from hermes.adapters.http.markdown.nodes import Element, Node, append_text
from hermes.user_code import contained

LANGUAGES = frozenset({
    "awk", "bash", "bat", "c", "clojure", "cmake", "console", "cpp", "csharp", "css", "dart",
    "diff", "docker", "elixir", "erlang", "fortran", "fsharp", "go", "graphql", "groovy",
    "haskell", "html", "http", "ini", "java", "javascript", "json", "json5", "jsx", "julia",
    "kotlin", "latex", "less", "lisp", "lua", "make", "matlab", "nasm", "nginx", "nix",
    "objective-c", "ocaml", "pascal", "perl", "php", "postgresql", "powershell", "protobuf",
    "pycon", "python", "r", "ruby", "rust", "scala", "scheme", "scss", "solidity", "sql",
    "swift", "terraform", "toml", "tsx", "typescript", "verilog", "vhdl", "vim", "xml", "yaml",
    "zig",
})  # fmt: skip
"""Names of lexers."""

ALIASES = {
    "c#": "csharp", "c++": "cpp", "cc": "cpp", "cs": "csharp", "dockerfile": "docker",
    "ex": "elixir", "f#": "fsharp", "fs": "fsharp", "golang": "go", "h": "c", "hcl": "terraform",
    "hpp": "cpp", "hs": "haskell", "htm": "html", "js": "javascript", "jsonc": "json5",
    "kt": "kotlin", "makefile": "make", "mjs": "javascript", "objc": "objective-c",
    "patch": "diff", "pgsql": "postgresql", "ps1": "powershell", "py": "python",
    "python3": "python", "rb": "ruby", "rs": "rust", "sh": "bash", "shell": "bash",
    "shell-session": "console", "sol": "solidity", "svg": "xml", "tex": "latex",
    "tf": "terraform", "ts": "typescript", "viml": "vim", "yml": "yaml", "zsh": "bash",
}  # fmt: skip
"""Other names that people use for them."""

_UNSTYLED = frozenset({"", "n", "p", "w"})
"""Classes of text, names, punctuation and spaces: most tokens, and no style colours them."""
_LONG_LINE = re.compile(rf"[^\n]{{{MAX_CODE_LINE + 1}}}")
_LONG_RUN = re.compile(rf"[\w\s]{{{MAX_CODE_RUN + 1}}}")
_LONG_DECLARATION = re.compile(rf"[\w\s.<>?@$\[\]]{{{MAX_DECLARATION + 1}}}")
_DECLARATIONS = frozenset({"csharp", "groovy", "java"})
"""Languages whose lexers take cubic time for names in a row."""


def highlight(code: str, language: str | None) -> list[Node]:
    """Return code as texts and spans; one text if its language is unknown or a limit is exceeded.

    The texts together are the code, unchanged.
    """
    name = (language or "").lower()
    name = ALIASES.get(name, name)
    if name not in LANGUAGES or not _is_small(code, name):
        return [code] if code else []
    nodes: list[Node] = []
    with contained():  # a lexer is a program of others, for any text
        nodes = _spans(code, _lexer_class(name)(stripnl=False, ensurenl=False))
    return nodes if text_of(nodes) == code else [code]


def text_of(nodes: list[Node]) -> str:
    """Return the text of nodes without their tags."""
    return "".join(each if isinstance(each, str) else text_of(each.children) for each in nodes)


@cache
def _lexer_class(name: str) -> type[Lexer]:
    found: type[Lexer] = find_lexer_class_by_name(name)
    return found


def _is_small(code: str, name: str) -> bool:
    if len(code) > MAX_CODE or _LONG_LINE.search(code) or _LONG_RUN.search(code):
        return False
    return name not in _DECLARATIONS or not _LONG_DECLARATION.search(code)


def _spans(code: str, lexer: Lexer) -> list[Node]:
    """Return the tokens of code; neighbours of the same class are one node."""
    nodes: list[Node] = []
    last = ""
    for kind, text in lexer.get_tokens(code):
        style = _class(kind)
        if style in _UNSTYLED:
            append_text(nodes, text)
        elif style == last and isinstance(span := nodes[-1], Element):
            append_text(span.children, text)
        elif text:
            nodes.append(Element("span", [text], {"class": style}))
        last = style if text else last
    return nodes


def _class(kind: _TokenType) -> str:
    """Return the class of a token; a lexer's own kinds have that of the nearest standard one."""
    found: _TokenType | None = kind
    while found is not None and found not in STANDARD_TYPES:
        found = found.parent
    return str(STANDARD_TYPES[found]) if found is not None else ""
