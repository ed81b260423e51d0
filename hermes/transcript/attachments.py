"""Describe attached files in words, for people and for models that cannot take them."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import JsonObject, file_id_of

_UNITS = ("bytes", "kB", "MB", "GB")
_STEP = 1000


def describe(part: JsonObject, reason: str = "") -> str:
    """Return what a part is, such as `[image cat.png, 12 kB]`; with a `reason`, after a colon."""
    words = [str(part.get("type") or "file")]
    if name := part.get("name") or part.get("url"):
        words.append(str(name))
    size = part.get("size")
    sized = f", {readable_size(size)}" if isinstance(size, int) else ""
    return f"[{' '.join(words)}{sized}{': ' if reason else ''}{reason}]"


def readable_size(size: int) -> str:
    """Return a number of bytes as people read it, such as `1.2 MB`."""
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:.3g} {_UNITS[unit]}" if unit else f"{size} bytes"


def with_descriptions(text: str | None, parts: Sequence[JsonObject] | None) -> str:
    """Return a text on one line with the files of its message, such as `hi [image cat.png]`."""
    named = [describe(part) for part in parts or () if file_id_of(part) or "url" in part]
    return " ".join([*(text or "").split(), *named])
