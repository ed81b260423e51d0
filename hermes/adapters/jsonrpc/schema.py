"""The schema of the protocol, generated from the tables that the code uses."""

from __future__ import annotations

import textwrap
from typing import Any

import msgspec

from hermes.adapters.jsonrpc.events import EVENTS
from hermes.adapters.jsonrpc.frames import CODES, EventFrame, Failure, Result
from hermes.adapters.jsonrpc.methods import METHODS

_FRAMES = (Result, Failure, EventFrame)
WIDTH = 100


def schema() -> dict[str, Any]:
    """Return the JSON Schema of all methods, events and errors."""
    types = [
        *_FRAMES,
        *(each for method in METHODS.values() for each in (method.params, method.result)),
        *EVENTS.values(),
    ]
    refs, definitions = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    ref_of = dict(zip(types, refs, strict=True))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "methods": {
            name: {
                "summary": method.summary,
                "params": ref_of[method.params],
                "result": ref_of[method.result],
            }
            for name, method in METHODS.items()
        },
        "events": {name: ref_of[payload] for name, payload in EVENTS.items()},
        "frames": [ref_of[frame] for frame in _FRAMES],
        "errors": {str(code): text for code, text in CODES.items()},
        "$defs": definitions,
    }


def reference() -> str:
    """Return the methods, events and error codes as Markdown, for docs/jsonrpc.md."""
    lines = ["### Methods", ""]
    for name, method in METHODS.items():
        fields = f"Params: {_fields(method.params)}. Result: {_fields(method.result)}."
        lines += [_item(f"`{name}`: {method.summary}"), _item(fields, first="  ")]
    lines += ["", "### Events", ""]
    for name, payload in EVENTS.items():
        lines += [
            _item(f"`{name}`: {payload.__doc__}"),
            _item(f"Payload: {_fields(payload)}.", first="  "),
        ]
    lines += ["", "### Error codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {text} |" for code, text in CODES.items()]
    return "\n".join(lines)


def _fields(struct: type[msgspec.Struct]) -> str:
    """Return the names of the fields, optional ones in brackets."""
    names = [
        f"`{field.encode_name}`"
        if field.required or field.default == ""  # "" has its own error code
        else f"[`{field.encode_name}`]"
        for field in msgspec.structs.fields(struct)
    ]
    return ", ".join(names) or "none"


def _item(text: str, first: str = "- ") -> str:
    """Return the text wrapped as an item of a list, or as its second paragraph line."""
    words = " ".join(text.split())
    return textwrap.fill(
        words, WIDTH, initial_indent=first, subsequent_indent="  ", break_long_words=False
    )
