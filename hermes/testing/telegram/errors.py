"""Error responses, and faults on demand."""

from __future__ import annotations

from typing import Literal, TypeAlias

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


FaultKind: TypeAlias = Literal[
    "reset", "502", "slow", "garbage", "429", "404", "truncated", "short", "long", "endless",
    "gzip", "redirect",
]  # fmt: skip


@attrs.frozen
class Fault:
    """A fault of one call. `taken`: the call is executed, and only its response is lost.

    `method` is the method whose next call fails; None means any. `seconds` is a delay before the
    fault; a `slow` call is delayed and then succeeds.

    The method "file" is the download of a file, which has more kinds of faults: the connection
    closes in the middle (`truncated`), the file is one byte `short` or too `long`, or `endless`, it
    is compressed (`gzip`), or elsewhere (`redirect`). The method "upload" is the body of the next
    call with a file: the connection is closed while it is received.
    """

    kind: FaultKind = "reset"
    taken: bool = False
    method: str | None = None
    seconds: float = 0.0

    def response(self) -> Response:
        """Return the broken HTTP response."""
        if self.kind == "reset":
            return Response(complete=False)
        if self.kind == "garbage":
            return json_response(200, b'{"ok":true,"resu')
        if self.kind == "429":
            return ApiError(429, "Too Many Requests", {"retry_after": 1}).response()
        if self.kind == "404":
            return ApiError(404, "Not Found").response()
        page = b"<html><head><title>502 Bad Gateway</title></head></html>"
        return json_response(502, page, "text/html")


def json_response(status: int, body: bytes, kind: str = "application/json") -> Response:
    """Return an HTTP response with this body."""
    return Response(status=status, headers=[("content-type", kind)], chunks=[body])
