"""Frames: a line of JSON each. Whatever a line contains, it becomes a request or a refusal."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import attrs
import msgspec

MAX_LINE = 4 * 1024 * 1024
"""Bytes of a line; a longer one is skipped, and refused."""
MAX_ID = 2**53
MAX_NAME = 200
Id: TypeAlias = int | str

PARSE, INVALID, UNKNOWN_METHOD, BAD_PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
NOT_NOW = -32000
NO_SESSION, NO_TEXT, NO_ID, NOT_FOUND, NOTHING_TO_BRANCH = 4001, 4002, 4006, 4007, 4008
BUSY, NO_STEER, OUT_OF_RANGE, NO_TITLE, TITLE_REFUSED = 4009, 4010, 4018, 4021, 4022
IN_USE, TOO_MANY = 4023, 4090
CODES = {
    PARSE: "The line is not JSON.",
    INVALID: "The line is no request: one JSON object with `method` and an `id` of its own.",
    UNKNOWN_METHOD: "There is no such method.",
    BAD_PARAMS: "The params do not fit the method.",
    INTERNAL: "Something failed inside; the log has the reason.",
    NOT_NOW: "Nothing was done, and the same request may be sent again later.",
    NO_SESSION: "No live session has this handle; `session.resume` gives one.",
    NO_TEXT: "A text is missing.",
    NO_ID: "An id or a title is missing.",
    NOT_FOUND: "No stored session has this id, this beginning of an id, or this title.",
    NOTHING_TO_BRANCH: "Nothing was said yet that could be copied.",
    BUSY: "An answer is running, or too much waits already.",
    NO_STEER: "No answer is running that could be steered.",
    OUT_OF_RANGE: "There is nothing to take back.",
    NO_TITLE: "A title is missing.",
    TITLE_REFUSED: "The title cannot be given: it is in use, or too long.",
    IN_USE: "The session is live here; close it first.",
    TOO_MANY: "Too many sessions are live; close some.",
}


class Refused(Exception):
    """A request that is answered by an error: its code, and one sentence."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(text or CODES[code])
        self.code = code


class BadLine(Refused):
    """A line that is no request; `request_id` where that much could be read of it."""

    def __init__(self, code: int, text: str | None = None, request_id: Id | None = None) -> None:
        super().__init__(code, text)
        self.request_id = request_id


@attrs.frozen
class Request:
    """A request as it came; without an id it is a notification, which is not answered."""

    id: Id | None
    method: str
    params: msgspec.Raw


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_id = msgspec.json.Decoder(int | str).decode
_text = msgspec.json.Decoder(str).decode
NO_PARAMS = msgspec.Raw(b"{}")


def decode(line: bytes) -> Request:
    """The request that a line is; `BadLine` where it is none."""
    try:
        fields = _fields(line)
    except msgspec.ValidationError:
        if line.lstrip()[:1] == b"[":
            raise BadLine(INVALID, "Batches are not taken; send one request per line.") from None
        raise BadLine(INVALID) from None
    except RecursionError:
        raise BadLine(INVALID, "The request is nested too deeply.") from None
    except ValueError as error:
        raise BadLine(PARSE, f"The line is not JSON: {error}.") from None
    request_id = _request_id(fields.get("id"))
    version = fields.get("jsonrpc")
    if version is not None and bytes(version) != b'"2.0"':
        raise BadLine(INVALID, "Only JSON-RPC 2.0 is spoken here.", request_id)
    return Request(request_id, _method(fields, request_id), fields.get("params", NO_PARAMS))


def _request_id(raw: msgspec.Raw | None) -> Id | None:
    if raw is None:
        return None
    try:
        found: Id = _id(raw)
    except ValueError:
        raise BadLine(INVALID, "An id is a text or a whole number.") from None
    if isinstance(found, str) and len(found) > MAX_NAME:
        raise BadLine(INVALID, f"An id has at most {MAX_NAME} characters.")
    if isinstance(found, int) and abs(found) > MAX_ID:
        raise BadLine(INVALID, "An id is a whole number of at most 53 bits, or a text.")
    return found


def _method(fields: dict[str, msgspec.Raw], request_id: Id | None) -> str:
    raw = fields.get("method")
    if raw is None:
        raise BadLine(INVALID, "A request needs a method.", request_id)
    try:
        return _text(raw)
    except ValueError:
        raise BadLine(INVALID, "A method is a text.", request_id) from None


class Problem(msgspec.Struct):
    """Why a request was not done."""

    code: int
    message: str


class Result(msgspec.Struct, kw_only=True):
    """The answer to a request."""

    jsonrpc: Literal["2.0"] = "2.0"
    seq: int
    id: Id | None
    result: Any


class Failure(msgspec.Struct, kw_only=True):
    """The answer to a request that was not done; `id` is null where the line had none."""

    jsonrpc: Literal["2.0"] = "2.0"
    seq: int
    id: Id | None
    error: Problem


class EventParams(msgspec.Struct):
    """What happened, and in which live session; null where in none."""

    seq: int
    type: str
    session_id: str | None
    payload: Any


class EventFrame(msgspec.Struct, kw_only=True):
    """Something that happened."""

    jsonrpc: Literal["2.0"] = "2.0"
    method: Literal["event"] = "event"
    params: EventParams


Frame: TypeAlias = Result | Failure | EventFrame


def encode(value: Any) -> bytes:
    """JSON on one line; halves of characters, which UTF-8 cannot hold, become question marks."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
