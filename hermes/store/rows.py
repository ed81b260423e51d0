"""Transcript rows: how a message becomes a row and a row a message."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import msgspec

from hermes.messages import Extra, Message, StoredMessage
from hermes.store.tx import Row

SPAN = 1 << 32
"""How many ids a session has; its messages are `no * SPAN + 1` and up."""
COLUMNS = "id, role, content, created_at, platform_message_id, extra"

_ENCODER = msgspec.json.Encoder()
_DECODE = msgspec.json.Decoder(Extra).decode
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
    return _ENCODER.encode(Extra(**dict(zip(_EXTRA, values, strict=True)))).decode()


def text_of(message: Message | StoredMessage) -> str | None:
    """What a search finds: the text, or the text parts of a structured message."""
    if message.content is not None or message.parts is None:
        return message.content
    texts = [part["text"] for part in message.parts if isinstance(part.get("text"), str)]
    return "\n".join(texts) or None


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
    rest = _DECODE(extra)
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
    return sum(len(message.tool_calls) for message in messages)


def encode_json(value: list[str] | dict[str, str]) -> str:
    """JSON text for a parameter of SQL."""
    return _ENCODER.encode(value).decode()
