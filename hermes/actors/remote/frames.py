"""What nodes tell each other about the events of conversations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.events import ReasoningDelta, RuntimeEvent, TextDelta

log: logging.Logger = logging.getLogger(__name__)


class Ended(msgspec.Struct, frozen=True, tag_field="type", tag="ended"):
    """A turn is on disk, or was refused. Its reply is read from the database."""

    inbox_ids: tuple[int, ...]
    dropped_by: int | None = None
    """The command that cancelled these messages before their turn."""


WireEvent: TypeAlias = RuntimeEvent | Ended


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An event and its turn."""

    turn_id: int | None
    event: WireEvent


class FeedId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Identifies the feed of a conversation. Of two, the greater one is the newer one."""

    fence: int
    """The fence of the owner. It grows whenever the conversation gets another owner."""
    opened: int
    """How many feeds the owner had opened before."""
    node: int


class Published(msgspec.Struct, frozen=True, omit_defaults=True, tag="published"):
    """Numbered events of a conversation, from its owner."""

    key: str
    feed: FeedId
    before: int
    """The number of the last event before these."""
    items: Sequence[Item] = ()
    whole: bool = False
    """Whether the items are the state after event `before`, instead of the events after it."""
    started_at: float | None = None
    """When the running turn of a state began."""


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """A node has listeners for these conversations, or has none any more."""

    node: int
    keys: Sequence[str]
    begins: bool = True


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """A node asks the owner of a conversation for the events after a number of a feed.

    If the feed is another one, or its buffer does not go back that far, the owner sends the state.
    """

    node: int
    key: str
    feed: FeedId | None
    after: int


class Awaiting(msgspec.Struct, frozen=True, tag="awaiting"):
    """Callers on a node wait for the replies to these messages, which are in the database then."""

    node: int
    inbox_ids: Sequence[int]


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The outcomes of these messages are in the database."""

    inbox_ids: Sequence[int]


Frame: TypeAlias = Published | Listening | Missing | Awaiting | Answered

encode: Callable[[object], bytes] = msgspec.json.Encoder().encode
decode: Callable[[bytes | str], list[Frame]] = msgspec.json.Decoder(list[Frame]).decode
_decode_item = msgspec.json.Decoder(Item).decode


def item_of(turn_id: int | None, event: WireEvent) -> Item | None:
    """Return an event as an item; None if it cannot be sent, for an agent may emit anything."""
    item = Item(turn_id, event)
    if isinstance(event, TextDelta | ReasoningDelta):
        return item if type(event.text) is str else Item(turn_id, _with_plain_text(event))
    try:
        _decode_item(encode(item))
    except (TypeError, ValueError, RecursionError) as error:
        log.warning("an event cannot be sent to other nodes: %s", error)
        return None
    return item


def _with_plain_text(event: TextDelta | ReasoningDelta) -> TextDelta | ReasoningDelta:
    return replace(event, text=f"{event.text}")
