"""Construct outbox rows."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from msgspec.structs import replace

from hermes.messages import Approval, InboxReply, InboxRow, JsonObject, Outbound, Reply, Source

_ADDRESS = ("platform", "account", "chat_id", "thread_id", "user_id")
_address_of = operator.attrgetter(*_ADDRESS)


def lane_of(source: Source, session_key: str) -> str:
    """Return the name of the chat within which replies are sent in order."""
    chat = source.chat_id or session_key
    return "/".join((source.platform, source.account, chat, source.thread_id or ""))


def outbox_rows(
    source: Source, session_key: str, session_id: str, text: str, kind: str, to: str | None = None
) -> list[Outbound]:
    """Return the outbox rows of a text sent to a chat, as a reply to the platform message `to`."""
    address = dict(zip(_ADDRESS, _address_of(source), strict=True))
    body = {"kind": kind, "text": text, **address, "session_id": session_id, "reply_to": to}
    return [Outbound(lane_of(source, session_key), body)]


def question_rows(source: Source, approval: Approval, session_id: str, text: str) -> list[Outbound]:
    """Return the outbox rows of a question about a tool call."""
    rows = outbox_rows(source, approval.session_key, session_id, text, "notice")
    return [replace(row, body={**row.body, "approval": approval.approval_id}) for row in rows]


def reply_rows(row: InboxRow, session_id: str, text: str, kind: str = "reply") -> list[Outbound]:
    """Return the outbox rows of a reply to a message; none for an empty text.

    The client of an API gets its reply as the response to its request, which may name a chat, too.
    """
    inbound, reply_to = row.inbound, row.inbound.platform_message_id
    to = inbound.source if inbound.request is None else inbound.request.deliver
    if not text or to is None:
        return []
    return outbox_rows(to, inbound.session_key, session_id, text, kind, reply_to)


def inbox_reply(
    rows: Sequence[InboxRow], session_id: str, text: str, kind: str = "reply"
) -> InboxReply:
    """Close messages that get no turn; in each chat, the last message is replied to.

    The last one is a command, or refused by a notice; the others were cancelled by it.
    """
    *cancelled, last = rows
    key = last.inbound.session_key
    last_of_chat = {lane_of(row.inbound.source, key): row for row in rows}.values()
    reply = Reply(
        text=text,
        session_id=session_id,
        turn_id=last.inbox_id,
        status="refused" if kind == "notice" else "command",
        metadata=last.inbound.metadata,
    )
    return InboxReply(
        session_key=key,
        inbox_ids=[row.inbox_id for row in rows],
        outbox=[each for row in last_of_chat for each in reply_rows(row, session_id, text, kind)],
        reply=reply,
        dropped=dropped_reply(cancelled, reply) if cancelled else None,
    )


def dropped_reply(cancelled: Sequence[InboxRow], reply: Reply) -> Reply:
    """Return the reply to messages that a command cancelled, from the reply to the command."""
    first, metadata = cancelled[0].inbox_id, metadata_of(cancelled)
    return replace(reply, turn_id=first, status="refused", metadata=metadata)


def metadata_of(rows: Sequence[InboxRow]) -> JsonObject:
    """Return the metadata of messages that are answered together; the last of a name counts."""
    return {name: value for row in rows for name, value in row.inbound.metadata.items()}
