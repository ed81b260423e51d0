"""The two transactions of a turn: `accept` stores a message, `commit_turn` stores its answer."""

from __future__ import annotations

import msgspec

from hermes.config import Config
from hermes.errors import NotInLineage, Overloaded
from hermes.messages import (
    Accepted,
    Committed,
    Discarded,
    ExpiryPolicy,
    Inbound,
    Receipt,
    Route,
    StoredMessage,
    TurnCommit,
)
from hermes.store.conversations import (
    codec,
    inbox,
    lineage,
    messages,
    outbox,
    rotation,
    routes,
    sessions,
    usage,
)
from hermes.store.transaction import Transaction
from hermes.transcript.validate import check_depth

NEVER = ExpiryPolicy()
MAX_QUEUED = Config().max_queued
MAX_BODY = 1_000_000
"""The longest inbound message, in characters of JSON."""


def accept(
    tx: Transaction, inbound: Inbound, *, policy: ExpiryPolicy = NEVER, max_queued: int = MAX_QUEUED
) -> Accepted:
    """Store an inbound message: expire an overdue session, find the route, insert the inbox row.

    A repeated event returns the receipt of the first one and stores nothing. `policy` says when the
    conversation expires after this message. Raises `Overloaded` if `max_queued` messages of the
    same session_key are open already.
    """
    inbound, body = _validated(inbound)
    source, key = inbound.source, inbound.session_key
    row = tx.one(
        "SELECT id, session_key, session_id, epoch, accepted_at FROM inbox "
        "WHERE platform = ? AND account = ? AND event_id = ?",
        source.platform,
        source.account,
        inbound.event_id,
    )
    if row is not None:
        receipt = Receipt(*row)
        head = sessions.head(tx, receipt.session_id)
        return Accepted(receipt, head, inbound, duplicate=True)
    waiting = inbox.count_open(tx, key)
    if waiting >= max_queued:
        raise Overloaded(f"{waiting} messages already wait for {key}; try again later")
    expired = _expire_overdue(tx, key)
    route = routes.ensure_open_session(tx, key)
    routes.touch(tx, key, source, policy)
    # Without other open rows, a turn starts at once: this is its first attempt.
    tx.run(
        "INSERT INTO inbox (platform, account, event_id, session_key, session_id, epoch, body, "
        "accepted_at, attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        source.platform,
        source.account,
        inbound.event_id,
        key,
        route.session_id,
        route.epoch,
        body,
        tx.now,
        int(waiting == 0),
    )
    receipt = Receipt(tx.db.last_insert_rowid(), key, route.session_id, route.epoch, tx.now)
    head = sessions.head(tx, route.session_id)
    accepted = Accepted(receipt, head, inbound, expired=expired, waiting=waiting, route=route)
    tx.accepted.append(accepted)
    return accepted


def _validated(inbound: Inbound) -> tuple[Inbound, str]:
    """Return the message as it will be read back, and its JSON; `ValueError` if it is invalid."""
    routes.require_key(inbound.session_key)
    check_depth(inbound.parts)
    try:
        body = codec.encode_json(inbound)
        inbound = inbox.decode(body)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"the inbound message has a field of the wrong type: {error}") from None
    if len(body) > MAX_BODY:
        raise ValueError(f"the message has {len(body)} characters; the limit is {MAX_BODY}")
    if not inbound.event_id:
        raise ValueError("an inbound message needs an event_id, by which repetitions are detected")
    return inbound, body


def _expire_overdue(tx: Transaction, session_key: str) -> str | None:
    due = "SELECT epoch FROM routes WHERE session_key = ? AND expires_at <= ?"
    row = tx.one(due, session_key, tx.now)
    return None if row is None else routes.expire(tx, session_key, row[0])


def commit_turn(tx: Transaction, turn: TurnCommit) -> Committed | Discarded:
    """Store a finished turn entirely, or discard it if its conversation changed meanwhile.

    1. The inbox rows must be open, and the route's epoch and session those that the turn started
       with; otherwise the turn is discarded.
    2. If only the revision differs, another process appended rows; the turn's rows follow them.
    3. If the session was compressed meanwhile, the rows go to its continuation and the route
       follows. If it ended otherwise, the turn is discarded and its messages run again.
    """
    if not turn.inbox_ids:
        raise ValueError("a turn needs the inbox_ids of the messages that it answers")
    route = routes.get_route(tx, turn.session_key)
    if route is None or not inbox.all_open(tx, turn.inbox_ids, turn.session_key):
        return _discarded(tx, turn, "the messages of this turn are not open any more")
    if (route.epoch, route.session_id) != (turn.epoch, turn.session_id):
        return _discarded(tx, turn, "the conversation was moved to another session")
    foreign = sessions.head(tx, turn.session_id).revision != turn.revision
    settled = routes.ensure_open_session(tx, turn.session_key)
    moved = settled.session_id != turn.session_id
    if moved and sessions.number(tx, settled.session_id) is None:
        return _discarded(tx, turn, "the session has ended")
    if moved and turn.rewind_to is not None:
        return _discarded(tx, turn, "the messages that this turn replaces were compressed")
    target = _target(tx, turn, settled, foreign=foreign)
    added = _write(tx, turn, target)
    epoch = settled.epoch
    if target != settled.session_id:
        epoch = routes.ensure_route(tx, turn.session_key).epoch
    moved = target != turn.session_id
    return Committed(sessions.head(tx, target), epoch, foreign, moved, added)


def _discarded(tx: Transaction, turn: TurnCommit, reason: str) -> Discarded:
    route = routes.get_route(tx, turn.session_key)
    if route is None:
        return Discarded(reason, None, 0)
    return Discarded(reason, route.session_id, route.epoch)


def _target(tx: Transaction, turn: TurnCommit, route: Route, *, foreign: bool) -> str:
    """Return the session that takes the rows; create it if the agent rotated by itself."""
    wanted = turn.rotated_to
    if not wanted or wanted in {turn.session_id, route.session_id}:
        return route.session_id
    if sessions.number(tx, wanted) is not None:
        if wanted not in lineage.get_compression_lineage(tx, route.session_id):
            raise NotInLineage(f"session {wanted} belongs to another conversation")
        return route.session_id
    taken = "SELECT 1 FROM routes WHERE session_id = ? AND session_key <> ?"
    if tx.one(taken, wanted, turn.session_key) is not None:
        raise NotInLineage(f"session {wanted} belongs to another conversation")
    _ensure_session(tx, turn, route.session_id)
    parent_no = sessions.require(tx, route.session_id)
    rotation.continue_in(tx, route.session_id, wanted)
    routes.assign_session(tx, turn.session_key, wanted)
    if foreign and turn.upto is not None:
        carried = messages.messages_after(tx, parent_no, turn.upto)
        messages.append_messages(tx, wanted, [codec.as_message(row) for row in carried])
    return wanted


def _write(tx: Transaction, turn: TurnCommit, target: str) -> list[StoredMessage]:
    """Write rows, usage and replies; close the inbox rows; record the activity on the route."""
    turn_id = min(turn.inbox_ids)
    if turn.rows or turn.usage:
        _ensure_session(tx, turn, target)
    if turn.rewind_to is not None and turn.rewind_to // codec.SPAN == sessions.number(tx, target):
        messages.rewind(tx, target, turn.rewind_to, upto=turn.upto)
    added = messages.append_rows(tx, target, turn.rows) if turn.rows else []
    usage.record_all(tx, target, turn.usage, turn_id)
    replies = [inbox.addressed(reply, target) for reply in turn.outbox]
    outbox.enqueue(tx, turn.session_key, turn_id, replies)
    inbox.finish(tx, turn.inbox_ids)
    inbox.start_inbox(tx, turn.next_inbox_ids)
    expires_at = None if turn.policy is None else routes.next_expiry(turn.policy, tx.now)
    tx.run(
        "UPDATE routes SET last_active = ?, expires_at = coalesce(?, expires_at), notice = NULL "
        "WHERE session_key = ?",
        tx.now,
        expires_at,
        turn.session_key,
    )
    return added


def _ensure_session(tx: Transaction, turn: TurnCommit, session_id: str) -> None:
    """Create the row of a session with its first message."""
    if sessions.number(tx, session_id) is not None:
        return
    source = inbox.source_of(tx, min(turn.inbox_ids))
    sessions.create_session(
        tx,
        session_id,
        source.platform,
        session_key=turn.session_key,
        chat_id=source.chat_id,
        chat_type=source.chat_type,
        thread_id=source.thread_id,
        user_id=source.user_id,
    )
