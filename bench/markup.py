"""Elements of SVG and HTML as text; nothing that is put into them can become markup."""

from __future__ import annotations

import html


def text(words: str) -> str:
    """Words as they stand between tags and in attributes."""
    return html.escape("".join(_shown(character) for character in words))


def _shown(character: str) -> str:
    if character.isspace():
        return " "
    return character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"


def tag(name: str, *content: str, **attributes: str | float) -> str:
    """An element around markup; `class_` is class, `text_anchor` is text-anchor."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{words}>{''.join(content)}</{name}>" if content else f"<{name}{words}/>"


def _value(value: str | float) -> str:
    return text(value) if isinstance(value, str) else f"{value:.6g}"
