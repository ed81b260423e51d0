"""Transcript rows: how a message becomes a row and a row a message."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Sequence

import msgspec

from hermes.messages import Extra, Message, StoredMessage
from hermes.store.transaction import Row

SPAN = 1 << 32
"""How many ids a session has; its messages are `no * SPAN + 1` and up."""
MAX_DEPTH = 100
COLUMNS = "id, role, content, created_at, platform_message_id, extra"

_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ENCODER = msgspec.json.Encoder()
decode_extra = msgspec.json.Decoder(Extra).decode
_EXTRA = Extra.__struct_fields__
_extra_values = operator.attrgetter(*_EXTRA)
_NOTHING = _extra_values(Extra())


def bounds(no: int) -> tuple[int, int]:
    """The first and last possible message id of a session."""
    return no * SPAN, no * SPAN + SPAN - 1


def extra_of(message: Extra) -> str | None:
    """The JSON of what only some messages have, or None."""
    values = _extra_values(message)
    if values == _NOTHING:
        return None
    require_shallow((message.parts, message.reasoning_details, message.provider_data))
    extra = Extra(**dict(zip(_EXTRA, values, strict=True)))
    try:
        encoded = encode_whole(extra)
        decode_extra(encoded)  # what cannot be read again must not be stored
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"the message has a field of a wrong kind: {error}") from None
    return encoded


def encode_whole(value: object) -> str:
    """JSON text, without halves of characters."""
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError:
        return whole_text(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def whole_text(text: str) -> str:
    """The text without halves of characters, which a model may emit and no file can hold."""
    if text.isascii():
        return text
    return text.encode(errors="replace").decode()


def require_shallow(value: object) -> None:
    """Refuse JSON that is nested so deeply that it might not be read again."""
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


def is_deep(text: str, levels: int = MAX_DEPTH) -> bool:
    """Whether JSON is nested so deeply that reading it might exhaust the stack."""
    depth = 0
    for token in _NESTING.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token, 0)
        if depth > levels:
            return True
    return False


def text_of(message: Message | StoredMessage) -> str | None:
    """What a search finds: the text, or the text parts of a structured message."""
    if message.content is not None:
        return whole_text(message.content)
    texts = [p["text"] for p in message.parts or () if isinstance(p.get("text"), str)]
    return whole_text("\n".join(texts)) or None


def to_messages(rows: Iterable[Row]) -> list[StoredMessage]:
    """Messages from rows of `COLUMNS`."""
    return [
        StoredMessage(id_, role, content, at, platform_id)
        if extra is None
        else _whole(id_, role, content, at, platform_id, extra)
        for id_, role, content, at, platform_id, extra in rows
    ]


def _whole(
    id_: int, role: str, content: str | None, at: float, platform_id: str | None, extra: str
) -> StoredMessage:
    rest = decode_extra(extra)
    fields = {name: getattr(rest, name) for name in _EXTRA}
    return StoredMessage(id_, role, content, at, platform_id, **fields)


def as_message(stored: StoredMessage) -> Message:
    """The message without its place, ready to be appended elsewhere."""
    fields = {name: getattr(stored, name) for name in _EXTRA}
    return Message(
        stored.role, stored.content, stored.timestamp, stored.platform_message_id, **fields
    )


def tool_calls_in(messages: Sequence[Extra]) -> int:
    """How many tool calls the messages ask for; results are not counted."""
    return sum([len(message.tool_calls) for message in messages])
