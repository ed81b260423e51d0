"""The text of a message that a webhook starts."""

from __future__ import annotations

import json
import re

import msgspec

from hermes.adapters.http.endpoints import is_shallow

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_][A-Za-z0-9_.-]*)\}")
BODY = "body"


def text_of(template: str, body: bytes) -> str:
    """Return the text for an event.

    `{body}` is the whole body, and `{pull_request.title}` a field of its JSON: a text as it is,
    anything else as JSON, and nothing if there is no such field. What the event says is never a
    placeholder itself. Raises `ValueError` if the template needs a field and the body is no JSON.
    """
    whole = body.decode(errors="replace")
    names = {name for name in _PLACEHOLDER.findall(template) if name != BODY}
    parsed = _parse(body) if names else None
    values = {name: _text(_field(parsed, name)) for name in names}
    return _PLACEHOLDER.sub(lambda found: {**values, BODY: whole}[found[1]], template)


def _parse(body: bytes) -> object:
    try:
        if not is_shallow(body):
            raise ValueError("the body is nested too deeply")
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the body is not valid JSON: {error}") from None


def _field(value: object, name: str) -> object:
    for part in name.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
