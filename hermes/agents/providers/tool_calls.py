"""Tool calls in a form that every provider accepts.

Models make up tool names and malformed arguments. A call is part of the history, so a provider that
rejects it once would reject every later request of the conversation.
"""

from __future__ import annotations

import re

import msgspec

from hermes.agents.providers.sse_transport import JSON_ERRORS
from hermes.messages import ToolCall

_MAX_NAME = 64
_INVALID = re.compile(r"[^a-zA-Z0-9_-]")


def valid_name(call: ToolCall) -> str:
    """Return the tool name with invalid characters replaced, at most 64 characters long."""
    return _INVALID.sub("_", call.name)[:_MAX_NAME] or "unknown"


def valid_id(id_: str | None) -> str:
    """Return a tool call id with invalid characters encoded; different ids stay different."""
    return _INVALID.sub(lambda found: f"_{ord(found[0]):x}_", id_ or "")


def arguments_object(call: ToolCall) -> object:
    """Return the arguments as a dict. What is not a JSON object is wrapped in one."""
    try:
        value = msgspec.json.decode(call.arguments)
    except JSON_ERRORS:
        return {"malformed": call.arguments}
    return value if isinstance(value, dict) else {"value": value}


def arguments_json(call: ToolCall) -> str:
    """Return the arguments as the JSON text of an object, unchanged if they are one already."""
    try:
        msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except (*JSON_ERRORS, msgspec.ValidationError):
        return msgspec.json.encode(arguments_object(call)).decode()
    return call.arguments
