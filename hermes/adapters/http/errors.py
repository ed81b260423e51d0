"""Errors in the shape of OpenAI's API: `{"error": {"message", "type", "code", "param"}}`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from hermes.errors import (
    ActorStopped,
    AttachmentRefused,
    AttachmentTooLarge,
    Draining,
    EventConflict,
    HistoryChanged,
    InvalidToken,
    NotAdmitted,
    Overloaded,
    RateLimited,
    StoreBusy,
    StoreFull,
    UnknownFile,
    UnknownSession,
    UnknownTurn,
)
from hermes.user_code import new_reference

log: logging.Logger = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "server_error",
    504: "server_error",
}
_STATUS: dict[type[Exception], tuple[int, str]] = {
    UnknownSession: (404, "not_found"),
    UnknownFile: (404, "file_not_found"),
    UnknownTurn: (404, "not_found"),
    AttachmentTooLarge: (413, "file_too_large"),
    AttachmentRefused: (400, "file_refused"),
    InvalidToken: (401, "invalid_api_key"),
    RateLimited: (429, "rate_limit_exceeded"),
    NotAdmitted: (403, "not_admitted"),
    EventConflict: (409, "conflict"),
    HistoryChanged: (409, "conflict"),
    Overloaded: (429, "too_many_messages"),
    Draining: (503, "draining"),
    ActorStopped: (503, "draining"),
    StoreBusy: (503, "store_busy"),
    StoreFull: (503, "store_full"),
}


_PROTOCOL_ERRORS = {
    408: "The head of the request did not arrive in time.",
    431: "The request line and the headers are too long.",
    501: "The transfer encoding of the request is not supported; use chunked or Content-Length.",
    505: "The version of HTTP is not supported; use HTTP/1.1.",
}
TOO_MANY = "The token has sent too many messages; [rates] in the settings has the limit."
"""The text of `RateLimited` is for chats."""


class ClientGone(OSError):
    """The client has closed the connection, or does not read. `send` of ASGI raises it."""


class ApiError(Exception):
    """A refusal that the client is told: one sentence, with a status code."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status: int = status
        self.message: str = message
        self.code: str | None = code
        self.param: str | None = param
        self.headers: Mapping[str, str] = headers or {}

    def response(self) -> Response:
        """Return the error as a response."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "code": self.code, "param": self.param}
        body = msgspec.json.encode({"error": error})
        return Response(body, self.status, self.headers, media_type="application/json")


def unsupported(param: str, why: str = "is not supported") -> ApiError:
    """Return the error for a parameter that would change the meaning of the answer."""
    return ApiError(400, f"{param} {why}.", code="unsupported_parameter", param=param)


def file_error(error: AttachmentRefused | UnknownFile, param: str) -> ApiError:
    """Return the error for a parameter whose file is refused or unknown."""
    known = as_api_error(error)
    return ApiError(known.status, known.message, code=known.code, param=param)


def not_found(what: str, param: str | None = None) -> ApiError:
    """Return the error for something that does not exist, or belongs to another client."""
    return ApiError(404, f"There is no {what}.", code="not_found", param=param)


def protocol_error(status: int) -> ApiError:
    """Return the error for a request that is refused before it is understood."""
    text = _PROTOCOL_ERRORS.get(status, "The request is not valid HTTP/1.1.")
    return ApiError(status, text, code=HTTPStatus(status).name.lower())


def stopping(
    text: str = "The server is stopping; the turn is continued after its restart.",
) -> ApiError:
    """Return the error for a client that should send its request again after a restart."""
    return ApiError(
        503,
        text,
        code="draining",
        headers={"x-should-retry": "true", "Retry-After": "1"},
    )


def as_api_error(error: BaseException) -> ApiError:
    """Return the error for a client; of unexpected errors it is told a reference only."""
    if isinstance(error, ApiError):
        return error
    for kind, (status, code) in _STATUS.items():
        if isinstance(error, kind):
            retry = {"Retry-After": "1"} if status in {429, 503} else {}
            text = TOO_MANY if kind is RateLimited else f"{str(error).rstrip('.')}."
            return ApiError(status, text, code=code, headers=retry)
    if isinstance(error, ValueError):
        return ApiError(400, f"{str(error).rstrip('.')}.", code="invalid_value")
    reference = new_reference()
    log.error("a request failed (reference %s)", reference, exc_info=error)
    text = f"Internal error (reference {reference}); the log has the details."
    return ApiError(500, text, code="internal_error", headers={"x-should-retry": "false"})
