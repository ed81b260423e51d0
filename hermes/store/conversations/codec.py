"""Convert messages to transcript rows and back."""

from __future__ import annotations

import json
import logging
import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from hermes.messages import Extra, Message, StoredMessage
from hermes.sanitize import scrub
from hermes.store.transaction import Row
from hermes.transcript.validate import MAX_DEPTH, check_depth

log: logging.Logger = logging.getLogger(__name__)

SPAN = 1 << 32
"""The number of message ids per session; session `no` has the ids from `no * SPAN + 1` on."""
LAST_ID = 2**63 - 1
"""No id is larger."""
COLUMNS = "id, role, content, created_at, platform_message_id, extra"

# A string that does not end takes the rest of the text, which is then read only once.
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_ENCODER = msgspec.json.Encoder()
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""U+0000 in JSON text: the backslash before the u is not escaped itself."""
decode_extra: Final = msgspec.json.Decoder(Extra).decode
_EXTRA_NAMES = Extra.__struct_fields__
_extra_values = operator.attrgetter(*_EXTRA_NAMES)
_DEFAULTS = _extra_values(Extra())


def bounds(no: int) -> tuple[int, int]:
    """Return the lowest and highest possible message id of a session."""
    return no * SPAN, no * SPAN + SPAN - 1


def session_of(message_id: int) -> int:
    """Return the number of the session that a message belongs to."""
    return message_id // SPAN


def extra_fields(message: Extra) -> dict[str, Any]:
    """Return the optional fields of a message by name."""
    return dict(zip(_EXTRA_NAMES, _extra_values(message), strict=True))


def encode_extra(message: Extra) -> str | None:
    """Return the optional fields of a message as JSON, or None if all have their defaults.

    Raises `ValueError` if they cannot be stored.
    """
    return None if _extra_values(message) == _DEFAULTS else _encode_fields(message)


def _encode_fields(message: Extra) -> str:
    check_depth((message.parts, message.reasoning_details, message.provider_data))
    try:
        encoded = encode_json(Extra(**extra_fields(message)))
        decode_extra(encoded)  # refuse what could not be read again
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"the message has a field of the wrong type: {error}") from None
    return encoded


def encode_json(value: object) -> str:
    """Return the value as JSON text, with lone surrogates and U+0000 replaced."""
    try:
        encoded = _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        encoded = scrub(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))
    return without_nul_escape(encoded)


def without_nul_escape(encoded: str) -> str:
    """Return JSON text with the escape sequence of U+0000 replaced."""
    return _NUL.sub("\\1\ufffd", encoded) if "\\u0000" in encoded else encoded


def without_nul(name: str | None) -> str | None:
    """Return an id of another system as it is stored: with U+0000 replaced."""
    return name.replace("\0", "\ufffd") if name and "\0" in name else name


def is_too_deep(text: str, levels: int = MAX_DEPTH) -> bool:
    """Return whether JSON text is nested so deeply that decoding it might exhaust the stack."""
    depth = 0
    for token in _NESTING.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
        if depth > levels:
            return True
    return False


def text_of(message: Message | StoredMessage) -> str | None:
    """Return the searchable text: the content, or the text parts of a structured message."""
    return _text_of_parts(message) if message.content is None else scrub(message.content)


def _text_of_parts(message: Message | StoredMessage) -> str | None:
    texts = [p["text"] for p in message.parts or () if isinstance(p.get("text"), str)]
    return scrub("\n".join(texts)) or None


def to_messages(rows: Iterable[Row]) -> list[StoredMessage]:
    """Return messages for rows that were selected with `COLUMNS`."""
    return [
        StoredMessage(id_, role, content, at, platform_id)
        if extra is None
        else _with_extra(id_, role, content, at, platform_id, extra)
        for id_, role, content, at, platform_id, extra in rows
    ]


def _with_extra(
    id_: int, role: str, content: str | None, at: float, platform_id: str | None, extra: str
) -> StoredMessage:
    fields = extra_fields(decode_extra(extra))
    return StoredMessage(id_, role, content, at, platform_id, **fields)


def as_message(stored: StoredMessage) -> Message:
    """Return a stored message without its id, ready to be appended to another session."""
    return Message(
        stored.role,
        stored.content,
        stored.timestamp,
        stored.platform_message_id,
        **extra_fields(stored),
    )


def tool_calls_in(messages: Sequence[Extra]) -> int:
    """Return the number of tool calls that the messages request; results are not counted."""
    return sum([len(message.tool_calls) for message in messages])
