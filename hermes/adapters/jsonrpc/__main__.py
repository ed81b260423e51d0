"""`python -m hermes.adapters.jsonrpc`: print the JSON Schema; with `--markdown`, a reference."""

from __future__ import annotations

import sys

import msgspec

from hermes.adapters.jsonrpc.schema import reference, schema

text: str = (
    reference()
    if "--markdown" in sys.argv[1:]
    else msgspec.json.format(msgspec.json.encode(schema())).decode()
)
sys.stdout.write(f"{text}\n")
