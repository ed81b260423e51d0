"""Types of the Bot API, limited to the fields that we use; invalid updates are skipped."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

import attrs
import msgspec

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding invalid JSON: truncated, not text, or nested too deeply."""
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_UPDATE_ID = re.compile(rb'"update_id"\s*:\s*([0-9]{1,18})')


class User(msgspec.Struct, frozen=True):
    """A user or a bot."""

    id: Int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None


class Chat(msgspec.Struct, frozen=True):
    """A private chat, group, supergroup or channel."""

    id: Int
    type: str = "private"
    title: str | None = None
    username: str | None = None
    is_forum: bool = False


class Entity(msgspec.Struct, frozen=True):
    """A marked part of a text; offset and length are in UTF-16 code units."""

    type: str
    offset: Int
    length: Int
    user: User | None = None


class File(msgspec.Struct, frozen=True):
    """A file of a message: a photo size, document, sticker and so on."""

    file_id: str
    mime_type: str | None = None
    file_name: str | None = None
    file_size: Int | None = None
    width: Int = 0
    height: Int = 0
    emoji: str | None = None
    is_animated: bool = False
    is_video: bool = False


class FilePath(msgspec.Struct, frozen=True):
    """Where a file can be downloaded (`File` in the Bot API)."""

    file_path: str | None = None
    file_size: Int | None = None


class Media(msgspec.Struct, frozen=True):
    """The files that a message can have. A message has one of them."""

    photo: list[File] = []
    document: File | None = None
    animation: File | None = None
    audio: File | None = None
    voice: File | None = None
    video: File | None = None
    video_note: File | None = None
    sticker: File | None = None


class Quote(msgspec.Struct, frozen=True):
    """The quoted part of the message that is replied to."""

    text: str = ""


class Topic(msgspec.Struct, frozen=True):
    """Service message: a forum topic was created."""

    name: str = ""


class RepliedMessage(Media, frozen=True, kw_only=True):
    """The message that is replied to."""

    message_id: Int
    sender: User | None = msgspec.field(default=None, name="from")
    text: str | None = None
    caption: str | None = None
    forum_topic_created: Topic | None = None


class Origin(msgspec.Struct, frozen=True):
    """The origin of a forwarded message."""

    type: str = ""


class Location(msgspec.Struct, frozen=True):
    """A geographical location."""

    latitude: float
    longitude: float


class Contact(msgspec.Struct, frozen=True):
    """A phone contact."""

    phone_number: str = ""
    first_name: str = ""


class Post(Media, frozen=True, kw_only=True):
    """A message (`Message` in the Bot API)."""

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
    reply_to_message: RepliedMessage | None = None
    quote: Quote | None = None
    text: str | None = None
    entities: list[Entity] = []
    caption: str | None = None
    caption_entities: list[Entity] = []
    location: Location | None = None
    contact: Contact | None = None
    migrate_to_chat_id: Int | None = None

    @property
    def is_by_another(self) -> bool:
        """Whether its sender did not write it: it was forwarded, or written by an inline bot."""
        return self.forward_origin is not None or self.via_bot is not None


class PressedButton(msgspec.Struct, frozen=True):
    """A button below a message was pressed (`CallbackQuery` in the Bot API)."""

    id: str
    sender: User = msgspec.field(name="from")
    message: Post | None = None
    data: str = ""


class Update(msgspec.Struct, frozen=True):
    """An update, with the kinds that we ask for."""

    update_id: Int
    message: Post | None = None
    edited_message: Post | None = None
    channel_post: Post | None = None
    edited_channel_post: Post | None = None
    callback_query: PressedButton | None = None


class _UpdateId(msgspec.Struct):
    update_id: Int


@attrs.frozen
class InvalidUpdate:
    """An update that cannot be decoded, and why."""

    update_id: int
    why: str


_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_id = msgspec.json.Decoder(_UpdateId).decode
_decode_update = msgspec.json.Decoder(Update).decode


def decode_updates(result: bytes | msgspec.Raw) -> list[Update | InvalidUpdate]:
    """Decode the result of `getUpdates`, each update on its own.

    Items without an update id are left out, because there is nothing to confirm. Raises one of
    `MALFORMED` if the result is not a list.
    """
    updates: list[Update | InvalidUpdate] = []
    for raw in _split(result):
        try:
            update_id = _decode_id(raw).update_id
        except MALFORMED:
            continue
        try:
            updates.append(_decode_update(raw))
        except MALFORMED as error:
            updates.append(InvalidUpdate(update_id, str(error)))
    return updates


def first_update_id(body: bytes) -> int | None:
    """Return the id of the first update in a response that cannot be decoded."""
    found = _UPDATE_ID.search(body)
    return None if found is None else int(found[1])
