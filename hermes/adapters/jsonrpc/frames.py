"""Frames: one line of JSON each. Every line becomes a request or an error, whatever it contains."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import attrs
import msgspec

MAX_LINE = 4 * 1024 * 1024
"""Bytes; a longer line is skipped and refused."""
MAX_ID = 2**53
MAX_ID_LENGTH = 200
Id: TypeAlias = int | str

PARSE, INVALID, UNKNOWN_METHOD, BAD_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
NOT_NOW = -32000
NO_SESSION, NO_TEXT, NO_ACCESS = 4001, 4002, 4003
NO_ID, NOT_FOUND, NOTHING_TO_BRANCH = 4006, 4007, 4008
BUSY, NO_STEER, OUT_OF_RANGE, NO_TITLE, TITLE_REFUSED = 4009, 4010, 4018, 4021, 4022
IN_USE, FILE_REFUSED, NO_UPLOAD, NO_FILE = 4023, 4024, 4025, 4026
TOO_MANY, TOO_MANY_UPLOADS = 4090, 4091
CODES = {
    PARSE: "The line is not valid JSON.",
    INVALID: "Not a valid request: expected one JSON object with `method` and a unique `id`.",
    UNKNOWN_METHOD: "Unknown method.",
    BAD_PARAMS: "The params are invalid for this method.",
    INTERNAL: "Internal error; the log has the details.",
    NOT_NOW: "Temporarily unavailable. Nothing was done; send the request again later.",
    NO_SESSION: "No open session has this handle; use `session.resume` to get one.",
    NO_TEXT: "`text` is missing, and there are no `parts`.",
    NO_ACCESS: "The client has no access.",
    NO_ID: "An id or a title is required.",
    NOT_FOUND: "No stored session, or more than one, has this id, id prefix or title.",
    NOTHING_TO_BRANCH: "The session has no messages to copy.",
    BUSY: "An answer is running, or too many messages are waiting.",
    NO_STEER: "No answer is running.",
    OUT_OF_RANGE: "There is nothing to undo.",
    NO_TITLE: "`title` is missing.",
    TITLE_REFUSED: "Another stored session of this handle has the title, or it is too long.",
    IN_USE: "The session is open on this connection; close it first.",
    FILE_REFUSED: "The file cannot be attached; nothing of it is kept.",
    NO_UPLOAD: "No upload has this id: it has ended, was refused, or received nothing for a while.",
    NO_FILE: "The conversation has no file with this id.",
    TOO_MANY: "Too many sessions are open; close some first.",
    TOO_MANY_UPLOADS: "Too many uploads are open; end or cancel some first.",
}


class Refused(Exception):
    """A request that fails with an error response: a code and one sentence."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(text or CODES[code])
        self.code = code


class BadLine(Refused):
    """A line that is not a request; `request_id` is its id, if that could be read."""

    def __init__(self, code: int, text: str | None = None, request_id: Id | None = None) -> None:
        super().__init__(code, text)
        self.request_id = request_id


@attrs.frozen
class Request:
    """A request with undecoded params; without an id it is a notification, which has no answer."""

    id: Id | None
    method: str
    params: msgspec.Raw


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_id = msgspec.json.Decoder(int | str).decode
_decode_text = msgspec.json.Decoder(str).decode
NO_PARAMS = msgspec.Raw(b"{}")


def decode(line: bytes) -> Request:
    """Decode a line; raises `BadLine` if it is not a request."""
    try:
        fields = _decode_fields(line)
    except msgspec.ValidationError:
        if line.lstrip()[:1] == b"[":
            text = "Batches are not supported; send one request per line."
            raise BadLine(INVALID, text) from None
        raise BadLine(INVALID) from None
    except RecursionError:
        raise BadLine(INVALID, "The request is nested too deeply.") from None
    except ValueError as error:
        raise BadLine(PARSE, f"The line is not valid JSON: {error}.") from None
    request_id = _request_id(fields.get("id"))
    version = fields.get("jsonrpc")
    if version is not None and bytes(version) != b'"2.0"':
        raise BadLine(INVALID, "Only JSON-RPC 2.0 is supported.", request_id)
    return Request(request_id, _method(fields, request_id), fields.get("params", NO_PARAMS))


def _request_id(raw: msgspec.Raw | None) -> Id | None:
    if raw is None:
        return None
    try:
        request_id: Id = _decode_id(raw)
    except ValueError:
        raise BadLine(INVALID, "`id` must be a string or an integer.") from None
    if isinstance(request_id, str) and len(request_id) > MAX_ID_LENGTH:
        raise BadLine(INVALID, f"`id` must have at most {MAX_ID_LENGTH} characters.")
    if isinstance(request_id, int) and abs(request_id) > MAX_ID:
        raise BadLine(INVALID, "`id` must be an integer of at most 53 bits, or a string.")
    return request_id


def _method(fields: dict[str, msgspec.Raw], request_id: Id | None) -> str:
    raw = fields.get("method")
    if raw is None:
        raise BadLine(INVALID, "`method` is missing.", request_id)
    try:
        return _decode_text(raw)
    except ValueError:
        raise BadLine(INVALID, "`method` must be a string.", request_id) from None


class Problem(msgspec.Struct):
    """Why a request failed."""

    code: int
    message: str


class Result(msgspec.Struct, kw_only=True):
    """The response to a request."""

    jsonrpc: Literal["2.0"] = "2.0"
    seq: int
    id: Id | None
    result: Any


class Failure(msgspec.Struct, kw_only=True):
    """The error response to a request; `id` is null if the line had none."""

    jsonrpc: Literal["2.0"] = "2.0"
    seq: int
    id: Id | None
    error: Problem


class EventParams(msgspec.Struct):
    """An event; `session_id` is the handle of its session, or null."""

    seq: int
    type: str
    session_id: str | None
    payload: Any


class EventFrame(msgspec.Struct, kw_only=True):
    """An event, as a JSON-RPC notification."""

    jsonrpc: Literal["2.0"] = "2.0"
    method: Literal["event"] = "event"
    params: EventParams


Frame: TypeAlias = Result | Failure | EventFrame


def encode(value: Any) -> bytes:
    """Encode as JSON on one line; lone surrogates, which UTF-8 cannot encode, become `?`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
