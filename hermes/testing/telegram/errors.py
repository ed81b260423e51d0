"""Error responses, and faults on demand."""

from __future__ import annotations

from typing import Literal

import attrs
import msgspec

from hermes.messages import JsonObject
from hermes.testing.loopback import Response


@attrs.frozen
class ApiError(Exception):
    """An error response of the Bot API."""

    code: int
    description: str
    parameters: JsonObject = attrs.Factory(dict)

    def response(self) -> Response:
        """Return the HTTP response."""
        body: JsonObject = {
            "ok": False, "error_code": self.code, "description": self.description,
        }  # fmt: skip
        if self.parameters:
            body["parameters"] = self.parameters
        return json_response(self.code, msgspec.json.encode(body))


@attrs.frozen
class Fault:
    """A fault of one call. `taken`: the call is executed, and only its response is lost.

    `method` is the method whose next call fails; None means any. `seconds` is a delay before the
    fault; a `slow` call is delayed and then succeeds.
    """

    kind: Literal["reset", "502", "slow", "garbage"] = "reset"
    taken: bool = False
    method: str | None = None
    seconds: float = 0.0

    def response(self) -> Response:
        """Return the broken HTTP response."""
        if self.kind == "reset":
            return Response(complete=False)
        if self.kind == "garbage":
            return json_response(200, b'{"ok":true,"resu')
        page = b"<html><head><title>502 Bad Gateway</title></head></html>"
        return json_response(502, page, "text/html")


def json_response(status: int, body: bytes, kind: str = "application/json") -> Response:
    """Return an HTTP response with this body."""
    return Response(status=status, headers=[("content-type", kind)], chunks=[body])
