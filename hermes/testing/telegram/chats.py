"""Chats, and the messages of the bot in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

from hermes.actors.delivery.split import utf16
from hermes.messages import JsonObject
from hermes.testing.telegram.errors import ApiError
from hermes.testing.telegram.uploads import UploadedFile

ChatType: TypeAlias = Literal["private", "group", "supergroup", "channel"]


@attrs.define
class SentMessage:
    """A message of the bot as its chat shows it now."""

    message_id: int
    text: str
    thread_id: int | None
    reply_to: int | None
    at: float
    parsed: bool = False
    """Whether it was sent with a parse mode."""
    deleted: bool = False
    buttons: dict[str, str] = attrs.Factory(dict)
    """What each button below the message sends, by its text."""
    versions: list[str] = attrs.Factory(list)
    """The texts that it showed before."""
    file: UploadedFile | None = None
    """Its file; then `text` is the caption."""


@attrs.define
class Chat:
    """A chat, and the messages of the bot in it."""

    id: int
    type: ChatType
    title: str = ""
    is_forum: bool = False
    topics: set[int] = attrs.Factory(set)
    messages: list[SentMessage] = attrs.Factory(list)
    gone: str | None = None
    """Why nothing can be sent: the description of error 403."""
    moved_to: int | None = None
    typing: int = 0
    """How many typing indicators were shown."""

    @property
    def texts(self) -> list[str]:
        """The texts that the messages of the bot show now, without captions."""
        return [m.text for m in self.messages if not m.deleted and m.file is None]

    @property
    def files(self) -> list[UploadedFile]:
        """The files in the messages of the bot."""
        return [m.file for m in self.messages if not m.deleted and m.file is not None]

    def find(self, message_id: object, purpose: str) -> SentMessage:
        """Return a message of the bot; `purpose` is part of the error if there is none."""
        for message in self.messages:
            if message.message_id == message_id and not message.deleted:
                return message
        raise ApiError(400, f"Bad Request: message to {purpose} not found")

    def as_json(self) -> JsonObject:
        """Return the chat as the Bot API shows it."""
        chat: JsonObject = {"id": self.id, "type": self.type}
        return {**chat, "is_forum": True} if self.is_forum else chat


def entities_of(text: str) -> Sequence[JsonObject]:
    """Return the mentions and commands in a text, as clients mark them."""
    found = []
    offset = 0
    for word in text.split(" "):
        kind = {"@": "mention", "/": "bot_command"}.get(word[:1])
        if kind and len(word) > 1:
            found.append({"type": kind, "offset": offset, "length": utf16(word.rstrip(",.!?:"))})
        offset += utf16(word) + 1
    return found


def buttons_of(params: JsonObject) -> dict[str, str]:
    """Return what the buttons of a call send, by their texts."""
    rows = params.get("reply_markup", {}).get("inline_keyboard", [])
    return {each["text"]: each["callback_data"] for row in rows for each in row}
