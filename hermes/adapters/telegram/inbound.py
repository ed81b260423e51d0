"""Converts an update to an inbound message: who wrote it, where, whether to the bot, and what.

Everything here is synchronous and has no side effects except on `albums`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal, TypeAlias

import attrs
from msgspec.structs import replace

from hermes.actors.commands import parse, recognize
from hermes.adapters.telegram import utf16
from hermes.adapters.telegram.bot_api_types import Entity, Post, Update, User
from hermes.adapters.telegram.media import MAX_DOWNLOAD, file_of, label_of
from hermes.messages import Inbound, Source
from hermes.sanitize import one_line, shorten
from hermes.session_keys import background_origin, session_key

Groups: TypeAlias = Literal["mention", "all"]

PLATFORM = "telegram"
MAX_QUOTE = 300
MAX_NAME = 64
CLIENT_SPLIT = 4000
"""Clients split texts at 4096 characters: a text of about that length probably continues."""
GENERAL_TOPIC = "1"
"""The forum topic of messages without a topic. Telegram rejects its id when sending."""
_CHAT_TYPES = {"private": "dm", "group": "group", "supergroup": "group", "channel": "channel"}
_BUTTON = re.compile(r"((?:approve|approve always|deny) [0-9]{1,18})(?: ([0-9a-f]{8}))?", re.ASCII)
_COMMAND = re.compile(r"/(\w+)(?:@(\w+))?", re.ASCII)
_NAME_SYNTAX = re.compile(r"[\[\]:\"]")


@attrs.frozen(kw_only=True)
class GroupPolicy:
    """Whom the bot answers in groups, and how it separates conversations."""

    groups: Groups = "mention"
    """`mention`: answer mentions, replies to the bot, and commands. `all`: answer everything."""
    shared: bool = False
    """Whether all members of a group share one conversation; otherwise each has its own."""
    threads_per_user: bool = False
    """Whether each member has its own conversation in a topic, which is shared otherwise."""
    edits: bool = False
    """Whether an edited message is submitted again; otherwise edits are ignored."""
    burst_seconds: float = 0.35
    """How long a turn waits for further messages, which then become part of it."""
    album_seconds: float = 1.0
    """The same after a picture of an album, or a text that the client has probably split."""


@attrs.frozen
class Ignored:
    """An update that needs no answer, and why."""

    why: str


def post_of(update: Update) -> tuple[Post | None, bool]:
    """Return the message of an update, and whether it was edited."""
    post = update.message or update.channel_post
    edited = update.edited_message or update.edited_channel_post
    return (post, False) if post is not None else (edited, edited is not None)


def inbound_of(
    update: Update,
    bot: User,
    policy: GroupPolicy,
    albums: set[str] | None = None,
    original_chat_id: str | None = None,
    max_file_size: int = MAX_DOWNLOAD,
) -> Inbound | Ignored:
    """Convert an update to an inbound message without its file, or say why it is ignored.

    `albums` holds the ids of albums that are addressed to the bot; it is updated.
    `original_chat_id` is the id that a group had when its conversations started, if it has changed.
    A file of more than `max_file_size` bytes is only named in the text.
    """
    post, edited = post_of(update)
    if post is None:
        return Ignored("unsupported kind of update")
    if edited and not policy.edits:
        return Ignored("edited message")
    author = _author(post, bot)
    if isinstance(author, Ignored):
        return author
    content = _Content.of(post, bot, max_file_size)
    if post.chat.type != "private" and not _is_addressed(post, content, bot, policy, albums):
        return Ignored("not addressed to the bot")
    if not content.text and not content.has_file:
        return Ignored("no content")
    source = _source(post, bot, author)
    key = _key(source, policy, original_chat_id)
    return _inbound(key, update, post, content, source, policy)


def pressed_inbound(
    update: Update, bot: User, policy: GroupPolicy, original_chat_id: str | None = None
) -> Inbound | Ignored:
    """Convert a pressed button to the command that it stands for.

    A button below the question to another user is ignored.
    """
    button = update.callback_query
    found = None if button is None else _BUTTON.fullmatch(button.data)
    if button is None or button.message is None or found is None:
        return Ignored("unknown button")
    post = button.message
    source = _source(post, bot, (button.sender.id, _clean_name(_full_name(button.sender))))
    key = _key(source, policy, original_chat_id)
    if found[2] not in {None, owner_of(key)}:
        return Ignored("the button of another user")
    return Inbound(
        key, f"{update.update_id}:button:{button.id}", f"/{found[1]}", source, command=True
    )


def owner_of(key: str) -> str:
    """Return a short digest of the conversation whose user decides about a call."""
    started_by = background_origin(key)
    asked_of = key if started_by is None else started_by[0]
    return hashlib.sha256(asked_of.encode()).hexdigest()[:8]


def _source(post: Post, bot: User, author: tuple[int, str]) -> Source:
    return Source(
        platform=PLATFORM,
        account=str(bot.id),
        chat_id=str(post.chat.id),
        chat_type=_CHAT_TYPES.get(post.chat.type, "group"),
        thread_id=_thread(post),
        user_id=str(author[0]),
        user_name=author[1] or None,
    )


def _key(source: Source, policy: GroupPolicy, original_chat_id: str | None) -> str:
    return session_key(
        replace(source, chat_id=original_chat_id or source.chat_id),
        shared=policy.shared,
        threads_per_user=policy.threads_per_user,
    )


def _inbound(
    key: str, update: Update, post: Post, content: _Content, source: Source, policy: GroupPolicy
) -> Inbound:
    _, edited = post_of(update)
    # A forwarded command is not a command: an operator may forward the text of an unknown user.
    text, command = recognize(content.text)
    command = command and not (edited or post.is_by_another or content.has_file)
    if not command:
        text = _with_context(post, text, source, policy, edited=edited)
    continues = post.media_group_id or len(content.text) >= CLIENT_SPLIT
    return Inbound(
        key,
        # The update id alone is not unique: after an idle week Telegram starts with a new number.
        f"{update.update_id}:{post.chat.id}:{post.message_id}",
        text,
        source,
        command=command,
        platform_message_id=str(post.message_id),
        edits=str(post.message_id) if edited else None,
        linger=0.0 if command else policy.album_seconds if continues else policy.burst_seconds,
        sent_at=float(post.edit_date or post.date) or None,
    )


def _author(post: Post, bot: User) -> tuple[int, str] | Ignored:
    """Return the id and name of the author: a user, a channel, or a group for anonymous admins."""
    if post.is_automatic_forward:
        return Ignored("automatic forward of a channel post")
    if post.sender_chat is not None:
        return post.sender_chat.id, _clean_name(post.sender_chat.title or "")
    sender = post.sender
    if sender is None:  # an unsigned channel post
        return post.chat.id, _clean_name(post.chat.title or "")
    if sender.is_bot or sender.id == bot.id:
        return Ignored("sent by a bot")
    return sender.id, _clean_name(_full_name(sender))


def _full_name(user: User) -> str:
    return f"{user.first_name} {user.last_name or ''}".strip() or (user.username or "")


def _clean_name(name: str) -> str:
    """Return a name, which users choose freely, as a short line without our own syntax."""
    return one_line(_NAME_SYNTAX.sub(" ", name))[:MAX_NAME]


def _thread(post: Post) -> str | None:
    """Return the forum topic; reply chains in other groups have a thread id too, but no topic."""
    if post.message_thread_id is not None and post.is_topic_message:
        return str(post.message_thread_id)
    return GENERAL_TOPIC if post.chat.is_forum and post.chat.type != "private" else None


@attrs.frozen
class _Content:
    """The text without mentions of the bot, whether there is a file, and who is addressed."""

    text: str
    has_file: bool
    """Whether a file is to be downloaded."""
    mentioned: bool
    for_another: bool

    @classmethod
    def of(cls, post: Post, bot: User, max_file_size: int) -> _Content:
        raw = post.text if post.text is not None else post.caption or ""
        entities = post.entities if post.text is not None else post.caption_entities
        username = (bot.username or "").lower()
        mentions = [each for each in entities if _is_mention(raw, each, bot.id, username)]
        text = utf16.remove(raw, [(each.offset, each.length) for each in mentions])
        if mentions:
            text = re.sub(r"[ \t]{2,}", " ", text).strip().lstrip(",:").lstrip()
            text = text or raw  # the mention is all there is
        command, for_another, named = _command(text, username)
        file, note = file_of(post, max_file_size)
        text = " ".join(filter(None, (note, _location(post), command.strip())))
        return cls(text, file is not None, bool(mentions) or named, for_another)


def _is_mention(text: str, entity: Entity, bot_id: int, username: str) -> bool:
    if entity.type == "text_mention":
        return entity.user is not None and entity.user.id == bot_id
    if entity.type != "mention" or not username:
        return False
    return utf16.extract(text, entity.offset, entity.length).lower() == f"@{username}"


def _command(text: str, username: str) -> tuple[str, bool, bool]:
    """Return the text with a normalized command, whether it is for another bot or names this one.

    `/new@our_bot` becomes `/new`. `/start` may have a parameter of the link that opened the chat,
    which is dropped.
    """
    found = _COMMAND.match(text)
    if found is None:
        return text, False, False
    addressee = (found[2] or "").lower()
    if addressee and addressee != username:
        return text, True, False
    rest = text[found.end() :]
    if found[1].lower() == "start":
        return "/start", False, bool(addressee)
    return f"/{found[1]}{rest}", False, bool(addressee)


def _is_addressed(
    post: Post, content: _Content, bot: User, policy: GroupPolicy, albums: set[str] | None
) -> bool:
    if content.for_another and not content.mentioned:
        return False
    own = not (post.is_by_another or content.has_file)
    is_command = own and parse(content.text, PLATFORM) is not None
    addressed = content.mentioned or policy.groups == "all" or is_command
    replied = _replied(post)
    addressed = addressed or (replied is not None and replied[0] == bot.id)
    if post.media_group_id and albums is not None:
        # Only one picture of an album has the caption with the mention.
        addressed = addressed or post.media_group_id in albums
        if addressed:
            albums.add(post.media_group_id)
    return addressed


def _replied(post: Post) -> tuple[int | None, str, str] | None:
    """Return the author's id and name, and the text, of the message that is replied to.

    Every message of a topic formally replies to the creation of the topic, which does not count.
    """
    to = post.reply_to_message
    if to is None or to.forum_topic_created is not None:
        return None
    text = post.quote.text if post.quote is not None else to.text or to.caption or ""
    text = " ".join(filter(None, (label_of(to), text)))
    if to.sender is None:
        return None, "", text
    return to.sender.id, _clean_name(_full_name(to.sender)), text


def _with_context(
    post: Post, text: str, source: Source, policy: GroupPolicy, *, edited: bool
) -> str:
    """Return the text with what an agent needs to understand it: the author and the quote."""
    prefix = []
    replied = _replied(post)
    if replied is not None and replied[2].strip():
        quote = shorten(replied[2].replace('"', "'"), MAX_QUOTE)
        prefix.append(f'[In reply to {replied[1] or "somebody"}: "{quote}"]\n')
    in_shared_topic = source.thread_id is not None and not policy.threads_per_user
    if source.chat_type != "dm" and (policy.shared or in_shared_topic) and source.user_name:
        prefix.append(f"{source.user_name}: ")
    if post.forward_origin is not None:
        prefix.append("(forwarded) ")
    if edited:
        prefix.append("(edited) ")
    return ("".join(prefix) + text).rstrip() if prefix else text


def _location(post: Post) -> str:
    if post.location is not None:
        return f"[location {post.location.latitude:.5f}, {post.location.longitude:.5f}]"
    if post.contact is not None:
        name, number = _clean_name(post.contact.first_name), _clean_name(post.contact.phone_number)
        return f"[contact {name} {number}]"
    return ""
