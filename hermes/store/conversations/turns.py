"""The two transactions of a turn: `accept` stores a message, `commit_turn` stores its answer.

`post` stores a message that nobody asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from hermes.config import Config
from hermes.errors import EventConflict, NotInLineage, Overloaded, StoreBusy
from hermes.messages import (
    Accepted,
    ApiRequest,
    Committed,
    Discarded,
    ExpiryPolicy,
    Head,
    Inbound,
    JsonObject,
    Message,
    Outbound,
    Posted,
    Receipt,
    Route,
    Source,
    StoredMessage,
    TurnCommit,
    file_ids,
)
from hermes.session_keys import is_ephemeral_key
from hermes.store.attachments import rows as attachments
from hermes.store.conversations import (
    codec,
    inbox,
    lineage,
    messages,
    outbox,
    rotation,
    routes,
    sessions,
    titles,
    usage,
)
from hermes.store.recordings import rows as recordings
from hermes.store.responses import rows as responses
from hermes.store.transaction import Transaction

_SORTED = msgspec.json.Encoder(order="deterministic")
_decode_source = msgspec.json.Decoder(Source).decode
NEVER = ExpiryPolicy()
MAX_QUEUED = Config().max_queued
MAX_BODY = 1_000_000
"""The longest inbound message, in characters of JSON."""
FIND_EVENT = (
    "SELECT id, session_key, session_id, epoch, accepted_at, digest FROM inbox "
    f"WHERE {inbox.SAME_EVENT}"
)
INSERT_MESSAGE = (
    "INSERT INTO inbox (platform, account, event_id, scope, digest, session_key, session_id, "
    "epoch, body, accepted_at, attempts) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
Opened: TypeAlias = tuple[Route, Head, str | None]
"""A route, the head of its session, and the session that has just expired."""


def accept(
    tx: Transaction, inbound: Inbound, *, policy: ExpiryPolicy = NEVER, max_queued: int = MAX_QUEUED
) -> Accepted:
    """Store an inbound message: expire an overdue session, find the route, insert the inbox row.

    A repeated event returns the receipt of the first one and stores nothing. `policy` says when the
    conversation expires after this message. Raises `Overloaded` if `max_queued` messages of the
    same session_key are open already, and `EventConflict` if the event_id of this conversation
    was used for another message. (A platform may send an event again in another form; it gets the
    first receipt.) Raises `StoreBusy` if the write-ahead log has reached its limit.
    """
    inbound, body = validated(tx, inbound)
    source, key = inbound.source, inbound.session_key
    event, content = inbound.identity, digest(tx, inbound)
    row = tx.one(FIND_EVENT, *event, key)
    if row is not None:
        return _repeated(tx, inbound, Receipt(*row[:-1]), same=row[-1] in {None, content})
    if tx.db.refusal is not None:
        raise StoreBusy(tx.db.refusal)
    waiting, previous = inbox.count_and_last(tx, key)
    if waiting >= max_queued:
        raise Overloaded(f"{waiting} messages already wait for {key}; try again later")
    route, head, expired = open_route(tx, key, inbound.metadata)
    routes.record_message(tx, key, source, policy)
    located = (key, route.session_id, route.epoch)
    claim = tx.serve(key)
    # Without other open rows, this runtime starts a turn at once: it is the first attempt.
    here = tx.db.node == (0 if claim is None else claim.node)
    starts = not waiting and tx.db.delivers and here
    inbox_id = tx.insert(INSERT_MESSAGE, *event, content, *located, body, tx.now, starts)
    receipt = Receipt(inbox_id, *located, tx.now)
    if inbound.parts or inbound.request is not None:
        _add_details(tx, receipt, inbound)
    accepted = Accepted(
        receipt,
        head,
        inbound,
        expired=expired,
        waiting=waiting,
        route=route,
        previous=previous,
        claim=claim,
    )
    tx.accepted.append(accepted)
    return accepted


def _add_details(tx: Transaction, receipt: Receipt, inbound: Inbound) -> None:
    """Store what belongs to a message: the files that it names, and its response."""
    parts = list(inbound.parts or ())
    if inbound.request is not None:
        parts += _check_request(tx, inbound, inbound.request)
        responses.add(tx, receipt, inbound.request)
    if parts:
        attachments.use_in_inbox(tx, receipt.inbox_id, parts)


def _check_request(tx: Transaction, inbound: Inbound, request: ApiRequest) -> list[JsonObject]:
    """Return the parts of the history that a request brings.

    Raises `ValueError` if a request that is not stored names a conversation, or the other way
    round, and `UnknownFile` if a message names a file that the client cannot read.
    """
    if request.stored == is_ephemeral_key(inbound.session_key):
        raise ValueError("only a request that is not stored has a one-off session key")
    parts = [part for message in request.history for part in message.parts or ()]
    for file_id in file_ids(parts):
        attachments.get_file(tx, file_id, session_key=inbound.session_key)
    return parts


def _repeated(tx: Transaction, inbound: Inbound, receipt: Receipt, *, same: bool) -> Accepted:
    """Return the receipt of the first time; an event of one conversation must be the `same`."""
    if inbound.per_conversation and not same:
        raise EventConflict(f"event {inbound.event_id!r} of {receipt.session_key} has another text")
    return Accepted(receipt, sessions.head(tx, receipt.session_id), inbound, duplicate=True)


def open_route(tx: Transaction, key: str, metadata: JsonObject | None = None) -> Opened:
    """Return the route of a key, with a session that accepts messages."""
    found, expired = routes.current(tx, key), None
    if found is not None and routes.is_overdue(found[0], tx.now):
        expired = routes.expire(tx, key, found[0].epoch, metadata)
        found = routes.current(tx, key)
    return *routes.ensure_open(tx, key, found), expired


def digest(tx: Transaction, inbound: Inbound) -> str:
    """Return a fingerprint of what the message says."""
    parts = inbound.parts and attachments.by_content(tx, inbound.parts)
    return hashlib.blake2b(_SORTED.encode([inbound.text, parts]), digest_size=16).hexdigest()


def validated(tx: Transaction, inbound: Inbound) -> tuple[Inbound, str]:
    """Return the message as it will be read back, and its JSON; `ValueError` if it is invalid."""
    routes.require_key(inbound.session_key)
    if inbound.parts:
        inbound = attachments.resolve(tx, inbound)
    try:
        body = codec.encode_json(inbound)
        inbound = inbox.decode(body)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(f"the inbound message has a field of the wrong type: {error}") from None
    if len(body) > MAX_BODY or not inbound.event_id:
        raise ValueError(_problem(inbound, body))
    return inbound, body


def _problem(inbound: Inbound, body: str) -> str:
    """Say why a message cannot be accepted."""
    if not inbound.event_id:
        return "an inbound message needs an event_id, by which repetitions are detected"
    return f"the message has {len(body)} characters; the limit is {MAX_BODY}"


def commit_turn(tx: Transaction, turn: TurnCommit) -> Committed | Discarded:
    """Store a finished turn entirely, or discard it if its conversation changed meanwhile.

    1. The inbox rows must be open, and the route's epoch and session those that the turn started
       with; otherwise the turn is discarded.
    2. If only the revision differs, another process appended rows; the turn's rows follow them.
    3. If the session was compressed meanwhile, the rows go to its continuation and the route
       follows, unless it is there already. If the session ended otherwise, the turn is discarded
       and its messages run again.
    """
    if not turn.inbox_ids:
        raise ValueError("a turn needs the inbox_ids of the messages that it answers")
    key = turn.session_key
    tx.lock_session(turn.session_id)  # so that what others append is seen, or comes later
    found = routes.current(tx, key)
    if found is None or not inbox.all_open(tx, turn.inbox_ids, key):
        return _discarded(tx, key, "the messages of this turn are not open any more")
    if (found[0].epoch, found[0].session_id) != (turn.epoch, turn.session_id):
        return _commit_moved(tx, turn, found[0])
    foreign = found[1].revision != turn.revision
    route, head = routes.ensure_open(tx, key, found)
    if (foreign or route.session_id != turn.session_id) and (reason := _obstacle(tx, turn, route)):
        return _discarded(tx, key, reason)
    if turn.rotated_to:
        route, head = _follow_agent(tx, turn, route, head, foreign=foreign)
    store = _store if turn.stored else _charge
    head, added = store(tx, turn, route.session_id, head)
    title = titles.apply_pending_title(tx, key) if route.pending_title is not None else None
    replies = [inbox.addressed(reply, route.session_id) for reply in turn.outbox]
    outbox.enqueue(tx, key, min(turn.inbox_ids), replies)
    reply = turn.reply and turn.reply.stored_in(route.session_id, added)
    inbox.finish(tx, turn.inbox_ids, reply)
    inbox.start_inbox(tx, turn.next_inbox_ids)
    routes.record_turn(tx, key, turn.policy)
    moved = route.session_id != turn.session_id
    return Committed(head, route.epoch, foreign, moved, added, title, reply)


def _commit_moved(tx: Transaction, turn: TurnCommit, route: Route) -> Committed | Discarded:
    """Commit a turn whose route was moved: only if it was moved once, to the continuation.

    Another process has then compressed the session, and it or a new message moved the route.
    """
    followed = route.epoch == turn.epoch + 1 and route.session_id != turn.session_id
    line = lineage.get_compression_lineage(tx, turn.session_id) if followed else []
    if route.session_id not in line or turn.rotated_to or turn.rewind_to is not None:
        return _discarded(tx, turn.session_key, "the conversation was moved to another session")
    foreign = sessions.head(tx, turn.session_id).revision != turn.revision
    there = replace(turn, session_id=route.session_id, epoch=route.epoch)
    done = commit_turn(tx, there)
    return replace(done, foreign=foreign, moved=True) if isinstance(done, Committed) else done


def _store(
    tx: Transaction, turn: TurnCommit, session_id: str, head: Head
) -> tuple[Head, list[StoredMessage]]:
    """Write the rows and the usage of a turn; return the new head, and the rows as stored."""
    added: list[StoredMessage] = []
    if not head.revision and (turn.rows or turn.usage):
        _ensure_session(tx, turn, session_id)
    if turn.rewind_to is not None:
        head = _rewind(tx, turn, session_id)
    if turn.rows:
        head, added = messages.append_rows(tx, session_id, turn.rows)
    if turn.usage:
        usage.record_all(tx, session_id, turn.usage, min(turn.inbox_ids))
    if turn.record is not None:
        no = codec.session_of(added[0].id) if added else sessions.number(tx, session_id)
        if no is not None:
            recordings.add(tx, no, min(turn.inbox_ids), turn.record, added)
    return head, added


def _charge(
    tx: Transaction, turn: TurnCommit, session_id: str, head: Head
) -> tuple[Head, list[StoredMessage]]:
    """Write the usage of a turn that belongs to no session."""
    del session_id
    usage.record_unstored(tx, turn.usage, min(turn.inbox_ids))
    return head, []


def _obstacle(tx: Transaction, turn: TurnCommit, route: Route) -> str | None:
    """Return why a turn cannot be stored after a change by another process, or None."""
    moved, first = route.session_id != turn.session_id, turn.rewind_to
    if moved and sessions.number(tx, route.session_id) is None:
        return "the session has ended"
    if first is None:
        return None
    if moved:
        return "the messages that this turn replaces were compressed"
    kept = messages.is_live(tx, first) and (turn.upto is None or messages.is_live(tx, turn.upto))
    return None if kept else "the messages that this turn replaces were changed"


def _discarded(tx: Transaction, session_key: str, reason: str) -> Discarded:
    route = routes.get_route(tx, session_key)
    if route is None:
        return Discarded(reason, None, 0)
    return Discarded(reason, route.session_id, route.epoch)


def _follow_agent(
    tx: Transaction, turn: TurnCommit, route: Route, head: Head, *, foreign: bool
) -> tuple[Route, Head]:
    """Return the session that takes the rows; create it if the agent rotated by itself."""
    wanted = turn.rotated_to
    if wanted is None or wanted in {turn.session_id, route.session_id}:
        return route, head
    if sessions.number(tx, wanted) is not None:
        if wanted not in lineage.get_compression_lineage(tx, route.session_id):
            raise NotInLineage(f"session {wanted} belongs to another conversation")
        return route, head
    taken = "SELECT 1 FROM routes WHERE session_id = ? AND session_key <> ?"
    if tx.one(taken, wanted, turn.session_key) is not None:
        raise NotInLineage(f"session {wanted} belongs to another conversation")
    _ensure_session(tx, turn, route.session_id)
    parent_no = sessions.require(tx, route.session_id)
    rotation.continue_in(tx, route.session_id, wanted)
    routes.assign_session(tx, turn.session_key, wanted)
    if foreign and turn.upto is not None:
        carried = messages.messages_after(tx, parent_no, turn.upto)
        messages.append_rows(tx, wanted, [codec.as_message(row) for row in carried])
    moved = routes.current(tx, turn.session_key)
    assert moved is not None
    return moved[:2]


def _rewind(tx: Transaction, turn: TurnCommit, session_id: str) -> Head:
    """Take back the messages that the turn replaces, if they are in this session."""
    first = turn.rewind_to
    if first is not None and first // codec.SPAN == sessions.number(tx, session_id):
        messages.rewind(tx, session_id, first, upto=turn.upto)
    return sessions.head(tx, session_id)


def _ensure_session(tx: Transaction, turn: TurnCommit, session_id: str) -> None:
    """Create the row of a session with its first message."""
    if sessions.number(tx, session_id) is None:
        source = inbox.source_of(tx, min(turn.inbox_ids))
        create_session(tx, session_id, turn.session_key, source)


def create_session(tx: Transaction, session_id: str, session_key: str, source: Source) -> None:
    """Create the row of a conversation's session."""
    sessions.create_session(
        tx,
        session_id,
        source.platform,
        session_key=session_key,
        chat_id=source.chat_id,
        chat_type=source.chat_type,
        thread_id=source.thread_id,
        user_id=source.user_id,
    )


def post(
    tx: Transaction,
    session_key: str,
    text: str,
    source: Source,
    replies: Sequence[Outbound] = (),
    parts: Sequence[JsonObject] = (),
) -> Posted:
    """Append a message of the assistant to the current session, and enqueue its delivery.

    A session that has no row yet gets one, with this source. Raises `UnknownFile` if the
    conversation cannot read a file that `parts` names, and `AttachmentRefused` if there are too
    many.
    """
    attachments.get_files(tx, file_ids(parts), session_key=session_key)
    route, before, _ = open_route(tx, routes.require_key(session_key))
    if sessions.number(tx, route.session_id) is None:
        create_session(tx, route.session_id, session_key, source)
    message = Message("assistant", text or None, parts=tuple(parts) or None)
    head, [row] = messages.append_rows(tx, route.session_id, [message])
    addressed = [inbox.addressed(reply, route.session_id) for reply in replies]
    outbox.enqueue(tx, session_key, 0, addressed)
    return Posted(row, before, head, route.epoch, titles.apply_pending_title(tx, session_key))


def add_messages(
    tx: Transaction, session_key: str, rows: Sequence[Message], source: Source
) -> list[StoredMessage]:
    """Append messages of a history to the current session; no turn answers them.

    A session that has no row yet gets one, with this source. Raises `UnknownFile` if the
    conversation cannot read a file that a message names.
    """
    names = [name for row in rows for name in file_ids(row.parts)]
    attachments.get_files(tx, names, session_key=session_key)
    route, _, _ = open_route(tx, routes.require_key(session_key))
    if sessions.number(tx, route.session_id) is None:
        create_session(tx, route.session_id, session_key, source)
    return messages.append_rows(tx, route.session_id, rows)[1]


def last_source(tx: Transaction, session_key: str) -> Source | None:
    """Return where the last reply of a conversation was sent, or where its session began.

    Returns None if the conversation has neither.
    """
    sent = tx.one(
        "SELECT body FROM outbox WHERE session_key = ? ORDER BY id DESC LIMIT 1", session_key
    )
    if sent is not None:
        return _decode_source(sent[0])
    begun = tx.one(
        "SELECT s.source, '', s.chat_id, coalesce(s.chat_type, 'dm'), s.thread_id, s.user_id "
        "FROM routes r JOIN sessions s ON s.id = r.session_id WHERE r.session_key = ?",
        session_key,
    )
    return None if begun is None else Source(*begun)
