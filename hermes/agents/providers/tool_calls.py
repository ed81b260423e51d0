"""What models make up and providers refuse: calls as they can be shown to any model again.

A call that is refused once would be refused in every later turn, since it is part of the history.
"""

from __future__ import annotations

import re

import msgspec

from hermes.agents.providers.sse_transport import MALFORMED
from hermes.messages import ToolCall

_MAX_NAME = 64
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


def name_of(call: ToolCall) -> str:
    """Its name, in the letters that names of tools may have."""
    return _ODD.sub("_", call.name)[:_MAX_NAME] or "unknown"


def plain_id(id_: str | None) -> str:
    """An id in letters that all take; others than these differ afterwards too."""
    return _ODD.sub(lambda found: f"_{ord(found[0]):x}_", id_ or "")


def object_of(call: ToolCall) -> object:
    """The arguments as an object; what is none is handed back under a name."""
    try:
        value = msgspec.json.decode(call.arguments)
    except MALFORMED:
        return {"malformed": call.arguments}
    return value if isinstance(value, dict) else {"value": value}


def arguments_of(call: ToolCall) -> str:
    """The arguments as the text of an object: the model's own, where it is one."""
    try:
        msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except (*MALFORMED, msgspec.ValidationError):
        return msgspec.json.encode(object_of(call)).decode()
    return call.arguments
