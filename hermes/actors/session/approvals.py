"""`/approve` and `/deny`: a user decides about a call that a tool has asked for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from hermes.actors.session.running_turn import Mail
from hermes.messages import Approval, ApprovalState, ExpiryPolicy, Inbound, InboxReply
from hermes.protocols import ToolRecords

SHOWN = 500
NOTHING = "Nothing waits for your decision."
UNKNOWN = "There is no call {number} here that could be decided."
_OVER: dict[ApprovalState, str] = {
    "approved": "You have already approved call {number}.",
    "denied": "You have already denied call {number}.",
    "used": "Call {number} was approved, and has been made.",
    "expired": "Call {number} has waited too long; ask for it again.",
}
APPROVED = (
    "[The user has approved one call of {tool}, with exactly these arguments: {arguments}\n"
    "Make it now. Any other call needs an approval of its own.]"
)
DENIED = (
    "[The user has refused one call of {tool}, with exactly these arguments: {arguments}\n"
    "It was not made. Do not ask for it again unless the user does; say how you go on without it.]"
)

ReplyTo = Callable[[str], InboxReply]


class Done(msgspec.Struct, frozen=True):
    """What the user is told; `answered` where that is already on disk."""

    text: str
    answered: bool = False


async def decide(
    records: ToolRecords,
    mail: Mail,
    number: str,
    answer: ReplyTo,
    expiry_of: Callable[[str, str], ExpiryPolicy],
    *,
    approve: bool,
) -> Done:
    """Decide about a call, and tell its agent, in one transaction: a crash finds both or neither.

    An agent that was not told of a refusal would ask again, or go on as if the call were made.
    """
    found = await _find(records, mail, number)
    if isinstance(found, str):
        return Done(found)
    text = f"{'Approved' if approve else 'Denied'}: {_shown(found)}"
    source = mail.inbound.source
    decided = await records.decide_approval(
        found.asked_of,
        found.approval_id,
        approve=approve,
        answer=answer(text),
        then=_told(mail, found, APPROVED if approve else DENIED),
        policy=expiry_of(source.platform, source.chat_type),
    )
    return Done(text, answered=True) if decided else await _too_late(records, found)


def _told(mail: Mail, approval: Approval, words: str) -> Inbound:
    """What the agent of the call is told."""
    return replace(
        mail.inbound,
        session_key=approval.session_key,
        event_id=f"approval:{approval.approval_id}",
        text=words.format(tool=approval.tool, arguments=approval.arguments),
        command=False,
        parts=None,
        busy="queue",
    )


async def _find(records: ToolRecords, mail: Mail, number: str) -> Approval | str:
    """The call that is meant, or why there is none."""
    key = mail.inbound.session_key
    if not number:
        waiting = await records.pending_approvals(key)
        return waiting[-1] if waiting else NOTHING
    found = await records.get_approval(key, int(number[:18]))
    return UNKNOWN.format(number=number[:18]) if found is None else found


async def _too_late(records: ToolRecords, asked: Approval) -> Done:
    """Why there was nothing left to decide."""
    number = asked.approval_id
    now = await records.get_approval(asked.asked_of, number)
    if now is None or now.state == "pending":
        return Done(UNKNOWN.format(number=number))
    return Done(_OVER[now.state].format(number=number))


def _shown(approval: Approval) -> str:
    arguments = approval.arguments
    if len(arguments) > SHOWN:
        arguments = arguments[: SHOWN - 1] + "…"
    return f"{approval.tool} with {arguments}"
