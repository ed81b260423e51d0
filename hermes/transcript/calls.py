"""Tool calls as people read them: `order(bird="heron", number=2)`. And those without a result."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from hermes.messages import Message, StoredMessage, ToolCall


def open_calls(rows: Sequence[Message | StoredMessage]) -> list[ToolCall]:
    """Return the calls with which a transcript ends: those that still wait for a result.

    A client that runs the tools itself returns the results. There are none if anything but results
    follows the last message with calls: then the conversation has gone on without them.
    """
    last = open_step(rows)
    if last == len(rows):
        return []
    answered = Counter(row.tool_call_id for row in rows[last + 1 :])
    waiting = []
    for call in rows[last].tool_calls:
        if answered[call.id]:
            answered[call.id] -= 1
        else:
            waiting.append(call)
    return waiting


def open_step(rows: Sequence[Message | StoredMessage]) -> int:
    """Return the position of the message with calls that only results follow, or the end."""
    for index in range(len(rows) - 1, -1, -1):
        if rows[index].role != "tool":
            return index if rows[index].tool_calls else len(rows)
    return len(rows)


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
