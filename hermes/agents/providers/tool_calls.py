"""Tool calls in a form that every provider accepts.

Models make up tool names and malformed arguments. A call is part of the history, so a provider that
rejects it once would reject every later request of the conversation.
"""

from __future__ import annotations

import re

import attrs
import msgspec

from hermes.agents.providers.stream_events import JSON_ERRORS
from hermes.messages import ToolCall
from hermes.sanitize import scrub

_MAX_NAME = 64
_INVALID = re.compile(r"[^a-zA-Z0-9_-]")
_STRUCTURE = re.compile(r'["{}\[\]]|\\.?', re.DOTALL)


@attrs.define
class Nesting:
    """Tells when a JSON object or array that arrives in pieces ends. Each piece is read once."""

    closed: bool = False
    """Whether the text ends with the bracket that closes its first one."""
    _depth: int = 0
    _in_string: bool = False
    _backslash: str = ""
    """A backslash at the end of the last piece, whose character is in the next one."""
    _broken: bool = False

    def feed(self, piece: str) -> None:
        """Read the next piece."""
        self._broken = self._broken or (self.closed and not piece.isspace())
        token = ""
        for found in _STRUCTURE.finditer(self._backslash + piece):
            token = found[0]
            if token == '"':
                self._in_string = not self._in_string
            elif token[0] != "\\" and not self._in_string:
                self._depth += 1 if token in "{[" else -1
                self.closed = self._depth == 0
        self._backslash = token if token == "\\" else ""
        self.closed = self.closed and not self._broken


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
    except (*JSON_ERRORS, UnicodeEncodeError):
        return {"malformed": scrub(call.arguments)}
    return value if isinstance(value, dict) else {"value": value}


def arguments_json(call: ToolCall) -> str:
    """Return the arguments as the JSON text of an object, unchanged if they are one already."""
    try:
        msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
    except (*JSON_ERRORS, UnicodeEncodeError, msgspec.ValidationError):
        return msgspec.json.encode(arguments_object(call)).decode()
    return call.arguments
