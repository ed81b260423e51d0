"""What the Bot API tells us, as far as we read it. What cannot be read is skipped, never raised."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import attrs
import msgspec

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading JSON raises where it is none: broken off, not text, or nested without end."""
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_FIRST_ID = re.compile(rb'"update_id"\s*:\s*([0-9]{1,18})')


class User(msgspec.Struct, frozen=True):
    """A person or a bot."""

    id: Int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None


class Chat(msgspec.Struct, frozen=True):
    """A place where people talk: private, group, supergroup or channel."""

    id: Int
    type: str = "private"
    title: str | None = None
    username: str | None = None
    is_forum: bool = False


class Entity(msgspec.Struct, frozen=True):
    """A special piece of a text; offset and length count UTF-16 units."""

    type: str
    offset: Int
    length: Int
    user: User | None = None


class File(msgspec.Struct, frozen=True):
    """Something that could be downloaded."""

    file_id: str
    mime_type: str | None = None
    file_name: str | None = None
    file_size: Int | None = None
    emoji: str | None = None


class Quote(msgspec.Struct, frozen=True):
    """The piece of a message that is replied to."""

    text: str = ""


class Topic(msgspec.Struct, frozen=True):
    """The beginning of a topic."""

    name: str = ""


class Replied(msgspec.Struct, frozen=True):
    """A message that is replied to."""

    message_id: Int
    sender: User | None = msgspec.field(default=None, name="from")
    text: str | None = None
    caption: str | None = None
    forum_topic_created: Topic | None = None


class Origin(msgspec.Struct, frozen=True):
    """Where a message was forwarded from."""

    type: str = ""


class Location(msgspec.Struct, frozen=True):
    """A place on earth."""

    latitude: float
    longitude: float


class Contact(msgspec.Struct, frozen=True):
    """A card with somebody's number."""

    phone_number: str = ""
    first_name: str = ""


class Post(msgspec.Struct, frozen=True):
    """A message."""

    message_id: Int
    chat: Chat
    date: Int = 0
    edit_date: Int | None = None
    sender: User | None = msgspec.field(default=None, name="from")
    sender_chat: Chat | None = None
    message_thread_id: Int | None = None
    is_topic_message: bool = False
    is_automatic_forward: bool = False
    forward_origin: Origin | None = None
    via_bot: User | None = None
    media_group_id: str | None = None
    reply_to_message: Replied | None = None
    quote: Quote | None = None
    text: str | None = None
    entities: list[Entity] = []
    caption: str | None = None
    caption_entities: list[Entity] = []
    photo: list[File] = []
    document: File | None = None
    animation: File | None = None
    audio: File | None = None
    voice: File | None = None
    video: File | None = None
    video_note: File | None = None
    sticker: File | None = None
    location: Location | None = None
    contact: Contact | None = None
    migrate_to_chat_id: Int | None = None

    @property
    def is_borrowed(self) -> bool:
        """Whether its words are not those of who sent it: forwarded, or written by another bot."""
        return self.forward_origin is not None or self.via_bot is not None


class Update(msgspec.Struct, frozen=True):
    """Something that happened; the kinds that we ask for."""

    update_id: Int
    message: Post | None = None
    edited_message: Post | None = None
    channel_post: Post | None = None
    edited_channel_post: Post | None = None


class _Numbered(msgspec.Struct):
    update_id: Int


@attrs.frozen
class Unread:
    """An update that cannot be read, and why."""

    update_id: int
    why: str


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_number = msgspec.json.Decoder(_Numbered).decode
_read = msgspec.json.Decoder(Update).decode


def read_updates(result: bytes | msgspec.Raw) -> list[Update | Unread]:
    """The updates of an answer, each for itself. One that is no list raises one of `MALFORMED`.

    What has not even a number is left out: there is nothing to confirm about it.
    """
    found: list[Update | Unread] = []
    for raw in _split(result):
        try:
            update_id = _number(raw).update_id
        except MALFORMED:
            continue
        try:
            found.append(_read(raw))
        except MALFORMED as error:
            found.append(Unread(update_id, str(error)))
    return found


def first_number(answer: bytes) -> int | None:
    """The number of the first update in an answer that cannot be read at all."""
    found = _FIRST_ID.search(answer)
    return None if found is None else int(found[1])
