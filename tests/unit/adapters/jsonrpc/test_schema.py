"""The generated schema."""

from __future__ import annotations

import json
import subprocess
import sys

from hermes.adapters.jsonrpc import frames
from hermes.adapters.jsonrpc.events import EVENTS
from hermes.adapters.jsonrpc.methods import METHODS
from hermes.adapters.jsonrpc.schema import schema


def test_every_method_and_event_is_in_the_schema_and_every_ref_is_defined():
    whole = schema()
    assert set(whole["methods"]) == set(METHODS)
    assert set(whole["events"]) == set(EVENTS)
    assert set(map(int, whole["errors"])) == set(frames.CODES)
    text = json.dumps(whole)
    refs = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert refs
    assert refs <= set(whole["$defs"])
    assert all(method.summary.endswith(".") for method in METHODS.values())


def test_the_schema_agrees_with_the_decoder():
    params = schema()["$defs"]["SubmitParams"]
    assert params["additionalProperties"] is False
    assert params["properties"]["busy"]["anyOf"][0]["enum"] == [
        "interrupt", "queue", "reject", "steer"
    ]  # fmt: skip


def test_the_module_prints_the_schema():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hermes.adapters.jsonrpc"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == schema()
