"""From an update to a message of ours: who speaks where, whether to us, and what. Nothing waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs
from msgspec.structs import replace

from hermes.actors.session.commands import parse
from hermes.adapters.telegram.bot_api_types import Entity, File, Post, Update, User
from hermes.adapters.telegram.utf16 import cut_out, piece
from hermes.messages import Inbound, JsonObject, Source
from hermes.session_keys import session_key

Groups: TypeAlias = Literal["mention", "all"]

QUOTED = 300
NAMED = 64
CLIENTS_CUT_AT = 4000
"""A text of nearly 4096 characters is probably the first piece of a longer one."""
GENERAL = "1"
"""The topic of a forum that messages without a topic are in; it must not be named when we send."""
_CHAT_TYPES = {"private": "dm", "group": "group", "supergroup": "group", "channel": "channel"}
_KINDS = {
    "document": "document", "animation": "video", "audio": "audio", "voice": "voice",
    "video": "video", "video_note": "video", "sticker": "sticker",
}  # fmt: skip
_COMMAND = re.compile(r"/(\w+)(?:@(\w+))?", re.ASCII)


@attrs.frozen(kw_only=True)
class GroupPolicy:
    """Whom the bot listens to, and how it tells conversations apart."""

    groups: Groups = "mention"
    """In groups: only who mentions it, replies to it or gives a command, or everybody."""
    shared: bool = False
    """Whether all members of a group are in one conversation, instead of one each."""
    threads_per_user: bool = False
    edits: bool = False
    """Whether a message that is edited is said again, as it is now; else edits are ignored."""
    burst_seconds: float = 0.35
    """How long a turn waits for more messages, which then belong to it."""
    album_seconds: float = 1.0
    """The same after a picture of an album, or a text that its client has probably cut."""


@attrs.frozen
class Ignored:
    """An update that nobody needs to answer, and why."""

    why: str


def post_of(update: Update) -> tuple[Post | None, bool]:
    """The message of an update, and whether it is one that was edited."""
    post = update.message or update.channel_post
    edited = update.edited_message or update.edited_channel_post
    return (post, False) if post is not None else (edited, edited is not None)


def inbound_of(
    update: Update,
    me: User,
    manners: GroupPolicy,
    albums: set[str] | None = None,
    home: str | None = None,
) -> Inbound | Ignored:
    """The message that an update is to us.

    `albums` are those that we were already addressed by, `home` the number that a group had when
    its conversations began, where that is another.
    """
    post, edited = post_of(update)
    if post is None:
        return Ignored("of a kind that is not answered")
    if edited and not manners.edits:
        return Ignored("an edit")
    who = _principal(post, me)
    if isinstance(who, Ignored):
        return who
    said = _Said.of(post, me)
    if post.chat.type != "private" and not _is_to_us(post, said, me, manners, albums):
        return Ignored("not said to the bot")
    if not said.text and not said.parts:
        return Ignored("nothing is said")
    source = Source(
        platform="telegram",
        account=str(me.id),
        chat_id=str(post.chat.id),
        chat_type=_CHAT_TYPES.get(post.chat.type, "group"),
        thread_id=_thread(post),
        user_id=str(who[0]),
        user_name=who[1] or None,
    )
    found = _inbound(update.update_id, post, said, source, manners, edited=edited)
    return found if home is None else replace(found, session_key=_key(source, manners, home))


def _inbound(
    update_id: int, post: Post, said: _Said, source: Source, manners: GroupPolicy, *, edited: bool
) -> Inbound:
    # An operator who forwards what a stranger wrote does not mean to obey him.
    command = parse(said.text) is not None and not edited and not post.is_borrowed
    text = said.text if command else _told(post, said.text, source, manners, edited=edited)
    pieces = post.media_group_id or len(said.text) >= CLIENTS_CUT_AT
    return Inbound(
        _key(source, manners, source.chat_id),
        # A number alone is not unique for ever: after an idle week Telegram chooses a new one.
        f"{update_id}:{post.chat.id}:{post.message_id}",
        text,
        source,
        command=command,
        parts=tuple(said.parts) or None,
        platform_message_id=str(post.message_id),
        linger=0.0 if command else manners.album_seconds if pieces else manners.burst_seconds,
        sent_at=float(post.edit_date or post.date) or None,
    )


def _key(source: Source, manners: GroupPolicy, chat_id: str | None) -> str:
    place = replace(source, chat_id=chat_id)
    return session_key(place, shared=manners.shared, threads_per_user=manners.threads_per_user)


def _principal(post: Post, me: User) -> tuple[int, str] | Ignored:
    """Who speaks: a stable id, and a name to show. A chat may speak for itself, or its admins."""
    if post.is_automatic_forward:
        return Ignored("a channel's post, which its group gets by itself")
    if post.sender_chat is not None:
        return post.sender_chat.id, _shown(post.sender_chat.title or "")
    sender = post.sender
    if sender is None:
        # A channel whose posts are not signed speaks for itself.
        return post.chat.id, _shown(post.chat.title or "")
    if sender.is_bot or sender.id == me.id:
        return Ignored("said by a bot")
    return sender.id, _shown(_name(sender))


def _name(user: User) -> str:
    return f"{user.first_name} {user.last_name or ''}".strip() or (user.username or "")


def _shown(name: str) -> str:
    """A name, which anybody chooses for himself, in one short line without signs of ours."""
    return " ".join(re.sub(r"[\[\]:\"]", " ", name).split())[:NAMED]


def _thread(post: Post) -> str | None:
    """The topic; a chain of replies in a group without topics has a number too, and is none."""
    if post.message_thread_id is not None and post.is_topic_message:
        return str(post.message_thread_id)
    return GENERAL if post.chat.is_forum and post.chat.type != "private" else None


@attrs.frozen
class _Said:
    """The text without what only makes it ours, and whether something did."""

    text: str
    parts: list[JsonObject]
    mentioned: bool
    for_another: bool

    @classmethod
    def of(cls, post: Post, me: User) -> _Said:
        raw = post.text if post.text is not None else post.caption or ""
        entities = post.entities if post.text is not None else post.caption_entities
        name = (me.username or "").lower()
        ours = [each for each in entities if _mentions(raw, each, me.id, name)]
        text = cut_out(raw, [(each.offset, each.length) for each in ours])
        if ours:
            text = re.sub(r"[ \t]{2,}", " ", text).strip().lstrip(",:").lstrip()
            text = text or raw  # who only says our name says that
        command, for_another, mentioned = _command(text, name)
        parts = list(_parts(post))
        mark = " ".join(f"[{each['label']}]" for each in parts)
        text = " ".join(filter(None, (mark, _place(post), command.strip())))
        return cls(text, parts, bool(ours) or mentioned, for_another)


def _mentions(text: str, entity: Entity, my_id: int, name: str) -> bool:
    if entity.type == "text_mention":
        return entity.user is not None and entity.user.id == my_id
    found = entity.type == "mention" and piece(text, entity.offset, entity.length)
    return bool(found) and bool(name) and str(found).lower() == f"@{name}"


def _command(text: str, name: str) -> tuple[str, bool, bool]:
    """The text with a command as we write it; is it for another bot, and does it name us?"""
    found = _COMMAND.match(text)
    if found is None:
        return text, False, False
    whose = (found[2] or "").lower()
    if whose and whose != name:
        return text, True, False
    rest = text[found.end() :]
    if found[1].lower() == "start":  # what the button says that begins a chat with a bot
        return "/help", False, bool(whose)
    return f"/{found[1]}{rest}", False, bool(whose)


def _is_to_us(
    post: Post, said: _Said, me: User, manners: GroupPolicy, albums: set[str] | None
) -> bool:
    if said.for_another and not said.mentioned:
        return False
    commanded = parse(said.text) is not None and not post.is_borrowed
    addressed = said.mentioned or manners.groups == "all" or commanded
    replied = _replied(post)
    addressed = addressed or (replied is not None and replied[0] == me.id)
    if post.media_group_id and albums is not None:
        # Only one picture of an album has the caption that mentions us.
        addressed = addressed or post.media_group_id in albums
        if addressed:
            albums.add(post.media_group_id)
    return addressed


def _replied(post: Post) -> tuple[int | None, str, str] | None:
    """Whom a message replies to: id, name and text. All messages of a topic reply to its start."""
    to = post.reply_to_message
    if to is None or to.forum_topic_created is not None:
        return None
    text = post.quote.text if post.quote is not None else to.text or to.caption or ""
    if to.sender is None:
        return None, "", text
    return to.sender.id, _shown(_name(to.sender)), text


def _told(post: Post, text: str, source: Source, manners: GroupPolicy, *, edited: bool) -> str:
    """The text with what an agent needs to understand it: who speaks, and to what."""
    before = []
    replied = _replied(post)
    if replied is not None and replied[2].strip():
        quote = " ".join(replied[2].replace('"', "'").split())
        quote = quote if len(quote) <= QUOTED else f"{quote[: QUOTED - 1]}…"
        before.append(f'[In reply to {replied[1] or "somebody"}: "{quote}"]\n')
    together = manners.shared or (source.thread_id is not None and not manners.threads_per_user)
    if source.chat_type != "dm" and together and source.user_name:
        before.append(f"{source.user_name}: ")
    if post.forward_origin is not None:
        before.append("(forwarded) ")
    if edited:
        before.append("(edited) ")
    return "".join(before) + text


def _parts(post: Post) -> Iterator[JsonObject]:
    """What came with the message, as references: nothing is downloaded."""
    if post.photo:
        best = max(post.photo, key=lambda file: file.file_size or 0)
        yield _reference("image", "photo", best, post, "image/jpeg")
    for field, kind in _KINDS.items():
        file: File | None = getattr(post, field)
        # A moving picture comes as a document as well, for clients that do not know such.
        if file is not None and not (field == "document" and post.animation is not None):
            yield _reference(kind, kind, file, post, file.mime_type)


def _reference(kind: str, name: str, file: File, post: Post, mime: str | None) -> JsonObject:
    label = " ".join(filter(None, (name, _shown(file.file_name or file.emoji or ""))))
    found = {
        "type": kind,
        "ref": f"telegram:{file.file_id}",
        "label": label,
        "mime": mime,
        "name": file.file_name,
        "size": file.file_size,
        "caption": post.caption,
    }
    return {name: value for name, value in found.items() if value is not None}


def _place(post: Post) -> str:
    if post.location is not None:
        return f"[location {post.location.latitude:.5f}, {post.location.longitude:.5f}]"
    if post.contact is not None:
        return f"[contact {_shown(post.contact.first_name)} {_shown(post.contact.phone_number)}]"
    return ""
