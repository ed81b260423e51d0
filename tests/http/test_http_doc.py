"""docs/http.md says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from hermes.adapters.http import HttpConfig
from hermes.adapters.http.api.openapi import table
from hermes.adapters.http.app import ENDPOINTS
from hermes.adapters.http.openai.responses.requests import PARAMETERS

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


def test_the_table_of_settings_is_complete():
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", PAGE.read_text(), re.MULTILINE)
    defaults = {
        name: json.dumps(list(value) if isinstance(value, tuple) else value)
        for name, value in asdict(HttpConfig()).items()
        if not isinstance(value, msgspec.Struct)
    }
    assert {name: value for name, value in rows if name in defaults} == defaults


def test_the_table_of_parameters_is_complete():
    words = {
        "used": "used by Hermes", "passed": "passed to the model", "ignored": "ignored",
        "refused": "refused",
    }  # fmt: skip
    kinds = "|".join(words.values())
    text = PAGE.read_text().partition("## Responses")[2].partition("### Repeated")[0]
    rows = re.findall(rf"^\| `(\w+)` \| ({kinds}) \|", text, re.MULTILINE)
    assert dict(rows) == {name: words[handling] for name, handling in PARAMETERS.items()}


def test_the_table_of_endpoints_is_current():
    listed = PAGE.read_text().partition("<!-- endpoints -->\n")[2].partition("\n<!-- /endpoints")[0]
    own = [endpoint for endpoint in ENDPOINTS if endpoint.path.startswith("/api/")]
    assert listed == table(own), "python -m hermes.adapters.http --markdown"
