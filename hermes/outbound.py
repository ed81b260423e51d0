"""Construct outbox rows."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.messages import InboxReply, InboxRow, Outbound, Source


def lane_of(source: Source, session_key: str) -> str:
    """Return the name of the chat within which replies are sent in order."""
    chat = source.chat_id or session_key
    return "/".join((source.platform, source.account, chat, source.thread_id or ""))


def outbox_rows(
    source: Source,
    session_key: str,
    session_id: str,
    text: str,
    kind: str,
    reply_to: str | None = None,
) -> list[Outbound]:
    """Return the outbox rows of a text sent to a chat; `reply_to` is a platform message id."""
    body = {
        "kind": kind,
        "text": text,
        "platform": source.platform,
        "account": source.account,
        "chat_id": source.chat_id,
        "thread_id": source.thread_id,
        "user_id": source.user_id,
        "session_id": session_id,
        "reply_to": reply_to,
    }
    return [Outbound(lane_of(source, session_key), body)]


def reply_rows(row: InboxRow, session_id: str, text: str, kind: str = "reply") -> list[Outbound]:
    """Return the outbox rows of a reply to a message; none for an empty text."""
    if not text:
        return []
    inbound = row.inbound
    reply_to = inbound.platform_message_id
    return outbox_rows(inbound.source, inbound.session_key, session_id, text, kind, reply_to)


def inbox_reply(
    rows: Sequence[InboxRow], session_id: str, text: str, kind: str = "reply"
) -> InboxReply:
    """Close messages that get no turn; in each chat, the last message is replied to."""
    key = rows[-1].inbound.session_key
    last_of_chat = {lane_of(row.inbound.source, key): row for row in rows}.values()
    return InboxReply(
        session_key=key,
        inbox_ids=[row.inbox_id for row in rows],
        outbox=[each for row in last_of_chat for each in reply_rows(row, session_id, text, kind)],
    )
