"""The trace context of a request goes to its turn in the metadata of the message."""

from __future__ import annotations

import re

from hermes.adapters.http.endpoints import Call
from hermes.messages import JsonObject

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_metadata(call: Call) -> JsonObject:
    """Return the W3C `traceparent` of a request as metadata; empty if it has no valid one."""
    value = call.request.headers.get("traceparent", "")
    return {"traceparent": value} if _TRACEPARENT.fullmatch(value) else {}
