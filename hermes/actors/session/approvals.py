"""`/approve` and `/deny`: a user decides about a tool call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages import (
    Approval,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    InboxRow,
)
from hermes.protocols import ToolRecords
from hermes.texts import Texts

MAX_SHOWN = 500
APPROVED = (
    "[The user has approved one call of {tool}, with exactly these arguments: {arguments}\n"
    "Make it now. Any other call needs an approval of its own.]"
)
DENIED = (
    "[The user has refused one call of {tool}, with exactly these arguments: {arguments}\n"
    "It was not made. Do not ask for it again unless the user does; say how you go on without it.]"
)

ReplyTo: TypeAlias = Callable[[str], InboxReply]
"""Makes the reply to the command from its text."""


class Decision(msgspec.Struct, frozen=True):
    """What the user is told; `stored` if the reply is already on disk."""

    text: str
    stored: bool = False


async def decide(  # noqa: PLR0913 - the parts of a decision
    records: ToolRecords,
    row: InboxRow,
    number: str,
    reply: ReplyTo,
    expiry_of: Callable[[str, str], ExpiryPolicy],
    *,
    texts: Texts,
    approve: bool,
) -> Decision:
    """Decide about a call and tell its agent, in one transaction.

    An agent that was not told of a refusal would ask again, or continue as if the call had run.
    """
    approval = await _find(records, row, number, texts)
    if isinstance(approval, str):
        return Decision(approval)
    text = (texts.approved if approve else texts.denied).format(
        tool=approval.tool, arguments=_shorten(approval.arguments)
    )
    source = row.inbound.source
    decided = await records.decide_approval(
        approval.asked_of,
        approval.approval_id,
        approve=approve,
        answer=reply(text),
        then=_message_to_agent(row, approval, APPROVED if approve else DENIED),
        policy=expiry_of(source.platform, source.chat_type),
    )
    return Decision(text, stored=True) if decided else await _too_late(records, approval, texts)


def _message_to_agent(row: InboxRow, approval: Approval, template: str) -> Inbound:
    return replace(
        row.inbound,
        session_key=approval.session_key,
        event_id=f"approval:{approval.approval_id}",
        text=template.format(tool=approval.tool, arguments=approval.arguments),
        command=False,
        parts=None,
        when_busy="queue",
    )


async def _find(records: ToolRecords, row: InboxRow, number: str, texts: Texts) -> Approval | str:
    """Return the call that is meant, or why there is none."""
    key = row.inbound.session_key
    if not number:
        pending = await records.pending_approvals(key)
        return pending[-1] if pending else texts.no_approvals
    approval = await records.get_approval(key, int(number[:18]))
    return texts.unknown_approval.format(number=number[:18]) if approval is None else approval


async def _too_late(records: ToolRecords, asked: Approval, texts: Texts) -> Decision:
    """Return why there was nothing left to decide."""
    number = asked.approval_id
    now = await records.get_approval(asked.asked_of, number)
    decided = {
        "approved": texts.already_approved,
        "denied": texts.already_denied,
        "used": texts.already_used,
        "expired": texts.approval_expired,
    }
    text = texts.unknown_approval if now is None else decided.get(now.state, texts.unknown_approval)
    return Decision(text.format(number=number))


def _shorten(arguments: str) -> str:
    return arguments if len(arguments) <= MAX_SHOWN else arguments[: MAX_SHOWN - 1] + "…"
