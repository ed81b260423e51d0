"""Check what an agent returns, so that a commit can only fail for the store's own reasons."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from hermes.messages import (
    Attachment,
    Extra,
    JsonObject,
    Message,
    StoredFile,
    ToolCall,
    TurnResult,
    Usage,
)
from hermes.sanitize import encodable

MAX_DEPTH = 100
"""The deepest nesting of JSON that is stored; more might exhaust the stack of a reader."""
MAX_SESSION_ID = 200
MAX_METADATA = 4096
"""The size of the metadata of a message or a conversation, in bytes of JSON."""
_MAX_INT = 2**63 - 1
_EXTRA_FIELDS = Extra.__struct_fields__
_extra_values = operator.attrgetter(*_EXTRA_FIELDS)
_NO_EXTRA = _extra_values(Extra())
_TOKEN_FIELDS = (
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens",
)  # fmt: skip


def as_result(returned: object) -> TurnResult:
    """Return what an agent returned as a `TurnResult`; a string is the text of one.

    Raises `TypeError` or `ValueError` with one sentence if it is neither, or if its usage cannot
    be stored. The caller must still call `check_result`.
    """
    if isinstance(returned, str):
        return TurnResult(text=returned)
    if not isinstance(returned, TurnResult):
        kind = type(returned).__name__
        raise TypeError(f"an agent must return a TurnResult or a string, not {kind}")
    check_usage(returned.usage)
    return returned if returned.error is None and returned.data is None else _scrubbed(returned)


def check_result(result: TurnResult) -> None:
    """Raise `TypeError` or `ValueError` with one sentence if a result cannot be stored."""
    for name, value in (("text", result.text), ("error", result.error)):
        _require(value is None or isinstance(value, str), f"TurnResult.{name}", "a string", value)
    _require(isinstance(result.api_calls, int), "TurnResult.api_calls", "an int", result.api_calls)
    if result.data is not None:
        _check_data(result.data)
    if result.session_id is not None:
        _check_session_id(result.session_id)
    if result.rows is not None:
        check_rows(result.rows)


def check_files(files: object) -> None:
    """Check the files of a result. Raises `TypeError`."""
    _require(isinstance(files, list | tuple), "TurnResult.files", "a list of attachments", files)
    for file in files if isinstance(files, list | tuple) else ():
        known = isinstance(file, Attachment | StoredFile)
        _require(known, "an item of TurnResult.files", "an Attachment or a StoredFile", file)


def check_calls(calls: object) -> None:
    """Check the calls of a result. Raises `TypeError`."""
    _require(isinstance(calls, list | tuple), "TurnResult.calls", "a list of calls", calls)
    for call in calls if isinstance(calls, list | tuple) else ():
        _require(isinstance(call, ToolCall), "an item of TurnResult.calls", "a ToolCall", call)
        for name, value in msgspec.structs.asdict(call).items():
            _require(isinstance(value, str), f"ToolCall.{name}", "a string", value)


def _scrubbed(result: TurnResult) -> TurnResult:
    """Replace lone surrogates in the error and the data, which hosts may want to encode."""
    shown = [result.error, result.data]
    scrubbed = encodable(shown)
    return result if scrubbed is shown else replace(result, error=scrubbed[0], data=scrubbed[1])


def check_rows(rows: Sequence[Message]) -> None:
    """Check transcript rows. Raises `TypeError` or `ValueError`."""
    _require(isinstance(rows, list | tuple), "rows", "a list of messages", rows)
    for row in rows:
        _require(isinstance(row, Message), "a row", "a Message", row)
        _require(isinstance(row.role, str), "Message.role", "a string", row.role)
        _require_optional_text("Message.content", row.content)
        _require_optional_text("Message.platform_message_id", row.platform_message_id)
        stamp = row.timestamp
        _require(
            stamp is None or isinstance(stamp, int | float), "Message.timestamp", "a number", stamp
        )
        _check_extra(row)


def check_usage(usage: Sequence[Usage]) -> None:
    """Check provider calls. Raises `TypeError` or `ValueError`."""
    _require(isinstance(usage, list | tuple), "usage", "a list of Usage", usage)
    for call in usage:
        check_call(call)


def check_call(call: Usage) -> None:
    """Check one provider call. Raises `TypeError` or `ValueError`."""
    _require(isinstance(call, Usage), "an item of usage", "a Usage", call)
    fields = msgspec.structs.asdict(call)
    try:
        msgspec.convert(fields, Usage)
    except msgspec.ValidationError as error:
        raise TypeError(f"a Usage has a field of the wrong type: {error}") from None
    for name in _TOKEN_FIELDS:
        if not 0 <= fields[name] <= _MAX_INT:
            raise ValueError(f"Usage.{name} is out of range: {fields[name]}")
    if call.cost is not None and not 0.0 <= call.cost < math.inf:
        raise ValueError(f"Usage.cost is out of range: {call.cost}")  # it would lower budgets


def check_depth(value: object) -> None:
    """Raise `ValueError` if JSON is nested more than `MAX_DEPTH` levels deep."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list | tuple)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ValueError(f"the message is nested more than {MAX_DEPTH} levels deep")


def _check_extra(row: Message) -> None:
    values = _extra_values(row)
    if values == _NO_EXTRA:
        return
    check_depth(values)
    fields = dict(zip(_EXTRA_FIELDS, values, strict=True))
    try:
        msgspec.convert(msgspec.to_builtins(fields), Extra)
    except (msgspec.ValidationError, TypeError) as error:
        raise TypeError(f"a Message has a field of the wrong type: {error}") from None


def _check_data(data: object) -> None:
    check_depth(data)
    if _as_json(data) is None:
        raise TypeError(
            "TurnResult.data must be a JSON value: dicts, lists, strings, numbers, None"
        )


def stored_metadata(metadata: object) -> JsonObject:
    """Return metadata as it is stored: with lone surrogates replaced.

    Raises `ValueError` if it is not a dict of JSON values, or is too large.
    """
    with suppress(ValueError):
        check_depth(metadata)
        encoded = _as_json(metadata) if isinstance(metadata, dict) else None
        if encoded is not None and len(encoded) <= MAX_METADATA:
            stored: JsonObject = msgspec.json.decode(encoded)
            return stored
    raise ValueError(
        f"metadata must be a dict of JSON values, of at most {MAX_METADATA} bytes as JSON"
    )


def _as_json(value: object) -> bytes | None:
    """Return a value as JSON; None if it would not be the same when it is read again."""
    with suppress(TypeError, ValueError):
        scrubbed = encodable(value)
        encoded = msgspec.json.encode(scrubbed)
        if msgspec.json.decode(encoded) == scrubbed:
            return encoded
    return None


def _check_session_id(session_id: str) -> None:
    _require(isinstance(session_id, str), "TurnResult.session_id", "a string", session_id)
    if not session_id.isprintable() or len(session_id) > MAX_SESSION_ID:
        raise ValueError(
            f"a session id has at most {MAX_SESSION_ID} printable characters: {session_id[:50]!r}"
        )


def _require_optional_text(name: str, value: object) -> None:
    _require(value is None or isinstance(value, str), name, "a string", value)


def _require(condition: bool, name: str, expected: str, value: object) -> None:
    if not condition:
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")
