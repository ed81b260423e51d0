"""Inbox rows: accepted messages, each open until a turn or an answer closes it.

`accept` and `commit_turn`, the two transactions of a turn, are in `turns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from hermes.messages import (
    Inbound,
    InboxReply,
    InboxRow,
    MessageOutcome,
    Outbound,
    Receipt,
    Reply,
    Source,
    Withdrawn,
)
from hermes.messages.transcripts import add_transcripts
from hermes.sanitize import scrub
from hermes.store.conversations import codec, outbox
from hermes.store.transaction import Row, Transaction

decode: Final = msgspec.json.Decoder(Inbound).decode
"""Decode the body of an inbox row."""
_FINISH = (
    "UPDATE inbox SET state = 'done', closed_at = ?1, body = NULL, turn_id = ?2, "
    "reply = CASE WHEN id = ?2 THEN ?3 END WHERE id = ?4 AND state = 'open'"
)
_COUNT_OPEN = (
    "SELECT count(*), coalesce(max(id), 0) FROM inbox WHERE session_key = ? AND state = 'open'"
)
_decode_reply = msgspec.json.Decoder(Reply).decode
# An event of one conversation may be stored without a scope: submitted, or by an earlier version.
SAME_EVENT = (
    "platform = ?1 AND account = ?2 AND event_id = ?3 "
    "AND (scope = ?4 OR (scope = '' AND session_key = ?5)) ORDER BY id LIMIT 1"
)


def count_open(tx: Transaction, session_key: str) -> int:
    """Return how many messages of this key are open."""
    return count_and_last(tx, session_key)[0]


def count_and_last(tx: Transaction, session_key: str) -> tuple[int, int]:
    """Return how many messages of this key are open, and the id of the last one or 0."""
    row = tx.one(_COUNT_OPEN, session_key)
    assert row is not None
    return row[0], row[1]


def open_inbox(
    tx: Transaction, session_key: str | None = None, *, after: int = 0, limit: int = 1000
) -> list[InboxRow]:
    """Return open messages in inbox order, of one key or of all keys.

    To read page by page, pass the last `inbox_id` of a page as `after` of the next.
    """
    only, values = ("AND session_key = ?", (session_key,)) if session_key else ("", ())
    found = tx.all(
        "SELECT id, body, attempts, accepted_at FROM inbox INDEXED BY inbox_open "
        f"WHERE state = 'open' AND id > ? {only} "
        "ORDER BY id LIMIT ?",
        after,
        *values,
        limit,
    )
    return [InboxRow(row[0], decode(row[1]), row[2], row[3]) for row in found]


def waiting_page(
    tx: Transaction, session_key: str, after: int, before: int, limit: int, *, forward: bool
) -> list[InboxRow]:
    """Return open messages of a key that are no commands, in inbox order.

    Only those between the ids `after` and `before`; the first `limit` of them with `forward`, else
    the last. `ALL_ROWS` is no limit.
    """
    found = tx.all(
        "SELECT id, body, attempts, accepted_at FROM inbox INDEXED BY inbox_open "
        "WHERE state = 'open' AND session_key = ?1 AND id > ?2 AND id < ?3 "
        "AND coalesce(CAST(body ->> '$.command' AS TEXT), '') NOT IN ('1', 'true') "
        f"ORDER BY id {'ASC' if forward else 'DESC'} LIMIT ?4",
        session_key,
        after,
        before,
        limit,
    )
    rows = [InboxRow(row[0], decode(row[1]), row[2], row[3]) for row in found]
    return rows if forward else rows[::-1]


def waiting_keys(tx: Transaction, after: int = 0, limit: int = 1000) -> list[tuple[str, int]]:
    """Return the key and the id of each open message after the id `after`, in inbox order.

    To read page by page, or to see later what is new, pass the last id of a page as `after`.
    """
    found = tx.all(
        "SELECT session_key, id FROM inbox INDEXED BY inbox_open "
        "WHERE state = 'open' AND id > ? ORDER BY id LIMIT ?",
        after,
        limit,
    )
    return [(row[0], row[1]) for row in found]


def all_open(tx: Transaction, inbox_ids: Sequence[int], session_key: str) -> bool:
    """Return whether each of these rows is open and belongs to this key."""
    sql = "SELECT 1 FROM inbox WHERE id = ? AND session_key = ? AND state = 'open'"
    return all(tx.one(sql, inbox_id, session_key) for inbox_id in inbox_ids)


def lock_key_of(tx: Transaction, inbox_id: int) -> None:
    """Lock the session_key of a message, before its state decides what is done."""
    row = tx.one("SELECT session_key FROM inbox WHERE id = ?", inbox_id)
    if row is not None:
        tx.lock_key(row[0])


def source_of(tx: Transaction, inbox_id: int) -> Source:
    """Return where an open message came from."""
    row = tx.one("SELECT body FROM inbox WHERE id = ? AND body IS NOT NULL", inbox_id)
    return Source() if row is None else decode(row[0]).source


def store_transcripts(
    tx: Transaction, session_key: str, inbox_id: int, transcripts: Mapping[str, str]
) -> bool:
    """Add transcripts, by file id, to the audio parts of an open message; earlier ones stay.

    Returns False, and stores nothing, if the message is not open.
    """
    row = tx.one(
        "SELECT body FROM inbox WHERE state = 'open' AND id = ? AND session_key = ?",
        inbox_id,
        session_key,
    )
    if row is None:
        return False
    inbound = decode(row[0])
    parts = add_transcripts(inbound.parts or (), transcripts)
    body = codec.encode_json(replace(inbound, parts=parts or inbound.parts))
    tx.run("UPDATE inbox SET body = ? WHERE id = ? AND state = 'open'", body, inbox_id)
    return True


def start_inbox(tx: Transaction, inbox_ids: Sequence[int]) -> None:
    """Count another attempt for each of these rows."""
    for inbox_id in inbox_ids:
        tx.run("UPDATE inbox SET attempts = attempts + 1 WHERE id = ?", inbox_id)


def restore_attempts(tx: Transaction, attempts: Mapping[int, int]) -> None:
    """Set the attempts of open rows, by inbox id; for turns that a shutdown has cancelled."""
    sql = "UPDATE inbox SET attempts = ?1 WHERE id = ?2 AND state = 'open' AND attempts <> ?1"
    for inbox_id, count in attempts.items():
        tx.run(sql, count, inbox_id)


def has_started(tx: Transaction, session_key: str) -> bool:
    """Return whether a turn was started for an open message of this key."""
    rows = open_inbox(tx, session_key)
    return any(row.attempts > 0 and not row.inbound.command for row in rows)


_OUTCOMES: Final = (
    "SELECT m.id, m.session_key, m.session_id, m.epoch, m.accepted_at, m.platform, m.account, "
    "m.event_id, m.scope, m.state, m.note, t.reply "
    "FROM inbox m LEFT JOIN inbox t ON t.id = m.turn_id WHERE m.id"
)


def get_outcome(tx: Transaction, inbox_id: int) -> MessageOutcome | None:
    """Return what became of a message; None if there is no row for it (any more)."""
    row = tx.one(f"{_OUTCOMES} = ?", inbox_id)
    return None if row is None else _outcome(row)


def get_outcomes(tx: Transaction, inbox_ids: Sequence[int]) -> list[MessageOutcome]:
    """Return what became of these messages, by id; without those that are unknown."""
    wanted = f"{_OUTCOMES} IN (SELECT CAST(value AS BIGINT) FROM json_each(?)) ORDER BY m.id"
    return [_outcome(row) for row in tx.all(wanted, codec.encode_json(list(inbox_ids)))]


def _outcome(row: Row) -> MessageOutcome:
    *identity, state, note, reply = row[5:]
    decoded = None if reply is None else _decode_reply(reply)
    return MessageOutcome(Receipt(*row[:5]), tuple(identity), state, note, decoded)


def open_ids(tx: Transaction, session_keys: Sequence[str]) -> list[tuple[str, int]]:
    """Return the keys and the ids of the open messages of these conversations, by id."""
    return tx.all(
        "SELECT session_key, id FROM inbox WHERE state = 'open' "
        "AND session_key IN (SELECT value FROM json_each(?)) ORDER BY id",
        codec.encode_json(list(session_keys)),
    )


def find_event(
    tx: Transaction, session_key: str, event_id: str, platform: str, account: str = ""
) -> MessageOutcome | None:
    """Return what became of the event of a conversation; None if it is unknown."""
    event = (scrub(platform), scrub(account), scrub(event_id), session_key, session_key)
    row = tx.one(f"SELECT id FROM inbox WHERE {SAME_EVENT}", *event)
    return None if row is None else get_outcome(tx, row[0])


def finish(tx: Transaction, inbox_ids: Sequence[int], reply: Reply | None) -> int:
    """Close rows that were answered; return how many of them were open.

    The text of a closed row is dropped: it is in the transcript. The row itself stays, so that a
    repeated event is recognized, with the reply for its sender.
    """
    answered = _stored(reply)
    return sum(tx.run(_FINISH, tx.now, *answered, inbox_id) for inbox_id in inbox_ids)


def _stored(reply: Reply | None) -> tuple[int | None, str | None]:
    """Return the columns `turn_id` and `reply`; a reply is stored once, with its first message."""
    return (None, None) if reply is None else (reply.turn_id, codec.encode_json(reply))


def withdraw(tx: Transaction, session_key: str, inbox_id: int) -> Withdrawn | None:
    """Close an open message without an answer, and drop its text; None if it is not open."""
    row = tx.one(
        "SELECT id, body, attempts, accepted_at, session_id FROM inbox "
        "WHERE session_key = ? AND id = ? AND state = 'open'",
        session_key,
        inbox_id,
    )
    if row is None:
        return None
    found = InboxRow(row[0], decode(row[1]), row[2], row[3])
    metadata = found.inbound.metadata
    reply = Reply(
        text="", session_id=row[4], turn_id=inbox_id, status="withdrawn", metadata=metadata
    )
    finish(tx, [inbox_id], reply)
    tx.run("UPDATE inbox SET note = 'withdrawn' WHERE id = ?", inbox_id)
    return Withdrawn(found, reply)


def park_inbox(
    tx: Transaction, inbox_ids: Sequence[int], note: str, *, answer: InboxReply | None = None
) -> int:
    """Set open rows aside that cannot be finished; return how many there were.

    Parked rows keep their text. `answer` is sent to the user if any row was open.
    """
    answered = _stored(None if answer is None else answer.reply)
    sql = (
        "UPDATE inbox SET state = 'parked', closed_at = ?1, note = ?2, turn_id = ?3, "
        "reply = CASE WHEN id = ?3 THEN ?4 END WHERE id = ?5 AND state = 'open'"
    )
    parked = sum(tx.run(sql, tx.now, note, *answered, inbox_id) for inbox_id in inbox_ids)
    if answer is not None and parked:
        outbox.enqueue(tx, answer.session_key, min(inbox_ids), answer.outbox)
    return parked


def close(tx: Transaction, answer: InboxReply | None, session_id: str | None = None) -> None:
    """Close the rows of an answer and enqueue its replies, as part of a larger transaction.

    Nothing is enqueued if all rows were closed before. `session_id` replaces the session that the
    replies name, if the transaction has just moved the conversation there.
    """
    if answer is None:
        return
    # The last row is the one that is answered; it closes the others.
    turn_id = max(answer.inbox_ids, default=0)
    others = [inbox_id for inbox_id in answer.inbox_ids if inbox_id != turn_id]
    closed = finish(tx, others, _moved(answer.dropped, session_id))
    closed += finish(tx, [turn_id], _moved(answer.reply, session_id))
    if closed or not answer.inbox_ids:
        replies = answer.outbox
        if session_id is not None:
            replies = [addressed(reply, session_id) for reply in replies]
        outbox.enqueue(tx, answer.session_key, turn_id, replies)


def _moved(reply: Reply | None, session_id: str | None) -> Reply | None:
    """Return the reply with another session, if there is one."""
    return reply if reply is None or session_id is None else replace(reply, session_id=session_id)


def addressed(reply: Outbound, session_id: str) -> Outbound:
    """Return the reply with the session that the transaction has settled on."""
    if "session_id" not in reply.body:
        return reply
    return Outbound(reply.lane, {**reply.body, "session_id": session_id})
