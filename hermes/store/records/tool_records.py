"""Records of tool calls: calls that must run only once, and calls that need an approval."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

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
    QuestionDelivery,
    ToolCallRecord,
)
from hermes.sanitize import scrub
from hermes.store.conversations import inbox, outbox, turns
from hermes.store.records.tool_permissions import allow, is_allowed
from hermes.store.transaction import Row, Transaction

APPROVAL_SECONDS = 3600.0
MAX_PENDING = 20
"""The number of approvals that may be pending for one user."""
_MAX_ID = 1 << 62
LAST = chr(0x10FFFF)
"""Follows every character of a session key."""
_APPROVAL_COLUMNS = "id, asked_of, session_key, tool, arguments, state, asked_at, expires_at"
_OPEN_APPROVALS = (
    "approvals INDEXED BY approvals_open WHERE asked_of = ? "
    "AND abs(asked_at - ?) < expires_at - asked_at AND state IN ('pending', 'approved') AND state ="
)
"""One that is dated further ahead than it lasts was written with a clock that was wrong."""
_LATEST = "(SELECT coalesce(max(id), 0) FROM inbox)"
"""The inbox id of the latest message. What is accepted later has a higher one."""
_AFTER = "CAST(?2 AS bigint)"  # PostgreSQL must know the type of a value that may be NULL
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

    With `approved_for`, a session_key, the call also uses up an approval. Without one, the tool
    must be allowed in the conversation, or it raises `NotApproved`.
    Raises `TurnClosed` if the turn is over.
    """
    inbox.lock_key_of(tx, turn_id)
    if not tx.one("SELECT 1 FROM inbox WHERE id = ? AND state = 'open'", turn_id):
        raise TurnClosed(f"turn {turn_id} is over")
    row = tx.one(
        f"SELECT result, failed FROM once_calls WHERE {_IS_CALL}",
        turn_id, tool, arguments, ordinal,
    )  # fmt: skip
    if row is not None:
        return ToolCallRecord(turn_id, tool, arguments, ordinal, row[0], bool(row[1]))
    if approved_for is not None:
        # An approval is used up also by a tool that is allowed: that may be revoked later.
        approved = take_approval(tx, approved_for, tool, arguments)
        if not approved and not is_allowed(tx, _approver_key(tx, approved_for), tool):
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


def ask_approval(  # noqa: PLR0913 - the call, and how the question is shown
    tx: Transaction,
    session_key: str,
    tool: str,
    arguments: str,
    *,
    seconds: float = APPROVAL_SECONDS,
    say: Callable[[Approval], Sequence[Outbound]] | None = None,
    delivery: QuestionDelivery | None = None,
) -> Approval:
    """Ask a user to approve a call, and enqueue the messages that `say` returns.

    The question counts as shown when the last of them is sent, or at once if there is none: then
    the caller shows it. With the `delivery` "host" or "client" it does when `mark_shown` says so.
    If the same call is pending already, that approval is returned and nothing is sent. Raises
    `Overloaded` if too many are pending.
    """
    asked_of = _approver_key(tx, session_key)
    tx.lock_key(asked_of)
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
    approval_id = tx.insert(
        "INSERT INTO approvals "
        "(asked_of, session_key, session_id, tool, arguments, asked_at, expires_at, asked_after) "
        "VALUES (?1, ?2, (SELECT session_id FROM routes WHERE session_key = ?2), ?3, ?4, ?5, ?6, "
        f"{_LATEST})",
        asked_of, session_key, tool, arguments, tx.now, tx.now + seconds,
    )  # fmt: skip
    approval = Approval(
        approval_id, asked_of, session_key, tool, arguments,
        "pending", tx.now, tx.now + seconds,
    )  # fmt: skip
    sent = [] if say is None else say(approval)
    outbox.enqueue(tx, session_key, 0, sent)
    if delivery in {None, "outbox"}:
        if sent:
            _show_by_row(tx, approval.approval_id, tx.outbox[-1].outbox_id)
        else:
            mark_shown(tx, {approval.approval_id: 0})
    return approval


def _show_by_row(tx: Transaction, approval_id: int, outbox_id: int | None) -> None:
    """Note which outbox row shows a question that was not shown yet; None: the host or client."""
    sql = "UPDATE approvals SET question = ? WHERE id = ? AND shown_after IS NULL"
    tx.run(sql, outbox_id, approval_id)


def mark_shown(
    tx: Transaction, shown: Mapping[int, int | None], at: Mapping[int, float] | None = None
) -> None:
    """Record that questions were shown which no outbox row shows.

    `shown` has the number of each, and the inbox id of the latest message that was known then. None
    means that it was not shown after all. If it was shown several times, the first one counts.
    `at` has the times: messages that other processes accepted before do not count as answers.
    """
    times = at or {}
    tx.run_each(
        "UPDATE approvals SET shown_after = (SELECT max(n) FROM (SELECT asked_after AS n "
        f"UNION ALL SELECT {_AFTER} UNION ALL SELECT max(id) FROM inbox WHERE id > asked_after "
        f"AND accepted_at < ?3) AS known WHERE {_AFTER} IS NOT NULL) WHERE id = ?1 "
        f"AND question IS NULL AND (shown_after IS NULL OR {_AFTER} IS NULL)",
        [(number, after, times.get(number)) for number, after in shown.items()],
    )


def take_approval(tx: Transaction, session_key: str, tool: str, arguments: str) -> bool:
    """Use up an approval of exactly this call. Return False if there is none."""
    taken = tx.run(
        "UPDATE approvals SET state = 'used' WHERE state = 'approved' AND id = "
        f"(SELECT id FROM {_OPEN_APPROVALS} 'approved' "
        "AND session_key = ? AND tool = ? AND arguments = ? ORDER BY id LIMIT 1)",
        _approver_key(tx, session_key), tx.now, session_key, tool, arguments,
    )  # fmt: skip
    return taken == 1


def get_approved_call(tx: Transaction, session_key: str, approval_id: int) -> Approval | None:
    """Return a call of this conversation if it was approved, even if it has run since."""
    row = tx.one(
        f"SELECT {_APPROVAL_COLUMNS} FROM approvals "
        "WHERE id = ? AND session_key = ? AND state IN ('approved', 'used')",
        min(approval_id, _MAX_ID),
        session_key,
    )
    return None if row is None else _approval(tx, row)


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


def list_approvals(
    tx: Transaction, *, prefixes: Sequence[str] | None = None, after: int = 0, limit: int = 100
) -> list[Approval]:
    """Return the approvals that users of keys with these prefixes have not decided, oldest first.

    Without `prefixes`, those of all users. `after` is the number of the last one of the page
    before.
    """
    ranges = [(prefix, prefix + LAST) for prefix in prefixes or ()]
    asked = " OR ".join(["(asked_of >= ? AND asked_of < ?)"] * len(ranges)) or "1 = 0"
    rows = tx.all(
        f"SELECT {_APPROVAL_COLUMNS} FROM approvals INDEXED BY approvals_open "
        "WHERE state IN ('pending', 'approved') AND state = 'pending' AND id > ? "
        "AND abs(asked_at - ?) < expires_at - asked_at "
        f"AND ({'1 = 1' if prefixes is None else asked}) ORDER BY id LIMIT ?",
        min(after, _MAX_ID), tx.now, *(end for each in ranges for end in each), limit,
    )  # fmt: skip
    return [_approval(tx, row) for row in rows]


def open_approvals(tx: Transaction, session_key: str, before: int) -> list[Approval]:
    """Return the calls that the user had been shown, and not decided, before this message.

    `before` is the inbox id of the message. A call that was decided or has expired since has its
    new state.
    """
    (accepted_at,) = tx.one("SELECT accepted_at FROM inbox WHERE id = ?", before) or (tx.now,)
    pending = tx.all(
        f"SELECT {_APPROVAL_COLUMNS} FROM {_OPEN_APPROVALS} 'pending' AND shown_after < ?",
        session_key, min(accepted_at, tx.now), before,
    )  # fmt: skip
    decided = tx.all(
        f"SELECT {_APPROVAL_COLUMNS} FROM approvals "
        "WHERE asked_of = ? AND decided_after >= ? AND shown_after < ?",
        session_key, before, before,
    )  # fmt: skip
    return [_approval(tx, row) for row in sorted([*pending, *decided])]


def show_approval(
    tx: Transaction, session_key: str, approval_id: int, *, answer: InboxReply, sent: bool
) -> None:
    """Store a reply that shows a call; `sent` if an adapter sends it. Then it is shown by that.

    Otherwise it is shown when `mark_shown` says so.
    """
    inbox.close(tx, answer)
    if get_approval(tx, session_key, approval_id) is not None:
        row = tx.outbox[-1].outbox_id if sent and tx.outbox else None
        _show_by_row(tx, approval_id, row)


def decide_approval(  # noqa: PLR0913 - the decision and the messages that belong to it
    tx: Transaction,
    session_key: str,
    approval_id: int,
    *,
    approve: bool,
    always: bool = False,
    before: int | None = None,
    answer: InboxReply | None = None,
    then: Inbound | None = None,
    policy: ExpiryPolicy = turns.NEVER,
) -> Approval | None:
    """Approve or deny a pending call. Return None if it is not pending.

    With `always`, an approval also allows the tool in this conversation from now on.

    With `before`, the inbox id of a command, the call must have been shown before that was
    accepted. `answer` closes the inbox rows of the command and `then` is accepted as a new message,
    both in the same transaction.
    """
    state: ApprovalState = "approved" if approve else "denied"
    # An approval restarts the time limit, so that a late one can still be used.
    changed = tx.run(
        f"UPDATE approvals SET state = ?1, decided_after = {_LATEST}, "
        "expires_at = CASE WHEN ?1 = 'approved' AND asked_at < ?4 "
        "THEN expires_at + (?4 - asked_at) ELSE expires_at END "
        "WHERE id = ?2 AND asked_of = ?3 AND state = 'pending' "
        "AND abs(asked_at - ?4) < expires_at - asked_at "
        "AND (CAST(?5 AS bigint) IS NULL OR shown_after < ?5)",
        state, min(approval_id, _MAX_ID), session_key, tx.now, before,
    )  # fmt: skip
    if changed != 1:
        return None
    decided = get_approval(tx, session_key, approval_id)
    if approve and always and decided is not None:
        allow(tx, session_key, decided.tool)
    inbox.close(tx, answer)
    if then is not None:
        # It replaces the command that has just been closed, so the bound does not apply.
        turns.accept(tx, then, policy=policy, max_queued=sys.maxsize)
    return decided


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
    lasts = approval.expires_at - approval.asked_at
    if approval.state in {"pending", "approved"} and abs(approval.asked_at - tx.now) >= lasts:
        return replace(approval, state="expired")
    return approval
