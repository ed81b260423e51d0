"""The schema of the protocol, made of the tables that the code runs by."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from hermes.adapters.jsonrpc.events import EVENTS
from hermes.adapters.jsonrpc.frames import CODES, EventFrame, Failure, Result
from hermes.adapters.jsonrpc.methods import METHODS

_FRAMES = (Result, Failure, EventFrame)


def schema() -> dict[str, Any]:
    """JSON Schema of all methods, events and errors; refs lead to `$defs`."""
    types = [
        *_FRAMES,
        *(each for method in METHODS.values() for each in (method.params, method.result)),
        *EVENTS.values(),
    ]
    refs, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    found = dict(zip(types, refs, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "methods": {
            name: {
                "summary": method.summary,
                "params": found[method.params],
                "result": found[method.result],
            }
            for name, method in METHODS.items()
        },
        "events": {name: found[payload] for name, payload in EVENTS.items()},
        "frames": [found[frame] for frame in _FRAMES],
        "errors": {str(code): text for code, text in CODES.items()},
        "$defs": definitions,
    }


def tables() -> str:
    """The same for people: a table of methods, one of events, one of codes."""
    lines = ["| method | params | result | |", "|---|---|---|---|"]
    for name, method in METHODS.items():
        shown = f"{_fields(method.params)} | {_fields(method.result)} | {_line(method.summary)}"
        lines.append(f"| `{name}` | {shown} |")
    lines += ["", "| event | payload | |", "|---|---|---|"]
    for name, payload in EVENTS.items():
        lines.append(f"| `{name}` | {_fields(payload)} | {_line(payload.__doc__ or '')} |")
    lines += ["", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in CODES.items()]
    return "\n".join(lines)


def _fields(struct: type[msgspec.Struct]) -> str:
    """The names of the fields; those that may be left out are in brackets."""
    names = [
        f"`{field.encode_name}`"
        if field.required or field.default == ""  # "" is refused, by a code of its own
        else f"[`{field.encode_name}`]"
        for field in msgspec.structs.fields(struct)
    ]
    return ", ".join(names) or "none"


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
