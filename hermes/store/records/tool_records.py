"""Records of tool calls: calls that must run only once, and calls that need an approval."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from hermes import session_keys
from hermes.errors import NotApproved, Overloaded, TurnClosed
from hermes.messages import (
    Approval,
    ApprovalState,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    Outbound,
    ToolCallRecord,
)
from hermes.sanitize import scrub
from hermes.store.conversations import inbox, outbox, turns
from hermes.store.transaction import Row, Transaction

APPROVAL_SECONDS = 3600.0
MAX_PENDING = 20
"""The number of approvals that may be pending for one user."""
_MAX_ID = 1 << 62
_APPROVAL_COLUMNS = "id, asked_of, session_key, tool, arguments, state, asked_at, expires_at"
_OPEN_APPROVALS = (
    "approvals INDEXED BY approvals_open "
    "WHERE asked_of = ? AND expires_at > ? AND state IN ('pending', 'approved') AND state ="
)
_IS_CALL = "turn_id = ? AND tool = ? AND arguments = ? AND ordinal = ?"


def begin_once(
    tx: Transaction,
    turn_id: int,
    tool: str,
    arguments: str,
    ordinal: int = 0,
    *,
    approved_for: str | None = None,
) -> ToolCallRecord | None:
    """Record a call before it is made. Return None if it may be made now, else the earlier record.

    With `approved_for`, a session_key, the call also uses up an approval, or raises `NotApproved`.
    Raises `TurnClosed` if the turn is over.
    """
    if not tx.one("SELECT 1 FROM inbox WHERE id = ? AND state = 'open'", turn_id):
        raise TurnClosed(f"turn {turn_id} is over")
    row = tx.one(
        f"SELECT result, failed FROM once_calls WHERE {_IS_CALL}",
        turn_id, tool, arguments, ordinal,
    )  # fmt: skip
    if row is not None:
        return ToolCallRecord(turn_id, tool, arguments, ordinal, row[0], bool(row[1]))
    if approved_for is not None and not take_approval(tx, approved_for, tool, arguments):
        raise NotApproved(f"nobody has approved this call of {tool}")
    tx.run(
        "INSERT INTO once_calls (turn_id, tool, arguments, ordinal, begun_at) "
        "VALUES (?, ?, ?, ?, ?)",
        turn_id, tool, arguments, ordinal, tx.now,
    )  # fmt: skip
    return None


def end_once(tx: Transaction, call: ToolCallRecord) -> None:
    """Record the result of a call; only the first one is kept."""
    tx.run(
        f"UPDATE once_calls SET result = ?, failed = ? WHERE {_IS_CALL} AND result IS NULL",
        scrub(call.result or ""), int(call.failed),
        call.turn_id, call.tool, call.arguments, call.ordinal,
    )  # fmt: skip


def ask_approval(
    tx: Transaction,
    session_key: str,
    tool: str,
    arguments: str,
    *,
    seconds: float = APPROVAL_SECONDS,
    say: Callable[[Approval], Sequence[Outbound]] | None = None,
) -> Approval:
    """Ask a user to approve a call, and enqueue the messages that `say` returns.

    If the same call is pending already, that approval is returned and nothing is sent. Raises
    `Overloaded` if too many are pending.
    """
    asked_of = _approver_key(tx, session_key)
    pending = pending_approvals(tx, asked_of)
    for approval in pending:
        if (approval.session_key, approval.tool, approval.arguments) == (
            session_key,
            tool,
            arguments,
        ):
            return approval
    if len(pending) >= MAX_PENDING:
        raise Overloaded(f"{len(pending)} calls already wait for an approval")
    tx.run(
        "INSERT INTO approvals "
        "(asked_of, session_key, session_id, tool, arguments, asked_at, expires_at) "
        "VALUES (?1, ?2, (SELECT session_id FROM routes WHERE session_key = ?2), ?3, ?4, ?5, ?6)",
        asked_of, session_key, tool, arguments, tx.now, tx.now + seconds,
    )  # fmt: skip
    approval = Approval(
        tx.db.last_insert_rowid(), asked_of, session_key, tool, arguments,
        "pending", tx.now, tx.now + seconds,
    )  # fmt: skip
    if say is not None:
        outbox.enqueue(tx, session_key, 0, say(approval))
    return approval


def take_approval(tx: Transaction, session_key: str, tool: str, arguments: str) -> bool:
    """Use up an approval of exactly this call. Return False if there is none."""
    row = tx.one(
        f"SELECT id FROM {_OPEN_APPROVALS} 'approved' "
        "AND session_key = ? AND tool = ? AND arguments = ? ORDER BY id LIMIT 1",
        _approver_key(tx, session_key), tx.now, session_key, tool, arguments,
    )  # fmt: skip
    return row is not None and bool(
        tx.run("UPDATE approvals SET state = 'used' WHERE id = ?", row[0])
    )


def get_approval(tx: Transaction, session_key: str, approval_id: int) -> Approval | None:
    """Return an approval that the user of this conversation was asked for, in any state."""
    row = tx.one(
        f"SELECT {_APPROVAL_COLUMNS} FROM approvals WHERE id = ? AND asked_of = ?",
        min(approval_id, _MAX_ID),
        session_key,
    )
    return None if row is None else _approval(tx, row)


def pending_approvals(tx: Transaction, session_key: str) -> list[Approval]:
    """Return the approvals that the user of this conversation has not decided, oldest first."""
    sql = f"SELECT {_APPROVAL_COLUMNS} FROM {_OPEN_APPROVALS} 'pending' ORDER BY id"
    return [_approval(tx, row) for row in tx.all(sql, session_key, tx.now)]


def decide_approval(  # noqa: PLR0913 - the decision and the messages that belong to it
    tx: Transaction,
    session_key: str,
    approval_id: int | None,
    *,
    approve: bool,
    answer: InboxReply | None = None,
    then: Inbound | None = None,
    policy: ExpiryPolicy = turns.NEVER,
) -> Approval | None:
    """Approve or deny a pending call; without an id, the latest. Return None if there is none.

    `answer` closes the inbox rows of the command and `then` is accepted as a new message, both in
    the same transaction.
    """
    pending = pending_approvals(tx, session_key)
    matching = [approval for approval in pending if approval_id in {None, approval.approval_id}]
    if not matching:
        return None
    approval = matching[-1]
    expires_at = approval.expires_at
    if approve:  # restart the time limit, so that a late approval can still be used
        expires_at = tx.now + approval.expires_at - approval.asked_at
    state: ApprovalState = "approved" if approve else "denied"
    tx.run(
        "UPDATE approvals SET state = ?, expires_at = ? WHERE id = ?",
        state, expires_at, approval.approval_id,
    )  # fmt: skip
    inbox.close(tx, answer)
    if then is not None:
        # It replaces the command that has just been closed, so the bound does not apply.
        turns.accept(tx, then, policy=policy, max_queued=sys.maxsize)
    return replace(approval, state=state, expires_at=expires_at)


def delete_session_approvals(tx: Transaction, session_id: str) -> None:
    """Delete the approvals of a session."""
    tx.run("DELETE FROM approvals WHERE session_id = ?", session_id)


def delete_expired_approvals(tx: Transaction, before: float, limit: int) -> int:
    """Delete up to `limit` approvals that expired before this time. Return how many."""
    return tx.run(
        "DELETE FROM approvals WHERE id IN "
        "(SELECT id FROM approvals WHERE expires_at < ? ORDER BY expires_at LIMIT ?)",
        before,
        limit,
    )


def _approver_key(tx: Transaction, session_key: str) -> str:
    """Return the conversation whose user decides.

    For a background task that is the conversation which started it.
    """
    started_by = session_keys.background_origin(session_key)
    if started_by is None:
        return session_key
    exists = tx.one("SELECT 1 FROM inbox WHERE session_key = ? AND id = ?", *started_by)
    return started_by[0] if exists else session_key


def _approval(tx: Transaction, row: Row) -> Approval:
    approval = Approval(*row)
    if approval.state in {"pending", "approved"} and approval.expires_at <= tx.now:
        return replace(approval, state="expired")
    return approval
