"""`/approve` and `/deny`: a user decides about a tool call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.messages import (
    Approval,
    ApprovalState,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    InboxRow,
)
from hermes.protocols import ToolRecords

MAX_SHOWN = 500
NOTHING = "There is no tool call to decide about."
UNKNOWN = "There is no pending call {number} here."
_DECIDED: dict[ApprovalState, str] = {
    "approved": "You have already approved call {number}.",
    "denied": "You have already denied call {number}.",
    "used": "Call {number} was approved and has run.",
    "expired": "Call {number} has expired; ask for it again.",
}
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


async def decide(
    records: ToolRecords,
    row: InboxRow,
    number: str,
    reply: ReplyTo,
    expiry_of: Callable[[str, str], ExpiryPolicy],
    *,
    approve: bool,
) -> Decision:
    """Decide about a call and tell its agent, in one transaction.

    An agent that was not told of a refusal would ask again, or continue as if the call had run.
    """
    approval = await _find(records, row, number)
    if isinstance(approval, str):
        return Decision(approval)
    text = f"{'Approved' if approve else 'Denied'}: {_description(approval)}"
    source = row.inbound.source
    decided = await records.decide_approval(
        approval.asked_of,
        approval.approval_id,
        approve=approve,
        answer=reply(text),
        then=_message_to_agent(row, approval, APPROVED if approve else DENIED),
        policy=expiry_of(source.platform, source.chat_type),
    )
    return Decision(text, stored=True) if decided else await _too_late(records, approval)


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


async def _find(records: ToolRecords, row: InboxRow, number: str) -> Approval | str:
    """Return the call that is meant, or why there is none."""
    key = row.inbound.session_key
    if not number:
        pending = await records.pending_approvals(key)
        return pending[-1] if pending else NOTHING
    approval = await records.get_approval(key, int(number[:18]))
    return UNKNOWN.format(number=number[:18]) if approval is None else approval


async def _too_late(records: ToolRecords, asked: Approval) -> Decision:
    """Return why there was nothing left to decide."""
    number = asked.approval_id
    now = await records.get_approval(asked.asked_of, number)
    if now is None or now.state == "pending":
        return Decision(UNKNOWN.format(number=number))
    return Decision(_DECIDED[now.state].format(number=number))


def _description(approval: Approval) -> str:
    arguments = approval.arguments
    if len(arguments) > MAX_SHOWN:
        arguments = arguments[: MAX_SHOWN - 1] + "…"
    return f"{approval.tool} with {arguments}"
