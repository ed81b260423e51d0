"""What tools leave on disk: calls that are made once, and calls that a user has to allow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from hermes import session_keys
from hermes.errors import NotApproved, Overloaded, TurnClosed
from hermes.messages import (
    Accepted,
    Approval,
    ApprovalState,
    ExpiryPolicy,
    Inbound,
    InboxReply,
    Outbound,
    ToolCallRecord,
)
from hermes.store.conversations import codec, inbox, inbox_end, outbox
from hermes.store.transaction import Row, Transaction

APPROVAL_SECONDS = 3600.0
MAX_PENDING = 20
"""Questions that may wait for one user at a time."""
_MAX_ID = 1 << 62
_APPROVAL = "id, asked_of, session_key, tool, arguments, state, asked_at, expires_at"
_OPEN = (
    "approvals INDEXED BY approvals_open "
    "WHERE asked_of = ? AND expires_at > ? AND state IN ('pending', 'approved') AND state ="
)
_THE_CALL = "turn_id = ? AND tool = ? AND arguments = ? AND ordinal = ?"


def begin_once(
    tx: Transaction,
    turn_id: int,
    tool: str,
    arguments: str,
    ordinal: int = 0,
    *,
    approved_for: str | None = None,
) -> ToolCallRecord | None:
    """Record a call before it is made; None where it may be made now, else the earlier one.

    With `approved_for`, a session_key, it takes an approval as well, or raises `NotApproved`.
    """
    if not tx.one("SELECT 1 FROM inbox WHERE id = ? AND state = 'open'", turn_id):
        raise TurnClosed(f"turn {turn_id} is over")
    row = tx.one(
        f"SELECT result, failed FROM once_calls WHERE {_THE_CALL}",
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
    """Record what came of a call; the first result stays."""
    tx.run(
        f"UPDATE once_calls SET result = ?, failed = ? WHERE {_THE_CALL} AND result IS NULL",
        codec.whole_text(call.result or ""), int(call.failed),
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
    """Ask a user to allow a call, and say so; the same question that waits already is kept."""
    asked_of = _asked_of(tx, session_key)
    waiting = pending_approvals(tx, asked_of)
    for asked in waiting:
        if (asked.session_key, asked.tool, asked.arguments) == (session_key, tool, arguments):
            return asked
    if len(waiting) >= MAX_PENDING:
        raise Overloaded(f"{len(waiting)} calls already wait for an approval")
    tx.run(
        "INSERT INTO approvals "
        "(asked_of, session_key, session_id, tool, arguments, asked_at, expires_at) "
        "VALUES (?1, ?2, (SELECT session_id FROM routes WHERE session_key = ?2), ?3, ?4, ?5, ?6)",
        asked_of, session_key, tool, arguments, tx.now, tx.now + seconds,
    )  # fmt: skip
    asked = Approval(
        tx.db.last_insert_rowid(), asked_of, session_key, tool, arguments,
        "pending", tx.now, tx.now + seconds,
    )  # fmt: skip
    if say is not None:
        outbox.enqueue(tx, session_key, 0, say(asked))
    return asked


def take_approval(tx: Transaction, session_key: str, tool: str, arguments: str) -> bool:
    """Use up an approval of exactly this call; False where there is none."""
    row = tx.one(
        f"SELECT id FROM {_OPEN} 'approved' AND session_key = ? AND tool = ? AND arguments = ? "
        "ORDER BY id LIMIT 1",
        _asked_of(tx, session_key), tx.now, session_key, tool, arguments,
    )  # fmt: skip
    return row is not None and bool(
        tx.run("UPDATE approvals SET state = 'used' WHERE id = ?", row[0])
    )


def get_approval(tx: Transaction, session_key: str, approval_id: int) -> Approval | None:
    """A question that this conversation's user was asked, whatever became of it."""
    row = tx.one(
        f"SELECT {_APPROVAL} FROM approvals WHERE id = ? AND asked_of = ?",
        min(approval_id, _MAX_ID),
        session_key,
    )
    return None if row is None else _approval(tx, row)


def pending_approvals(tx: Transaction, session_key: str) -> list[Approval]:
    """What this conversation's user is asked to decide, oldest first."""
    found = tx.all(f"SELECT {_APPROVAL} FROM {_OPEN} 'pending' ORDER BY id", session_key, tx.now)
    return [_approval(tx, row) for row in found]


class Decided(msgspec.Struct, frozen=True):
    """What was decided, and the message that follows from it."""

    approval: Approval | None = None
    accepted: Accepted | None = None


def decide_approval(  # noqa: PLR0913 - what is decided, and what follows from it
    tx: Transaction,
    session_key: str,
    approval_id: int | None,
    *,
    approve: bool,
    answer: InboxReply | None = None,
    then: Inbound | None = None,
    policy: ExpiryPolicy = inbox.NEVER,
) -> Approval | None:
    """Allow or refuse a call; without a number the latest that waits. None where none does."""
    return decide(
        tx, session_key, approval_id, approve=approve, answer=answer, then=then, policy=policy
    ).approval


def decide(  # noqa: PLR0913 - what is decided, and what follows from it
    tx: Transaction,
    session_key: str,
    approval_id: int | None,
    *,
    approve: bool,
    answer: InboxReply | None = None,
    then: Inbound | None = None,
    policy: ExpiryPolicy = inbox.NEVER,
) -> Decided:
    """As `decide_approval`, with the message that was accepted."""
    waiting = pending_approvals(tx, session_key)
    wanted = [each for each in waiting if approval_id in {None, each.approval_id}]
    if not wanted:
        return Decided()
    asked = wanted[-1]
    # What was allowed at the last moment must still find the time to be done.
    expires_at = tx.now + asked.expires_at - asked.asked_at if approve else asked.expires_at
    state: ApprovalState = "approved" if approve else "denied"
    tx.run(
        "UPDATE approvals SET state = ?, expires_at = ? WHERE id = ?",
        state, expires_at, asked.approval_id,
    )  # fmt: skip
    inbox_end.close(tx, answer)
    accepted = None
    if then is not None:
        # It takes the place of the command that has just ended, so it needs no room of its own.
        accepted = inbox.accept(tx, then, policy=policy, max_queued=sys.maxsize)
    decided = replace(asked, state=state, expires_at=expires_at)
    return Decided(decided, accepted)


def forget_session(tx: Transaction, session_id: str) -> None:
    """Forget what was asked in a session."""
    tx.run("DELETE FROM approvals WHERE session_id = ?", session_id)


def forget_approvals(tx: Transaction, before: float, limit: int) -> int:
    """Forget some approvals that were over before this moment; says how many."""
    return tx.run(
        "DELETE FROM approvals WHERE id IN "
        "(SELECT id FROM approvals WHERE expires_at < ? ORDER BY expires_at LIMIT ?)",
        before,
        limit,
    )


def _asked_of(tx: Transaction, session_key: str) -> str:
    """Whose user decides: for what is done in the background, that of the chat which began it."""
    begun = session_keys.begun_by(session_key)
    if begun is None:
        return session_key
    mine = "SELECT 1 FROM inbox WHERE session_key = ? AND id = ?"
    return begun[0] if tx.one(mine, *begun) else session_key


def _approval(tx: Transaction, row: Row) -> Approval:
    approval = Approval(*row)
    if approval.state in {"pending", "approved"} and approval.expires_at <= tx.now:
        return replace(approval, state="expired")
    return approval
