"""`commit_turn`: a finished turn becomes durable as one fact, or is discarded as one."""

from __future__ import annotations

from hermes.errors import NotInLineage
from hermes.messages import Committed, Discarded, Route, StoredMessage, TurnCommit
from hermes.store.conversations import (
    codec,
    inbox,
    inbox_end,
    lineage,
    messages,
    outbox,
    rotation,
    routes,
    sessions,
)
from hermes.store.conversations.expiry import next_expiry
from hermes.store.records import usage
from hermes.store.transaction import Transaction


def commit_turn(tx: Transaction, turn: TurnCommit) -> Committed | Discarded:
    """Write the turn if nobody moved its fence.

    1. The inbox rows must be open and the epoch the one the turn began with, else it is discarded.
    2. Where only the revision differs, our rows follow the foreign ones as one block.
    3. Where the session was compressed meanwhile, the block goes to the tip and the route follows;
       where it ended otherwise, the turn is discarded and its input runs again on the new route.
    """
    if not turn.inbox_ids:
        raise ValueError("a turn answers at least one message: its inbox_ids are its fence")
    route = routes.get_route(tx, turn.session_key)
    if route is None or not inbox.all_open(tx, turn.inbox_ids, turn.session_key):
        return _discard(tx, turn, "the messages of this turn are not open any more")
    if (route.epoch, route.session_id) != (turn.epoch, turn.session_id):
        return _discard(tx, turn, "the conversation was moved to another session")
    foreign = sessions.head(tx, turn.session_id).revision != turn.revision
    settled = routes.settle(tx, turn.session_key)
    moved = settled.session_id != turn.session_id
    if moved and sessions.number(tx, settled.session_id) is None:
        return _discard(tx, turn, "the session has ended")
    if moved and turn.rewind_to is not None:
        return _discard(tx, turn, "what this turn takes back was compressed meanwhile")
    target = _target(tx, turn, settled, foreign=foreign)
    added = _write(tx, turn, target)
    epoch = settled.epoch
    if target != settled.session_id:
        epoch = routes.require_route(tx, turn.session_key).epoch
    moved = target != turn.session_id
    return Committed(sessions.head(tx, target), epoch, foreign, moved, added)


def _discard(tx: Transaction, turn: TurnCommit, reason: str) -> Discarded:
    route = routes.get_route(tx, turn.session_key)
    if route is None:
        return Discarded(reason, None, 0)
    return Discarded(reason, route.session_id, route.epoch)


def _target(tx: Transaction, turn: TurnCommit, route: Route, *, foreign: bool) -> str:
    """The session the rows go to, after following a rotation the agent did by itself."""
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
    _ensure(tx, turn, route.session_id)
    parent_no = sessions.require(tx, route.session_id)
    rotation.continue_in(tx, route.session_id, wanted)
    routes.point(tx, turn.session_key, wanted)
    if foreign and turn.upto is not None:
        carried = messages.messages_after(tx, parent_no, turn.upto)
        messages.append_messages(tx, wanted, [codec.as_message(row) for row in carried])
    return wanted


def _write(tx: Transaction, turn: TurnCommit, target: str) -> list[StoredMessage]:
    turn_id = min(turn.inbox_ids)
    if turn.rows or turn.usage:
        _ensure(tx, turn, target)
    if turn.rewind_to is not None and turn.rewind_to // codec.SPAN == sessions.number(tx, target):
        messages.rewind(tx, target, turn.rewind_to, upto=turn.upto)
    added = messages.append_rows(tx, target, turn.rows) if turn.rows else []
    usage.record_all(tx, target, turn.usage, turn_id)
    said = [inbox_end.addressed(reply, target) for reply in turn.outbox]
    outbox.enqueue(tx, turn.session_key, turn_id, said)
    inbox_end.finish(tx, turn.inbox_ids)
    inbox.start_inbox(tx, turn.next_inbox_ids)
    expires_at = None if turn.policy is None else next_expiry(turn.policy, tx.now)
    tx.run(
        "UPDATE routes SET last_active = ?, expires_at = coalesce(?, expires_at), notice = NULL "
        "WHERE session_key = ?",
        tx.now,
        expires_at,
        turn.session_key,
    )
    return added


def _ensure(tx: Transaction, turn: TurnCommit, session_id: str) -> None:
    """The session's row comes with its first message."""
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
