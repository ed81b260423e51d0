"""`python -m hermes.adapters.http --openapi`: print the OpenAPI document."""

from __future__ import annotations

import sys

import msgspec

from hermes.adapters.http.api.openapi import document, table
from hermes.adapters.http.app import ENDPOINTS

if sys.argv[1:] not in (["--openapi"], ["--markdown"]):
    sys.exit("usage: python -m hermes.adapters.http --openapi | --markdown")
text: str = (
    table([each for each in ENDPOINTS if each.path.startswith("/api/")])
    if sys.argv[1:] == ["--markdown"]
    else msgspec.json.format(msgspec.json.encode(document(ENDPOINTS))).decode()
)
sys.stdout.write(f"{text}\n")
