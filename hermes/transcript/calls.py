"""Tool calls as people read them: `order(bird="heron", number=2)`."""

from __future__ import annotations

import json


def parsed(arguments: str) -> object:
    """Return the arguments of a call; as they are if they are not JSON."""
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments


def shown_arguments(arguments: str) -> str:
    """Return the arguments of a call in a short form; other texts than objects as they are."""
    given = parsed(arguments)
    if not isinstance(given, dict):
        return arguments
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()
    )


def shown_call(name: str, arguments: str) -> str:
    """Return a call in a short form."""
    return f"{name}({shown_arguments(arguments)})"
