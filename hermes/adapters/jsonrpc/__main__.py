"""`python -m hermes.adapters.jsonrpc`: print the schema; with `--tables`, for people."""

from __future__ import annotations

import sys

import msgspec

from hermes.adapters.jsonrpc.schema import schema, tables

text = (
    tables()
    if "--tables" in sys.argv[1:]
    else msgspec.json.format(msgspec.json.encode(schema())).decode()
)
sys.stdout.write(f"{text}\n")
