"""SQL of the verbs as PostgreSQL knows it: `$1` for `?`, and other names of a few functions."""

from __future__ import annotations

import functools
import re
from typing import Final

_STRING: Final = "'(?:[^']|'')*'"
_PARTS: Final = re.compile(
    rf"(?P<path>[\w.]+ ->> '\$\.[\w.]+')|(?P<string>{_STRING})|\?(?P<number>\d*)"
    r"|(?P<hint> INDEXED BY \w+)|(?P<name>\b(?:json_each|instr)(?=\())"
)
_NAMES: Final = {"json_each": "json_array_elements_text", "instr": "strpos"}


@functools.cache
def translate(sql: str) -> str:
    """Return the text for PostgreSQL. Each text of the verbs is translated once.

    Hints for SQLite's planner are removed.
    """
    highest = 0

    def replace(found: re.Match[str]) -> str:
        nonlocal highest
        if found["string"] is not None:
            return found["string"]
        if found["path"] is not None:
            return _path(found["path"])
        if found["name"] is not None:
            return _NAMES[found["name"]]
        if found["hint"] is not None:
            return ""
        number = int(found["number"] or highest + 1)
        highest = max(highest, number)
        return f"${number}"

    return _PARTS.sub(replace, sql)


def _path(text: str) -> str:
    """Return `a ->> '$.b.c'` as `(a::json #>> '{b,c}')`."""
    column, path = text.removesuffix("'").split(" ->> '$.")
    return f"({column}::json #>> '{{{path.replace('.', ',')}}}')"
